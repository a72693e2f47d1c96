// A value that should be equal everywhere is grouped by value, so that a run of a thousand ranks
// with one wrong machine gives one short line. A problem is what stops a run, or makes its result
// depend on the machine; what only makes it slow or hard to follow is a warning.
#include "core/launch/compare_machines.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr double kSlowLookup = 1;    // seconds
constexpr double kClockDiffers = 1;  // seconds
constexpr int kOwnFiles = 20, kFilesPerRank = 5;
constexpr const char* kSameVersion = "install the same Yoke on all machines";

using Ranks = std::vector<int32_t>;
using Groups = std::vector<std::pair<std::string, Ranks>>;  // value -> the ranks that have it

using finding::ok;
using finding::problem;
using finding::warning;

// "0-3, 6"
std::string ranges(const Ranks& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    const bool two = end - i == 2;
    parts.push_back(concat(ranks[i]));
    if (two) parts.push_back(concat(ranks[end - 1]));
    if (end - i > 2) parts.back() += concat("-", ranks[end - 1]);
    i = end;
  }
  return join(parts);
}

// The machines of a run, to name ranks in messages.
class Names {
 public:
  explicit Names(const std::vector<MachineFacts>& facts)
      : world_(facts.size()), machines_(machines_of(facts)), machine_(facts.size()) {
    for (size_t m = 0; m < machines_.size(); ++m) {
      for (const int32_t rank : machines_[m].ranks) machine_[rank] = m;
    }
  }
  const std::vector<Machine>& machines() const { return machines_; }
  // "rank 0 (node0), ranks 2, 3 (node1)", or "all ranks"
  std::string of(const Ranks& ranks) const {
    if (ranks.size() == world_ && world_ > 1) return "all ranks";
    std::vector<std::string> parts;
    for (size_t i = 0; i < ranks.size();) {
      size_t end = i;
      while (end < ranks.size() && machine_[ranks[end]] == machine_[ranks[i]]) ++end;
      const Ranks here(ranks.begin() + static_cast<std::ptrdiff_t>(i),
                       ranks.begin() + static_cast<std::ptrdiff_t>(end));
      parts.push_back(concat(here.size() == 1 ? "rank " : "ranks ", ranges(here), " (") +
                      machines_[machine_[ranks[i]]].name + ")");
      i = end;
    }
    return join(parts);
  }

 private:
  const size_t world_;
  const std::vector<Machine> machines_;
  std::vector<size_t> machine_;  // rank -> machine
};

Groups by_value(const std::vector<MachineFacts>& facts,
                const std::function<std::string(const MachineFacts&)>& value) {
  Groups groups;
  for (const MachineFacts& f : facts) {
    const std::string v = value(f);
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == v; });
    if (found == groups.end()) found = groups.insert(groups.end(), {v, {}});
    found->second.push_back(f.rank);
  }
  return groups;
}

// "0.1.0 on rank 0 (node0); 0.2.0 on rank 1 (node1)"
std::string text_of(const Groups& groups, const Names& names) {
  std::string text;
  for (const auto& [value, ranks] : groups)
    text += concat(text.empty() ? "" : "; ", value, " on ", names.of(ranks));
  return text;
}

// Leaves out the ranks without a value: those that have no fault.
Groups faults_of(Groups groups) {
  std::erase_if(groups, [](auto& g) { return g.first.empty(); });
  return groups;
}

MachineFinding check_ranks(const Names& names, size_t world) {
  std::vector<std::string> parts;
  for (const Machine& m : names.machines())
    parts.push_back(m.name + (m.ranks.size() == 1 ? " (rank " : " (ranks ") + ranges(m.ranks) +
                    ")");
  const size_t count = names.machines().size();
  return ok("ranks",
            concat(world, world == 1 ? " rank" : " ranks", " on ", count) +
                (count == 1 ? " machine: " : " machines: ") + join(parts));
}

MachineFinding check_secret(const std::vector<MachineFacts>& facts, const Names& names) {
  const std::string what = "secret";
  const Groups faults =
      faults_of(by_value(facts, [](const MachineFacts& f) { return f.secret_fault; }));
  if (!faults.empty())
    return problem(what, text_of(faults, names), "chmod 600 FILE; echo $YOKE_SECRET_FILE");
  Groups groups = by_value(facts, [](const MachineFacts& f) { return f.secret; });
  if (groups.size() == 1 && groups[0].first.empty())
    return ok(
        what,
        "none, so anyone who reaches rank 0 while ranks are missing can take part in a run or "
        "stop it (YOKE_SECRET_FILE)");
  if (groups.size() == 1) return ok(what, "all ranks know the same one");
  int number = 0;
  for (auto& [value, ranks] : groups)
    value = value.empty() ? "YOKE_SECRET_FILE is not set" : concat("secret ", ++number);
  return problem(what,
                 "the ranks would refuse each other: " + text_of(groups, names),
                 "give all ranks the same YOKE_SECRET_FILE: sha256sum $YOKE_SECRET_FILE");
}

MachineFinding check_version(const std::vector<MachineFacts>& facts, const Names& names) {
  const Groups groups = by_value(facts, [](const MachineFacts& f) { return f.version; });
  return groups.size() == 1 ? ok("Yoke", groups[0].first + " on all ranks")
                            : problem("Yoke", text_of(groups, names), kSameVersion);
}

MachineFinding check_programs(const std::vector<MachineFacts>& facts, const Names& names) {
  const std::string what = "programs";
  const Groups faults =
      faults_of(by_value(facts, [](const MachineFacts& f) { return f.program_fault; }));
  if (!faults.empty()) return problem(what, text_of(faults, names), "yoke doctor, on this machine");
  std::set<std::string> all;
  for (const MachineFacts& f : facts) {
    for (const auto& [name, sample] : f.programs) all.insert(name);
  }
  std::vector<std::string> same, different;
  for (const std::string& name : all) {
    const Groups groups = by_value(facts, [&](const MachineFacts& f) {
      const auto found = f.programs.find(name);
      return found == f.programs.end() ? "none" : found->second;
    });
    if (groups.size() == 1) {
      same.push_back(name);
    } else {
      different.push_back(concat(name, " differs: ", text_of(groups, names)));
    }
  }
  if (different.empty()) return ok(what, "the same files on all ranks: " + join(same));
  std::string text;
  for (const std::string& d : different) text += (text.empty() ? "" : "; ") + d;
  return problem(what, text, kSameVersion);
}

MachineFinding check_addresses(const std::vector<MachineFacts>& facts, const Names& names) {
  const std::string what = "addresses", list = "ip -brief address; export GLOO_SOCKET_IFNAME=...";
  const Groups faults =
      faults_of(by_value(facts, [](const MachineFacts& f) { return f.interface_fault; }));
  if (!faults.empty()) return problem(what, text_of(faults, names), list);
  const Groups groups = by_value(facts, [](const MachineFacts& f) {
    return f.address + (f.interface.empty() ? "" : " (" + f.interface + ")");
  });
  for (const auto& [value, ranks] : groups) {
    if (names.machines().size() > 1 && (value.starts_with("127.") || value.starts_with("::1")))
      return problem(
          what, value + " on " + names.of(ranks) + " cannot be reached by other machines", list);
  }
  return ok(what, text_of(groups, names));
}

// Only a note: Yoke does not need the names.
MachineFinding check_names(const std::vector<MachineFacts>& facts, const Names& names) {
  std::vector<std::string> parts;
  bool loopback = false;
  for (const Machine& m : names.machines()) {
    const std::string& address = facts[m.ranks[0]].own_name_address;
    loopback = loopback || address.starts_with("127.");
    parts.push_back(m.name + (address.empty() ? " has no address" : " is " + address));
  }
  return ok("host names",
            "on the machine itself, " + join(parts) +
                (loopback ? "; 127.x does no harm, because Yoke uses the addresses above" : ""));
}

MachineFinding check_lookup(const MachineReports& r, const Names& names) {
  const std::string what = "name server", name = "MASTER_ADDR = " + r.master_addr;
  const auto slowest = std::max_element(
      r.facts.begin(), r.facts.end(), [](const MachineFacts& a, const MachineFacts& b) {
        return a.lookup_seconds < b.lookup_seconds;
      });
  if (r.master_addr.empty()) return ok(what, "not needed");
  const std::string longest = string_printf("%.2g s", slowest->lookup_seconds);
  Ranks slow;
  for (const MachineFacts& f : r.facts) {
    if (f.lookup_seconds > kSlowLookup) slow.push_back(f.rank);
  }
  if (slow.empty()) return ok(what, name + " is found within " + longest);
  return warning(what,
                 concat("to look up ", name, " takes up to ", longest, " on ", names.of(slow)) +
                     "; a name server does not answer",
                 concat("cat /etc/resolv.conf; time getent hosts ", r.master_addr) +
                     "; or export MASTER_ADDR=" + r.facts[0].address);
}

MachineFinding check_clocks(const MachineReports& r, const Names& names) {
  if (names.machines().size() == 1) return ok("clocks", "not compared: there is one machine");
  double largest = 0;
  std::vector<std::string> wrong;
  for (size_t m = 0; m < r.clock_ahead.size(); ++m) {
    const double ahead = r.clock_ahead[m];
    largest = std::max(largest, std::abs(ahead));
    if (std::abs(ahead) > kClockDiffers)
      wrong.push_back(
          names.machines()[m].name +
          string_printf(" is %.1f s %s ", std::abs(ahead), ahead > 0 ? "ahead of" : "behind") +
          names.machines()[0].name);
  }
  if (wrong.empty()) return ok("clocks", string_printf("differ by at most %.2g s", largest));
  return warning("clocks",
                 join(wrong) + "; logs and traces will not line up",
                 "timedatectl set-ntp true, or: chronyc tracking");
}

MachineFinding check_limits(const std::vector<MachineFacts>& facts, const Names& names) {
  const auto needed = static_cast<int64_t>(kOwnFiles + kFilesPerRank * facts.size());
  const Groups low = faults_of(by_value(facts, [&](const MachineFacts& f) {
    return f.open_files < needed ? concat("at most ", f.open_files) : std::string();
  }));
  int64_t least = facts[0].open_files;
  for (const MachineFacts& f : facts) least = std::min(least, f.open_files);
  if (low.empty()) return ok("open files", concat("at least ", least, " on all ranks"));
  return warning("open files",
                 text_of(low, names) + concat("; ", facts.size(), " ranks need about ", needed),
                 "ulimit -Hn 65536, as root, or a higher limit of the container");
}

// Several ranks of a machine share its cores, or each has its own if the launcher binds them.
MachineFinding check_threads(const std::vector<MachineFacts>& facts, const Names& names) {
  std::vector<std::string> states, many, few;
  bool given = false;
  for (const Machine& m : names.machines()) {
    std::set<int> cores;
    int threads = 0;
    for (const int32_t rank : m.ranks) {
      cores.insert(facts[rank].cores.begin(), facts[rank].cores.end());
      threads += facts[rank].threads;
      given = given || facts[rank].threads_given;
    }
    const auto count = static_cast<int>(cores.size());
    const std::string text =
        concat(m.name, ": ", threads, threads == 1 ? " thread" : " threads") +
        concat(" of ", m.ranks.size(), m.ranks.size() == 1 ? " rank" : " ranks") +
        concat(" on ", count, count == 1 ? " core" : " cores");
    states.push_back(text);
    if (threads > count) many.push_back(text);
    if (!given && threads * 2 <= count) few.push_back(text);
  }
  if (!many.empty())
    return warning(
        "cores",
        join(many) + ": the threads would wait for each other",
        concat(given ? "unset OMP_NUM_THREADS, or " : "", "start fewer ranks on a machine"));
  if (!few.empty())
    return warning("cores",
                   join(few) + ": the launcher gives each rank cores of its own",
                   "export OMP_NUM_THREADS= the cores of a rank, to use all of them");
  return ok("cores", join(states));
}

MachineFinding check_run_dir(const MachineReports& r, const Names& names) {
  const std::string what = "run folder";
  if (r.run_dir.empty()) return ok(what, "not checked; --run-dir DIR checks one");
  const Groups faults =
      faults_of(by_value(r.facts, [](const MachineFacts& f) { return f.run_dir_fault; }));
  if (faults.empty()) return ok(what, r.run_dir + ": all ranks see it and may write to it");
  return problem(what,
                 r.run_dir + ": " + text_of(faults, names),
                 "name a folder on a file system that all machines share: df " + r.run_dir);
}

}  // namespace

std::vector<Machine> machines_of(const std::vector<MachineFacts>& facts) {
  std::vector<Machine> machines;
  std::vector<std::string> keys;
  for (const MachineFacts& f : facts) {
    const std::string key = f.host + " " + f.boot;
    const auto found = std::find(keys.begin(), keys.end(), key);
    if (found == keys.end()) {
      keys.push_back(key);
      machines.push_back({f.host, {f.rank}});
    } else {
      machines[static_cast<size_t>(found - keys.begin())].ranks.push_back(f.rank);
    }
  }
  // Without numbers, machines of one name could not be told apart.
  for (size_t m = 0; m < machines.size(); ++m) {
    const std::string name = facts[machines[m].ranks[0]].host;
    const auto same = [&](const Machine& other) { return facts[other.ranks[0]].host == name; };
    if (std::count_if(machines.begin(), machines.end(), same) > 1)
      machines[m].name = name + ", " + facts[machines[m].ranks[0]].address;
  }
  return machines;
}

std::vector<MachineFinding> compare_machines(const MachineReports& r) {
  const Names names(r.facts);
  std::vector<MachineFinding> findings{check_ranks(names, r.facts.size()),
                                       check_secret(r.facts, names),
                                       check_version(r.facts, names),
                                       check_programs(r.facts, names),
                                       check_addresses(r.facts, names),
                                       check_names(r.facts, names),
                                       check_lookup(r, names),
                                       check_clocks(r, names),
                                       check_limits(r.facts, names),
                                       check_threads(r.facts, names),
                                       check_run_dir(r, names)};
  for (MachineFinding& f : check_pairs(names.machines(), r)) findings.push_back(std::move(f));
  return findings;
}

}  // namespace yoke
