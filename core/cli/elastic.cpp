// The launcher of machine 0 serves a hub to which all launchers keep a connection for the whole run
// (core/control/machines_state.hpp). It is not the hub of the ranks: that one lives in rank 0 and
// ends with each attempt, while a machine that comes during an attempt, or between two of them,
// must be noticed. It has a port of its own for the same reason.
//
// A launcher decides by itself whether it restarts after a loss, as it does without --nnodes
// MIN:MAX. The hub decides who takes part, when an attempt starts, and whether the end of an
// attempt was ordered.
#include "core/cli/elastic.hpp"

#include <poll.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "core/base/exit_code.hpp"
#include "core/base/network.hpp"
#include "core/cli/train_request.hpp"
#include "core/control/decline.hpp"
#include "core/control/hub.hpp"
#include "core/control/join_wait.hpp"
#include "core/control/machine_link.hpp"
#include "core/control/machines_state.hpp"
#include "core/launch/signal_inbox.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(double seconds) {
  return milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Where the launchers meet, and the name of what they meet for: a rank that comes here by mistake
// has another one.
ControlAddress meeting_place(const Machines& m) {
  return {"", m.host, m.port + 1};
}
std::string name_of(const Machines& m) {
  return "launchers of " + m.job;
}

// On a cluster the name of a machine may appear seconds after the machine itself.
void wait_for_name(const Machines& m, milliseconds timeout) {
  MemberOptions options;
  options.join_timeout = timeout;
  JoinWait wait(options);
  for (;;) {
    const std::string fault = resolve(m.host, m.port + 1).fault;
    if (fault.empty()) return;
    wait.pause(no_address_text(m.host, fault), YOKE_INVALID_ARGUMENT);
  }
}

FileDescriptor listen_for_machines(const Machines& m) {
  std::string fault;
  FileDescriptor listener = listen_for_members(meeting_place(m), false, fault);
  if (listener.open()) return listener;
  throw Stop{kExitUsage,
             "machine 0 cannot listen at " + meeting_place(m).text() +
                 ", the port after that of --master, where the launchers meet (" + fault +
                 "); choose another port for --master on all machines"};
}

MachinesOptions hub_options(const ElasticStart& e) {
  const Machines& m = *e.start.machines;
  return {.min = e.min,
          .max = m.count,
          .host = own_host(),
          .process = concat(::getpid()),
          .job = name_of(m),
          .secret = Secret::from_environment(),
          .facts = e.facts,
          .saves = e.saves,
          .elastic_wait = to_milliseconds(e.launch.elastic_wait),
          .join_timeout = to_milliseconds(e.launch.join_timeout),
          .lost_after = to_milliseconds(e.launch.lost_after)};
}

std::unique_ptr<Hub> start_hub(const ElasticStart& e) {
  const Machines& m = *e.start.machines;
  if (m.index != 0) return nullptr;
  auto logic = std::make_unique<MachinesState>(hub_options(e), std::chrono::steady_clock::now());
  return std::make_unique<Hub>(listen_for_machines(m), std::move(logic), print_message);
}

MachineLinkOptions link_options(const ElasticStart& e) {
  const Machines& m = *e.start.machines;
  return {.at = meeting_place(m),
          .machine = m.index,
          .machines = m.count,
          .job = name_of(m),
          .secret = Secret::from_environment(),
          .facts = e.facts,
          .join_timeout = to_milliseconds(e.launch.join_timeout),
          .lost_after = to_milliseconds(e.launch.lost_after),
          .print = print_message};
}

class ElasticRun {
 public:
  explicit ElasticRun(const ElasticStart& e)
      : e_(e), hub_(start_hub(e)), link_(link_options(e)), starter_(e.start, e.restarts) {}

  int run() {
    link_.ready();
    for (;;) {
      const std::optional<MachineOrder> order = next_order();
      if (!order) return stop_between_attempts();
      if (order->kind == MachineOrder::Kind::kEnd) {
        print_message(order->text);
        starter_.print_end(order->exit_code);
        return order->exit_code;
      }
      if (order->kind == MachineOrder::Kind::kPlan) {
        plan(order->machines);
        link_.planned(order->machines);
      } else if (const auto code = attempt(*order)) {
        return *code;
      } else {
        link_.ready();
      }
    }
  }

 private:
  // Waits for an order of the hub. Returns nothing after a signal.
  std::optional<MachineOrder> next_order() {
    for (;;) {
      pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {link_.order_fd(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      if ((signal_ = signals_.next()) != 0) return std::nullopt;
      if (auto order = link_.take_order()) return order;
    }
  }

  int stop_between_attempts() {
    const int code = signal_ == SIGINT ? kExitSigint : kExitSigterm;
    return leave(code, "stopped by its user between two attempts");
  }

  int leave(int exit_code, const std::string& why) {
    link_.leave(exit_code, why);
    starter_.print_end(exit_code);
    return exit_code;
  }

  void plan(int machines) {
    if (machines == planned_) return;
    try {
      const RankStart made = e_.plan(machines, starter_.start.run_dir);
      planned_ = machines;
      if (!starter_.start.run_dir.empty()) return;
      starter_.start.run_dir = made.run_dir;
      starter_.start.resume = made.resume;
    } catch (const Stop& stop) {
      link_.leave(stop.exit_code, stop.text.empty() ? "it could not make the plan" : stop.text);
      throw;
    }
  }

  // Runs the ranks once. Returns the exit code of the run if no further attempt follows.
  std::optional<int> attempt(const MachineOrder& order) {
    if (attempted_) starter_.continue_from_newest();
    attempted_ = true;
    print_message(concat("starting the ranks of ", order.machines) +
                  (order.machines == 1 ? " machine: " : " machines: ") + order.text);
    Machines& m = *starter_.start.machines;
    m.index = order.index;
    m.count = order.machines;
    m.job = concat(e_.start.machines->job, ", attempt ", order.attempt);
    int code = starter_.launch({link_.stop_fd(), [this] { return link_.stop_reason(); }});
    if (starter_.signalled()) return leave(code, "stopped by its user");
    const AttemptEnd end = link_.ended(code);
    if (end == AttemptEnd::kPlanned) return std::nullopt;
    if (end == AttemptEnd::kLost) code = kExitRankLost;
    // The ranks were stopped because another machine has ended the run.
    const auto final_code = link_.end_code();
    if (final_code && (code == kExitSaved || code == kExitSigterm)) code = *final_code;
    const auto pause = starter_.pause_after(code);
    if (!pause) return leave(code, why_it_ends(code));
    pollfd signalled{signals_.fd(), POLLIN, 0};
    ::poll(&signalled, 1, static_cast<int>(pause->count()));
    return std::nullopt;
  }

  std::string why_it_ends(int code) const {
    if (!starter_.give_up_reason().empty())
      return "its launcher gave up: " + starter_.give_up_reason();
    if (code == kExitRankLost)
      return "a rank was lost, and no restarts were asked for (--restarts)";
    return concat("its ranks ended with exit code ", code);
  }

  const ElasticStart& e_;
  SignalInbox signals_;  // before the threads, which must not get the signals
  const std::unique_ptr<Hub> hub_;
  MachineLink link_;
  RankStarter starter_;
  int signal_ = 0;
  int planned_ = 0;  // number of machines of the last plan
  bool attempted_ = false;
};

}  // namespace

int run_elastic(const ElasticStart& start) {
  const Machines& m = *start.start.machines;
  if (m.index == 0) wait_for_name(m, to_milliseconds(start.launch.join_timeout));
  return ElasticRun(start).run();
}

void decline_elastic(const Machines& m, const std::string& why) noexcept {
  try {
    if (m.index != 0) {
      decline_run({.at = meeting_place(m),
                   .rank = m.index,
                   .world_size = m.count,
                   .job = name_of(m),
                   .secret = Secret::from_environment()},
                  why);
      return;
    }
    const MachinesOptions options{.max = m.count,
                                  .host = own_host(),
                                  .process = concat(::getpid()),
                                  .job = name_of(m),
                                  .secret = Secret::from_environment()};
    Hub hub(listen_for_machines(m),
            std::make_unique<MachinesState>(options, std::chrono::steady_clock::now()),
            {});
    hub.refuse(concat("machine 0 (", own_host(), ", process ", ::getpid(), ") cannot take part: ") +
               why);
  } catch (const Stop&) {
  } catch (const std::exception&) {
    // The secret came from a pipe, which can be read only once.
  }
}

}  // namespace yoke
