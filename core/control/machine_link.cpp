// The link remembers the state of this launcher (it is ready, its ranks run in an attempt, or they
// have ended) and reports it again on each new connection. So a connection that breaks, or a
// launcher of machine 0 that is started again, needs no other treatment.
#include "core/control/machine_link.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/exit_code.hpp"
#include "core/base/network.hpp"
#include "core/base/text.hpp"
#include "core/control/hub_connection.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenAttempts{200};
constexpr std::chrono::seconds kBetweenReports{5};
// Added to the time for which the hub may be silent.
constexpr milliseconds kVerdict{3000};
constexpr milliseconds kLeastSilence{2000};
constexpr milliseconds kLastWords{1000};
// The hub notices within that silence and this time that an earlier launcher is gone.
constexpr milliseconds kTaken{8000};
constexpr milliseconds kOwnGap{1000};  // as in hub_presence.cpp
constexpr int kStrangeAnswers =
    3;  // number of answers of another program after which the wait ends

FileDescriptor make_event() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.open()) throw Error(YOKE_RESOURCE_EXHAUSTED, "too many open files");
  return event;
}

void set(const FileDescriptor& event) {
  const uint64_t one = 1;
  if (::write(event.get(), &one, sizeof one) < 0) return;  // it is set already
}

void clear(const FileDescriptor& event) {
  uint64_t ignored = 0;
  if (::read(event.get(), &ignored, sizeof ignored) < 0) return;  // it was not set
}

}  // namespace

struct MachineLink::Impl {
  explicit Impl(MachineLinkOptions o) : options(std::move(o)) {}

  void run();
  std::unique_ptr<HubConnection> connect();
  void serve(HubConnection& connection);
  void take(const Message& message);
  void give_up(int exit_code, const std::string& text);
  void wait_after(const std::string& why, int exit_code);
  void say(MessageType type, std::vector<std::string> fields);
  void push(MachineOrder order);
  milliseconds silence() const { return std::max(options.lost_after, kLeastSilence); }

  const MachineLinkOptions options;
  const FileDescriptor wake = make_event(), orders_event = make_event(), stop_event = make_event();
  // Of the link's thread:
  int strange_answers = 0;
  bool accepted = false;  // the hub has accepted this machine on the present connection
  bool known = false;     // the hub has accepted it on some connection
  std::optional<Clock::time_point> taken_since;
  Clock::time_point next_report{};

  mutable std::mutex mutex;  // protects everything below
  std::condition_variable changed;
  std::deque<MachineOrder> orders;
  std::vector<Message> out;  // that have not been sent yet
  bool sending = false;
  std::string attempt;  // that the ranks of this machine run in; "" = none
  std::string stop;     // why they are to end
  bool ready = false;
  std::optional<int> ended;  // exit code of the ranks, which waits for a verdict
  std::optional<AttemptEnd> verdict;
  std::optional<Message> leaving;
  bool over = false;  // the last order has been given
  std::optional<int> end_code;
  bool ending = false;
  Clock::time_point waiting_since = Clock::now();  // start of the wait for the hub

  std::thread thread;  // the last member: it uses the others
};

// ---- The thread ----

void MachineLink::Impl::run() {
  while (const std::unique_ptr<HubConnection> connection = connect()) {
    try {
      accepted = false;
      serve(*connection);
      return;
    } catch (const Error& e) {
      {
        const std::lock_guard lock(mutex);
        if (accepted) waiting_since = Clock::now();
      }
      wait_after(e.what(), accepted ? kExitRankLost : kExitUsage);
    }
  }
}

// Returns a connection on which the secret has been proved; null if the link is to end.
std::unique_ptr<HubConnection> MachineLink::Impl::connect() {
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      if (ending || over) return nullptr;
    }
    HubSocket socket = connect_to_hub(options.at, options.lost_after);
    if (!socket.fd.open()) {
      const std::string what = socket.has_address ? "cannot be reached at " : "has no address: ";
      wait_after("machine 0 " + what + options.at.text() + " (" + socket.fault + ")",
                 socket.has_address ? kExitRankLost : kExitUsage);
      continue;
    }
    auto connection =
        std::make_unique<HubConnection>(std::move(socket.fd), options.at.text(), "machine");
    try {
      connection->greet(options.secret);
      return connection;
    } catch (const Error& e) {
      if (e.code() != YOKE_UNAVAILABLE) {
        give_up(kExitUsage, e.what());
      } else if (!known && !connection->closed() && ++strange_answers == kStrangeAnswers) {
        give_up(kExitUsage,
                std::string(e.what()) +
                    "; it belongs to another program: choose another port for "
                    "--master on all machines");
      } else {
        wait_after(e.what(), kExitRankLost);
      }
    }
  }
}

// Waits before the next attempt to connect, or gives up.
void MachineLink::Impl::wait_after(const std::string& why, int exit_code) {
  const Clock::time_point now = Clock::now();
  bool waits = false, late = false;
  {
    const std::lock_guard lock(mutex);
    waits = ready;
    late = ready && now - waiting_since > options.join_timeout;
  }
  if (late) {
    give_up(exit_code,
            why + "; gave up after " + seconds_text(options.join_timeout) +
                " (launch.join_timeout); check that --master names the host of machine 0, that "
                "`yoke train` runs there, and that no firewall blocks the port");
    return;
  }
  if (waits && now >= next_report) {
    if (next_report != Clock::time_point{}) options.print("waiting for machine 0: " + why);
    next_report = now + kBetweenReports;
  }
  pollfd woken{wake.get(), POLLIN, 0};
  ::poll(&woken, 1, static_cast<int>(kBetweenAttempts.count()));
  clear(wake);
}

void MachineLink::Impl::push(MachineOrder order) {
  const std::lock_guard lock(mutex);
  if (over) return;
  over = order.kind == MachineOrder::Kind::kEnd;
  if (over) end_code = order.exit_code;
  orders.push_back(std::move(order));
  set(orders_event);
  changed.notify_all();
}

void MachineLink::Impl::give_up(int exit_code, const std::string& text) {
  push({.kind = MachineOrder::Kind::kEnd, .exit_code = exit_code, .text = text});
}

// Talks to the hub until the link is to end. Throws Error(UNAVAILABLE) if the connection is lost.
void MachineLink::Impl::serve(HubConnection& connection) {
  {
    const std::lock_guard lock(mutex);
    out = {{MessageType::kJoin,
            {options.job,
             concat(options.machine),
             concat(options.machines),
             own_host(),
             concat(::getpid()),
             attempt,
             pack_introduction(options.facts)}}};
    if (ready) out.push_back({MessageType::kReady, {}});
    if (ended) out.push_back({MessageType::kEnded, {concat(*ended)}});
    if (leaving) out.push_back(*leaving);
  }
  Clock::time_point heard = Clock::now(), beat = heard, last_turn = heard;
  for (;;) {
    const Clock::time_point now = Clock::now();
    if (now - last_turn > kOwnGap) heard = now;  // this process was stopped, not the hub
    last_turn = now;
    std::vector<Message> messages;
    {
      const std::lock_guard lock(mutex);
      if ((ending || over) && out.empty()) return;
      messages.swap(out);
      sending = !messages.empty();
    }
    if (now - beat >= HubLogic::kBeat) {
      beat = now;
      messages.push_back({MessageType::kBeat, {"0", "0", "0", "0"}});
    }
    for (const Message& message : messages) connection.send(message);
    {
      const std::lock_guard lock(mutex);
      sending = false;
      changed.notify_all();
    }
    if (options.lost_after.count() > 0 && now - heard > options.lost_after)
      throw Error(YOKE_UNAVAILABLE, "machine 0 does not answer any more");
    pollfd fds[] = {{wake.get(), POLLIN, 0}, {connection.fd(), POLLIN, 0}};
    ::poll(fds, 2, static_cast<int>(HubLogic::kBeat.count() / 2));
    clear(wake);
    while (const auto message = connection.receive(milliseconds(0))) {
      heard = Clock::now();
      take(*message);
    }
  }
}

void MachineLink::Impl::take(const Message& message) {
  using Kind = MachineOrder::Kind;
  const std::vector<std::string>& f = message.fields;
  if (message.type == MessageType::kBeat) {
    accepted = known = true;
    taken_since.reset();
  } else if (message.type == MessageType::kRefused && f.size() == 1) {
    give_up(kExitUsage, f[0]);
  } else if (message.type == MessageType::kRetry && f.size() == 1) {
    if (!taken_since) taken_since = Clock::now();
    // Without lost_after only the kernel of machine 0 ends the connection of an earlier launcher
    // that was on another host, minutes later. Then join_timeout alone limits the wait.
    if (options.lost_after.count() > 0 && Clock::now() - *taken_since > silence() + kTaken)
      give_up(kExitUsage, f[0]);
    throw Error(YOKE_UNAVAILABLE, f[0]);
  } else if (message.type == MessageType::kNews && f.size() == 1) {
    options.print(f[0]);
  } else if (message.type == MessageType::kEnd && f.size() == 2) {
    give_up(static_cast<int>(number_in(f[0])), f[1]);
  } else if (message.type == MessageType::kPlan && f.size() == 1) {
    push({.kind = Kind::kPlan, .machines = static_cast<int32_t>(number_in(f[0]))});
  } else if (message.type == MessageType::kStart && f.size() == 4) {
    {
      const std::lock_guard lock(mutex);
      attempt = f[0];
      ready = false;
      stop.clear();
      clear(stop_event);
    }
    push({.kind = Kind::kStart,
          .attempt = f[0],
          .index = static_cast<int32_t>(number_in(f[1])),
          .machines = static_cast<int32_t>(number_in(f[2])),
          .text = f[3]});
  } else if (message.type == MessageType::kStop && f.size() == 1) {
    const std::lock_guard lock(mutex);
    stop = f[0];
    set(stop_event);
  } else if (message.type == MessageType::kVerdict && f.size() == 1) {
    const std::lock_guard lock(mutex);
    const int64_t number = number_in(f[0]);
    verdict = number >= 0 && number <= 2 ? static_cast<AttemptEnd>(number) : AttemptEnd::kOwn;
    changed.notify_all();
  }
}

// ---- The launcher's thread ----

// Call it with the mutex.
void MachineLink::Impl::say(MessageType type, std::vector<std::string> fields) {
  out.push_back({type, std::move(fields)});
  set(wake);
}

MachineLink::MachineLink(MachineLinkOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->thread = std::thread([this] { impl_->run(); });
  ::pthread_setname_np(impl_->thread.native_handle(), "yoke-link");
}

MachineLink::~MachineLink() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
    impl_->out.clear();
  }
  set(impl_->wake);
  impl_->thread.join();
}

void MachineLink::ready() {
  const std::lock_guard lock(impl_->mutex);
  impl_->ready = true;
  impl_->waiting_since = Clock::now();
  impl_->say(MessageType::kReady, {});
}

int MachineLink::order_fd() const {
  return impl_->orders_event.get();
}

std::optional<MachineOrder> MachineLink::take_order() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->orders.empty()) return std::nullopt;
  MachineOrder order = std::move(impl_->orders.front());
  impl_->orders.pop_front();
  if (impl_->orders.empty()) clear(impl_->orders_event);
  return order;
}

void MachineLink::planned(int32_t machines) {
  const std::lock_guard lock(impl_->mutex);
  impl_->say(MessageType::kPlanned, {concat(machines)});
}

int MachineLink::stop_fd() const {
  return impl_->stop_event.get();
}

std::string MachineLink::stop_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stop;
}

AttemptEnd MachineLink::ended(int exit_code) {
  std::unique_lock lock(impl_->mutex);
  impl_->ended = exit_code;
  impl_->verdict.reset();
  impl_->say(MessageType::kEnded, {concat(exit_code)});
  impl_->changed.wait_for(
      lock, impl_->silence() + kVerdict, [&] { return impl_->verdict || impl_->over; });
  impl_->ended.reset();
  impl_->attempt.clear();
  return impl_->verdict.value_or(AttemptEnd::kOwn);
}

std::optional<int> MachineLink::end_code() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->end_code;
}

void MachineLink::leave(int exit_code, const std::string& why) {
  std::unique_lock lock(impl_->mutex);
  impl_->ready = false;
  impl_->leaving = {MessageType::kLeave, {concat(exit_code), why}};
  impl_->say(MessageType::kLeave, impl_->leaving->fields);
  impl_->changed.wait_for(
      lock, kLastWords, [&] { return impl_->over || (impl_->out.empty() && !impl_->sending); });
}

}  // namespace yoke
