// Everything passes through the store of the hub, so that a difference becomes a finding. What is
// compared when ranks join would be refused instead.
//
// Clocks: rank 0 asks one machine after the other and compares the answer with the middle of its
// own wait. Network: the measurement has a round for each distance k between the numbers of two
// machines, in which machine m measures towards machine m + k. So each machine sends to one other
// machine at a time and receives from one, and n machines need n - 1 rounds.
//
// The hub of a doctor runs without a secret, because ranks with a wrong secret should be named, not
// kept out. Instead, each rank proves what it knows, for a nonce of rank 0.
#include "core/cli/doctor_exchange.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/file_descriptor.hpp"
#include "core/base/files.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kAnswer{60'000};      // limit for what another rank does at once
constexpr milliseconds kPerMachine{20'000};  // limit for all measurements of a round

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += string_printf("%02x", static_cast<unsigned char>(c));
  return text;
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json parsed(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  throw Error(YOKE_DATA_LOSS,
              "a rank sends something else than expected; install the same version of Yoke on all "
              "machines");
}

// The store of the hub.
class Store {
 public:
  explicit Store(Member& member) : member_(member) {}
  void set(const std::string& key, const std::string& value) const {
    member_.request(MessageType::kSet, {"doctor/" + key, value}, kAnswer);
  }
  std::string get(const std::string& key, milliseconds limit = kAnswer) const {
    return member_.request(MessageType::kGet, {"doctor/" + key}, limit);
  }
  // Returns when `count` ranks have called it with this key.
  void meet(const std::string& key, size_t count, milliseconds limit) const {
    if (member_.request(MessageType::kAdd, {"doctor/" + key, "1"}, kAnswer) == concat(count))
      set(key + "/all", "");
    get(key + "/all", limit);
  }

 private:
  Member& member_;
};

// A file that rank 0 makes in the run folder, and removes again.
class Mark {
 public:
  explicit Mark(std::string path) : path_(std::move(path)) {
    const FileDescriptor fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.open()) fault_ = std::strerror(errno);
  }
  ~Mark() {
    if (fault_.empty()) ::unlink(path_.c_str());
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  const std::string& fault() const { return fault_; }

 private:
  const std::string path_;
  std::string fault_;
};

// Returns what is wrong with the run folder for this rank. `mark` is the file of rank 0; "" = it
// could not make one.
std::string run_dir_fault(const std::string& folder, const std::string& mark, int32_t rank) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return "no such folder";
  if (!mark.empty() && !exists_soon(folder + "/" + mark))
    return "does not show the files of rank 0: another folder";
  const Mark own(
      concat(folder, "/.yoke-doctor-", rank, "-", hexadecimal(make_nonce()).substr(0, 8)));
  return own.fault().empty() ? "" : "not writable (" + own.fault() + ")";
}

// Rank 0 announces a nonce and its mark; then every rank completes its facts and sends them.
// Returns the facts of all ranks on rank 0, else of none.
std::vector<MachineFacts> exchange_facts(const Store& store, DoctorRank& self) {
  std::optional<Mark> mark;
  if (self.rank == 0) {
    const std::string nonce = hexadecimal(make_nonce());
    std::string name = ".yoke-doctor-" + nonce.substr(0, 16);
    if (!self.run_dir.empty() && !mark.emplace(self.run_dir + "/" + name).fault().empty())
      name = "";
    store.set("start", Json{{"nonce", nonce}, {"mark", name}}.dump());
  }
  const Json start = parsed(store.get("start"));
  const std::string nonce = start.value("nonce", "");
  self.facts.secret = hexadecimal(self.secret.proof("doctor", nonce, ""));
  if (!self.run_dir.empty())
    self.facts.run_dir_fault = run_dir_fault(self.run_dir, start.value("mark", ""), self.rank);
  store.set(concat("facts/", self.rank), pack_facts(self.facts));
  std::vector<MachineFacts> all;
  for (int32_t r = 0; self.rank == 0 && r < self.world_size; ++r)
    all.push_back(unpack_facts(store.get(concat("facts/", r))));
  return all;
}

// Returns the first rank of each machine, which measures for it.
std::vector<int32_t> exchange_speakers(const Store& store, const std::vector<MachineFacts>& facts) {
  if (!facts.empty()) {
    Json ranks = Json::array();
    for (const Machine& m : machines_of(facts)) ranks.push_back(m.ranks[0]);
    store.set("speakers", ranks.dump());
  }
  std::vector<int32_t> speakers;
  for (const Json& rank : parsed(store.get("speakers"))) {
    if (rank.is_number_integer()) speakers.push_back(rank.get<int32_t>());
  }
  return speakers;
}

// Returns, on rank 0, by how many seconds the clock of each machine is ahead.
std::vector<double> compare_clocks(const Store& store, size_t machine, size_t count) {
  if (machine > 0) {
    store.get(concat("clock/", machine, "/ask"));
    store.set(concat("clock/", machine), string_printf("%.6f", wall_clock()));
    return {};
  }
  std::vector<double> ahead{0};
  for (size_t m = 1; m < count; ++m) {
    const double begin = wall_clock();
    store.set(concat("clock/", m, "/ask"), "");
    const double there = std::strtod(store.get(concat("clock/", m)).c_str(), nullptr);
    ahead.push_back(there - (begin + wall_clock()) / 2);
  }
  return ahead;
}

// Listens for the others, and says where. Without a server, the others get the reason.
std::unique_ptr<PairServer> open_server(const Store& store,
                                        size_t machine,
                                        const std::string& address,
                                        const std::string& token) {
  Json place = {{"address", address}, {"port", 0}, {"fault", ""}};
  std::unique_ptr<PairServer> server;
  try {
    server = std::make_unique<PairServer>(address, token);
    place["port"] = server->port();
  } catch (const Error& e) {
    place["fault"] = e.what();
  }
  store.set(concat("server/", machine), place.dump());
  return server;
}

PairResult measure_towards(const Store& store, size_t to, const std::string& token) {
  const Json place = parsed(store.get(concat("server/", to)));
  PairResult result;
  result.fault = place.value("fault", "");
  if (!result.fault.empty()) return result;
  return measure_pair(place.value("address", ""), place.value("port", 0), token);
}

void measure_network(const Store& store, const MachineFacts& facts, size_t machine, size_t count) {
  const std::string token = hexadecimal(make_nonce());
  if (machine == 0) store.set("token", token);
  const std::string shared = store.get("token");
  const auto server = open_server(store, machine, facts.address, shared);
  Json results = Json::array();
  for (size_t k = 1; k < count; ++k) {
    store.meet(concat("round/", k), count, kAnswer);
    const size_t to = (machine + k) % count;
    const PairResult r = measure_towards(store, to, shared);
    results.push_back({{"to", to},
                       {"fault", r.fault},
                       {"round_trip", r.round_trip},
                       {"bytes_per_second", r.bytes_per_second}});
  }
  store.set(concat("pairs/", machine), results.dump());
  store.meet("measured", count, kAnswer);  // the server of this machine has been needed until now
}

std::vector<PairResult> all_pairs(const Store& store, size_t count) {
  std::vector<PairResult> pairs;
  for (size_t m = 0; m < count; ++m) {
    for (const Json& r : parsed(store.get(concat("pairs/", m)))) {
      PairResult p;
      p.from = static_cast<int>(m);
      p.to = r.value("to", 0);
      p.fault = r.value("fault", "");
      p.round_trip = r.value("round_trip", 0.0);
      p.bytes_per_second = r.value("bytes_per_second", 0.0);
      pairs.push_back(p);
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const PairResult& a, const PairResult& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  return pairs;
}

}  // namespace

MachineReports exchange_reports(Member& member, DoctorRank self) {
  const Store store(member);
  MachineReports reports;
  reports.facts = exchange_facts(store, self);
  reports.run_dir = self.run_dir;
  const std::vector<int32_t> speakers = exchange_speakers(store, reports.facts);
  const size_t count = speakers.size();
  const auto found = std::find(speakers.begin(), speakers.end(), self.rank);
  if (found != speakers.end() && count > 1) {
    const auto machine = static_cast<size_t>(found - speakers.begin());
    reports.clock_ahead = compare_clocks(store, machine, count);
    measure_network(store, self.facts, machine, count);
    if (self.rank == 0) reports.pairs = all_pairs(store, count);
  }
  // The ranks that do not measure wait here, so that all ranks know a failure by the same time.
  const auto limit = kAnswer + kPerMachine * static_cast<int64_t>(count);
  store.meet("end", static_cast<size_t>(self.world_size), limit);
  return reports;
}

int exchange_exit_code(Member& member, const DoctorRank& self, int code) {
  const Store store(member);
  if (self.rank == 0) store.set("code", concat(code));
  return static_cast<int>(number_in(store.get("code")));
}

}  // namespace yoke
