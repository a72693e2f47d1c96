// The machines of an elastic run in random orders of events, and what strangers may send.
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "core/control/machines_state.hpp"
#include "tests/unit/control/machines.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MachinesParty;

// Machines that come, go, end and fail at random.
class RandomMachines {
 public:
  explicit RandomMachines(uint32_t seed)
      : rng_(seed), max_(1 + random(4)), min_(1 + random(max_)), party_(min_, max_, options()) {}

  void disturb() {
    const int m = random(max_);
    const bool here = party_.connections.count(m) > 0;
    switch (random(6)) {
      case 0:
      case 1:
        come(m);
        break;
      case 2:
        if (here) party_.close(m);
        if (random(2) == 0) run_.erase(m);
        break;
      case 3:
        if (here && run_.count(m) > 0) end(m, random(2) == 0 ? 5 : 75);
        break;
      case 4:
        party_.wait(seconds(random(12)));
        break;
      case 5:
        if (here && random(20) == 0) party_.leave(m, random(2) == 0 ? 5 : 75, "x");
        break;
    }
    check();
  }
  // All ranks end, and all machines come. Returns true if an attempt follows or the run is over.
  bool recovers() {
    for (int m = 0; m < max_; ++m) come(m);
    for (const int m : std::set(run_)) end(m, 5);
    for (int i = 0; i < 20 && run_.count(0) == 0; ++i) {
      party_.wait(seconds(6));
      check();
    }
    return is_over() || run_.count(0) == 1;
  }
  bool is_over() const { return party_.hub->finished(); }
  int started() const { return started_; }

 private:
  int random(int n) { return static_cast<int>(rng_() % static_cast<uint32_t>(n)); }
  MachinesOptions options() { return {.saves = random(4) != 0, .join_timeout = seconds(60)}; }

  void come(int m) {
    if (party_.connections.count(m) > 0) return;
    const bool runs = run_.count(m) > 0;
    party_.join(m, {.attempt = runs ? attempts_[m] : "", .connection = ++connection_});
    if (!runs) party_.ready(m);
  }
  void end(int m, int code) {
    run_.erase(m);
    party_.end(m, code);
    party_.ready(m);
  }
  void note_starts() {
    std::map<std::string, std::vector<int>> indices;
    for (const auto& [m, connection] : party_.connections) {
      const auto f = party_.last(m, MessageType::kStart);
      if (f.empty()) continue;
      EXPECT_TRUE(run_.insert(m).second) << "started while its ranks run";
      attempts_[m] = f[0];
      indices[f[0]].push_back(std::stoi(f[1]));
      EXPECT_GE(std::stoi(f[2]), min_);
      EXPECT_LE(std::stoi(f[2]), max_);
      ++started_;
    }
    EXPECT_LE(indices.size(), 1u) << "two attempts at a time";
    for (const auto& [attempt, list] : indices) {
      for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], static_cast<int>(i));
      EXPECT_EQ(run_.count(0), 1u) << "an attempt without machine 0";
    }
    plans_ = plans_ || party_.plan() > 0;
    party_.forget();
  }
  void check() {
    note_starts();
    if (!plans_ || party_.connections.count(0) == 0 || random(2) == 0) return;
    plans_ = false;
    party_.planned();
    note_starts();
  }

  std::mt19937 rng_;
  const int max_, min_;
  MachinesParty party_;
  std::set<int> run_;  // machines whose ranks run
  std::map<int, std::string> attempts_;
  bool plans_ = false;  // machine 0 makes a plan
  int connection_ = 1000, started_ = 0;
};

TEST(Machines, KeepTheirPromisesInEveryOrderOfEvents) {
  int started = 0, over = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    RandomMachines machines(seed);
    for (int step = 0; step < 60; ++step) machines.disturb();
    EXPECT_TRUE(machines.recovers());
    started += machines.started();
    over += machines.is_over() ? 1 : 0;
  }
  EXPECT_GT(started, 3000);
  EXPECT_GT(over, 100);
  EXPECT_LT(over, 2900);
}

// Whatever a launcher, or a stranger without a secret, sends, it does not crash the hub.
TEST(Machines, SurviveNonsense) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    MachinesParty p(1, 3);
    p.come({0, 1});
    for (int i = 0; i < 200; ++i) {
      std::vector<std::string> fields;
      for (uint32_t n = rng() % 9; n > 0; --n) {
        const char* some[] = {
            "", "0", "1", "-1", "2", "job", "99999999999999999999", "node1", "10"};
        fields.push_back(some[rng() % std::size(some)]);
      }
      const auto type = static_cast<MessageType>(1 + rng() % static_cast<int>(kLastMessageType));
      const int connection = static_cast<int>(100 + rng() % 6);
      if (rng() % 10 == 0) p.hub->closed(connection, p.now);
      if (connection > 101 && rng() % 3 == 0) p.greet(connection);
      try {
        p.say(connection, type, fields);
      } catch (const Error&) {
        p.hub->closed(connection, p.now);  // as Hub does
      }
      p.wait(milliseconds(250));
    }
  }
}

}  // namespace
}  // namespace yoke
