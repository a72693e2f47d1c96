// The ranks meet as those of a run do: through MASTER_ADDR and MASTER_PORT, at a hub in the process
// of rank 0. So what keeps a run from starting keeps the doctor from meeting, and is the finding.
// Facts that differ between the ranks are exchanged later (doctor_exchange.cpp).
//
// Two things differ from a run. Under torchrun, MASTER_PORT belongs to the store of torchrun's
// agent, which only code with LibTorch can read; so the hub uses the port after it. And rank 0
// joins last, after kLateRanks: a process that has the number of another rank is then noticed, even
// if it starts a moment later than all others.
#include "core/cli/doctor_nodes.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "core/backend/search.hpp"
#include "core/base/content_sample.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/network.hpp"
#include "core/cli/doctor_exchange.hpp"
#include "core/cli/finding_table.hpp"
#include "core/cli/worker_program.hpp"
#include "core/control/hub.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLateRanks{1000};
constexpr milliseconds kBetweenLookups{500};
constexpr int kLastPort = 65535;

constexpr const char* kHow =
    "start it as one process per machine, or per rank, in the way in which yoke train will be "
    "started:\n"
    "  srun yoke doctor --nodes\n"
    "  torchrun --no-python --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint "
    "node1:29400 yoke doctor --nodes\n"
    "  mpirun -n 2 --host node1,node2 -x PATH -x MASTER_ADDR=node1 -x MASTER_PORT=29500 yoke "
    "doctor "
    "--nodes\n"
    "  RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node1 MASTER_PORT=29500 "
    "yoke "
    "doctor --nodes";

// Why the ranks could not meet.
class Trouble : public Error {
 public:
  Trouble(const std::string& what, const std::string& found, const std::string& fix)
      : Error(YOKE_UNAVAILABLE, found), finding_{what, MachineFinding::kProblem, found, fix} {}
  const MachineFinding& finding() const { return finding_; }

 private:
  MachineFinding finding_;
};

// This process, and where it meets the others.
struct Meeting {
  LaunchEnvironment env;
  milliseconds timeout;
  int port = 0;
  SocketAddress master;  // MASTER_ADDR, resolved once: a name server may be slow
  double lookup_seconds = 0;

  ControlAddress at() const { return {"", master.address, port}; }
  bool one_machine() const { return env.local_world_size == env.world_size; }
  std::string self() const { return concat("rank ", env.rank, " (", own_host(), ")"); }
  std::string place() const {
    return "MASTER_ADDR = " + env.master_addr +
           (env.master_addr == master.address ? "" : " (" + master.address + ")") +
           concat(", port ", port);
  }
};

// Looks MASTER_ADDR up. On a cluster the name of a machine may appear seconds after the machine.
void look_up(Meeting& m) {
  if (m.env.world_size == 1) {
    m.master = resolve("127.0.0.1", 0);
    return;
  }
  m.port = m.env.master_port;
  if (m.env.store_served) m.port += m.port < kLastPort ? 1 : -1;
  const auto begin = Clock::now();
  for (;;) {
    const auto attempt = Clock::now();
    const auto left = std::chrono::duration_cast<milliseconds>(begin + m.timeout - attempt);
    if (left.count() > 0) m.master = resolve_within(m.env.master_addr, m.port, left);
    const auto now = Clock::now();
    m.lookup_seconds = std::chrono::duration<double>(now - attempt).count();
    if (left.count() > 0 && m.master.fault.empty()) return;
    if (now + kBetweenLookups > begin + m.timeout) break;
    std::this_thread::sleep_for(kBetweenLookups);
  }
  throw Trouble(
      "rendezvous address",
      concat(m.self(), " finds no address of MASTER_ADDR = ", m.env.master_addr, " (") +
          m.master.fault + string_printf("), tried for %g s", m.timeout.count() / 1e3),
      concat("time getent hosts ", m.env.master_addr, "; cat /etc/resolv.conf; add it to ") +
          "/etc/hosts, or export MASTER_ADDR= an address");
}

// ---- What can go wrong when ranks meet ----

// Returns what stands between the first parentheses.
std::string reason_in(const std::string& text) {
  const size_t begin = text.find('('), end = text.find(')', begin);
  if (begin == std::string::npos || end == std::string::npos) return text;
  return text.substr(begin + 1, end - begin - 1);
}

Trouble unreachable(const Meeting& m, const std::string& text) {
  const std::string what = "rendezvous address", reason = reason_in(text);
  const bool own = is_own_address(m.master);
  if (m.env.rank == 0 && !own) {
    const std::string address = address_towards(m.master.address);
    return {what,
            concat(m.place(), " is no address of ", own_host(), ", where rank 0 runs"),
            "export MASTER_ADDR=" + (address.empty() ? own_host() : address) + ", for all ranks"};
  }
  std::string found = concat(m.self(), " cannot reach rank 0 at ", m.place(), ": ", reason);
  if (m.env.rank != 0 && own && !m.one_machine()) {
    return {what,
            found + concat("; on ", own_host(), " that address leads to this machine itself"),
            "export MASTER_ADDR= an address of rank 0's machine, for all ranks"};
  }
  found += reason == "no answer" ? "; a firewall drops the packets, or the address is wrong"
                                 : "; rank 0 has not started, or runs on another machine";
  return {what,
          found,
          concat("nc -vz ", m.master.address, " ", m.port, "; on the machine of rank 0: ") +
              concat("ss -ltnp 'sport = :", m.port, "'; nft list ruleset")};
}

// Explains why Member::join() failed.
Trouble explained(const Meeting& m, const Error& e) {
  std::string text = e.what();
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (has("rank 0 cannot be reached")) return unreachable(m, text);
  const std::string key = "launch.join_timeout";
  if (const size_t found = text.find(key); found != std::string::npos)
    text.replace(found, key.size(), "--timeout");
  if (has("missing; present") && is_loopback(m.master.address) && !m.one_machine())
    text += "; MASTER_ADDR = " + m.env.master_addr + " must lead other machines to rank 0";
  if (has("missing; present"))
    return {
        "ranks", text, "read what the launcher and these ranks print; --timeout 300 waits longer"};
  if (has("is taken by"))
    return {"ranks", text, "env | grep -E 'RANK|SLURM|PMI', in each process; start each rank once"};
  if (has("expects a world of"))
    return {"ranks", text, "env | grep -E 'WORLD_SIZE|NUM_TASKS|COMM_WORLD_SIZE', in each process"};
  if (has("another version") || has("speaks '"))
    return {"Yoke", text, "install the same version of Yoke on all machines"};
  return {"rendezvous address",
          m.env.rank == 0 ? text : m.self() + ": " + text,
          "export MASTER_PORT= another port, for all ranks"};
}

// ---- The meeting ----

FileDescriptor open_listener(const Meeting& m) {
  std::string fault;
  FileDescriptor listener = listen_for_members(m.at(), m.one_machine(), fault);
  if (listener.open()) return listener;
  throw Trouble("rendezvous address",
                concat("rank 0 (", own_host(), ") cannot listen at ", m.place(), ": ") + fault,
                concat("ss -ltnp 'sport = :", m.port, "'; export MASTER_PORT= another port, ") +
                    "for all ranks");
}

std::string job_of(const LaunchEnvironment& env) {
  return "yoke doctor" + (env.job.empty() ? "" : " in " + env.job);
}

void print_progress(const std::string& text) {
  std::fprintf(stderr, "yoke doctor: %s\n", text.c_str());
}

std::unique_ptr<Hub> start_hub(Meeting& m) {
  FileDescriptor listener = open_listener(m);
  m.port = near_port(listener.get());
  HubOptions options;
  options.world_size = m.env.world_size;
  options.host = own_host();
  options.process = concat(::getpid());
  options.job = job_of(m.env);
  options.join_timeout = m.timeout;
  auto hub = std::make_unique<Hub>(std::move(listener), std::move(options), print_progress);
  if (m.env.world_size > 1) std::this_thread::sleep_for(kLateRanks);
  return hub;
}

std::unique_ptr<Member> join(const Meeting& m) {
  MemberOptions options;
  options.rank = m.env.rank;
  options.world_size = m.env.world_size;
  options.job = job_of(m.env);
  // Rank 0 joins later than its hub starts, and the message of the hub is the better one.
  options.join_timeout = m.timeout + (m.env.rank == 0 ? 2 * kLateRanks : milliseconds(0));
  options.progress = print_progress;
  try {
    return Member::join([&] { return m.at(); }, options, {});
  } catch (const Error& e) {
    // Otherwise the run could do without this process, and its rank 0 would find nothing wrong.
    const std::string text = e.what();
    if (text.starts_with(concat("rank ", m.env.rank, " is taken by")))
      Member::decline(m.at(), options, text);
    throw explained(m, e);
  }
}

// ---- One rank ----

// Call this before other threads start and before anything reads the environment, which
// find_worker() changes.
void add_programs(MachineFacts& f) {
  f.version = YOKE_VERSION;
  try {
    f.programs["yoke"] = content_sample("/proc/self/exe");
    f.programs["yoke-worker"] = content_sample(find_worker(""));
    const SearchSettings settings = SearchSettings::current();
    const std::string library = settings.lib_dir + "/libyoke_worker.so";
    if (::access(library.c_str(), R_OK) == 0)
      f.programs["libyoke_worker.so"] = content_sample(library);
    for (const Candidate& c : list_candidates(search_dirs(settings))) {
      if (c.problem.empty() && c.shadowed_by.empty())
        f.programs["backend " + c.name] = content_sample(c.path);
    }
  } catch (const std::exception& e) {
    f.program_fault = e.what();
  }
}

void add_address(MachineFacts& f, const Peer& self, const GetVariable& get) {
  f.address = self.address;
  if (const char* interface = get("GLOO_SOCKET_IFNAME"); interface != nullptr) {
    const std::string address = address_of_interface(interface);
    if (!address.empty()) f.address = address;
    if (address.empty())
      f.interface_fault = concat("GLOO_SOCKET_IFNAME = ", interface) +
                          (has_interface(interface) ? " has no address" : " does not exist");
  }
  f.interface = interface_with(f.address);
}

MachineFinding launcher_row(const LaunchEnvironment& env) {
  return {"launcher", MachineFinding::kOk, env.launcher, ""};
}

MachineFinding place_row(const Meeting& m, const MachineFacts& rank0) {
  std::string found = m.place() + ": all ranks reach it";
  if (m.env.world_size == 1) found = "not needed by a single rank";
  if (m.env.store_served) found += "; a run uses a port of its own, torchrun MASTER_PORT";
  if (m.env.world_size > 1 && !is_own_address(m.master) && rank0.address != m.master.address)
    found += concat("; it is forwarded to rank 0 (", rank0.host, ")");
  return {"rendezvous address", MachineFinding::kOk, found, ""};
}

// Returns the exit code. Rank 0 appends to `findings`.
int examine(const NodesOptions& options, Meeting& m, std::vector<MachineFinding>& findings) {
  DoctorRank self;
  self.rank = m.env.rank;
  self.world_size = m.env.world_size;
  self.run_dir = options.run_dir;
  add_programs(self.facts);
  add_own_facts(self.facts, m.env.local_world_size, ::getenv);
  self.facts.rank = self.rank;
  try {
    self.secret = Secret::from_environment();
  } catch (const Error& e) {
    self.facts.secret_fault = e.what();
  }
  look_up(m);
  self.facts.lookup_seconds = m.lookup_seconds;
  std::unique_ptr<Hub> hub;  // outlives the member
  if (self.rank == 0) hub = start_hub(m);
  const std::unique_ptr<Member> member = join(m);
  try {
    add_address(self.facts, member->peers().at(static_cast<size_t>(self.rank)), ::getenv);
    MachineReports reports = exchange_reports(*member, self);
    reports.master_addr = m.env.master_addr;
    if (self.rank == 0) {
      findings.push_back(place_row(m, reports.facts[0]));
      for (MachineFinding& f : compare_machines(reports)) findings.push_back(std::move(f));
    }
    const int code = exchange_exit_code(*member, self, exit_code_of(findings));
    member->leave();
    return code;
  } catch (const Error& e) {
    const auto kind = e.code() == YOKE_UNAVAILABLE         ? Member::Failure::kLost
                      : e.code() == YOKE_DEADLINE_EXCEEDED ? Member::Failure::kTimeout
                                                           : Member::Failure::kOwn;
    const std::string text = e.what();
    const std::string cause = member->report_failure(text, kind, kExitFailed);
    // What follows the semicolon of a time limit names a key of a run.
    throw Trouble("ranks",
                  !cause.empty()                      ? cause
                  : kind == Member::Failure::kTimeout ? text.substr(0, text.find(';'))
                                                      : text,
                  "read what this rank and its launcher print, and start the doctor again");
  }
}

int misuse(const std::string& why) {
  std::fprintf(stderr, "yoke doctor: %s\n%s\n", why.c_str(), kHow);
  return kExitUsage;
}

}  // namespace

int doctor_nodes(const NodesOptions& options) {
  Meeting m;
  m.timeout = milliseconds(static_cast<int64_t>(options.timeout * 1000));
  try {
    const auto env = launch_environment();
    if (!env) return misuse("--nodes needs a launcher, and none started this process");
    m.env = *env;
  } catch (const Error& e) {
    return misuse(e.what());
  }
  std::vector<MachineFinding> findings{launcher_row(m.env)};
  int code = kExitFailed;
  try {
    code = examine(options, m, findings);
  } catch (const Trouble& e) {
    findings.push_back(e.finding());
  } catch (const Error& e) {
    findings.push_back({"this machine", MachineFinding::kProblem, e.what(), "yoke doctor"});
  }
  if (m.env.rank == 0) {
    print_findings(findings, options.json);
  } else if (const MachineFinding& last = findings.back(); last.status != MachineFinding::kOk) {
    std::fprintf(stderr, "yoke doctor: %s\n  try: %s\n", last.found.c_str(), last.fix.c_str());
  }
  return code;
}

}  // namespace yoke
