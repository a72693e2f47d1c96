// The same lists that the executor runs are priced here, so that a bubble is what a step will have
// and not what a formula says about an ideal schedule. Collectives of a stage are left out: they
// overlap with computations, and their cost depends on the network.
#include "sdk/mesh/schedule/timeline.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace yoke::mesh {
namespace {

// Identifies a message: whether it is a gradient, the later of the two stages that it connects, and
// the micro-batch.
using MessageId = std::tuple<bool, int, int>;

class Simulation {
 public:
  Simulation(const std::vector<std::vector<Action>>& lists,
             const std::function<double(int, const Action&)>& duration,
             double message)
      : lists_(lists),
        duration_(duration),
        message_(message),
        next_(lists.size(), 0),
        clock_(lists.size(), 0) {
    result_.ranks.resize(lists.size());
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < lists_.size(); ++r) {
        while (next_[r] < lists_[r].size() && advance(static_cast<int>(r))) moved = true;
      }
      moved = moved || pass_barrier();
    }
    result_.end = *std::max_element(clock_.begin(), clock_.end());
    return std::move(result_);
  }

 private:
  static bool is_barrier(ActionKind kind) {
    return kind == ActionKind::kReduceScalars || kind == ActionKind::kReduceLoss;
  }

  // Runs the rank's next action. Returns false if it has to wait for another rank.
  bool advance(int rank) {
    const Action& a = lists_[rank][next_[rank]];
    double begin = clock_[rank], end = begin;
    if (is_barrier(a.kind)) return false;
    if (const auto message = info_of(a.kind).message) {
      const MessageId id{message->grad, a.stage + (message->is_at_output() ? 1 : 0), a.micro};
      if (message->step == MessageInfo::kSend) arrival_[id] = begin + message_;
      if (message->step == MessageInfo::kWait) {
        const auto sent = arrival_.find(id);
        if (sent == arrival_.end()) return false;
        end = std::max(begin, sent->second);
      }
    } else if (is_computation(a.kind)) {
      end = begin + duration_(rank, a);
    }
    finish(rank, begin, end);
    return true;
  }

  void finish(int rank, double begin, double end) {
    result_.ranks[rank].push_back({begin, end});
    clock_[rank] = end;
    ++next_[rank];
  }

  // All ranks have reached the collective over the world: they continue together.
  bool pass_barrier() {
    for (size_t r = 0; r < lists_.size(); ++r) {
      if (next_[r] == lists_[r].size() || !is_barrier(lists_[r][next_[r]].kind)) return false;
    }
    const double end = *std::max_element(clock_.begin(), clock_.end());
    for (size_t r = 0; r < lists_.size(); ++r) finish(static_cast<int>(r), clock_[r], end);
    return true;
  }

  const std::vector<std::vector<Action>>& lists_;
  const std::function<double(int, const Action&)>& duration_;
  double message_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<MessageId, double> arrival_;
  Timeline result_;
};

}  // namespace

Timeline timeline_of(const std::vector<std::vector<Action>>& lists,
                     const std::function<double(int rank, const Action& action)>& duration,
                     double message) {
  return Simulation(lists, duration, message).run();
}

std::vector<double> idle_times(const Timeline& timeline,
                               const std::vector<std::vector<Action>>& lists) {
  std::vector<double> idle;
  for (size_t r = 0; r < lists.size(); ++r) {
    double busy = 0;
    for (size_t i = 0; i < lists[r].size(); ++i) {
      const ActionTime& time = timeline.ranks[r][i];
      if (is_computation(lists[r][i].kind)) busy += time.end - time.begin;
    }
    idle.push_back(timeline.end - busy);
  }
  return idle;
}

}  // namespace yoke::mesh
