// Once all ranks are welcome, a thread of the member reads the connection: beats must be sent, and
// a loss noticed, while the rank computes.
//
// A rank that notices a loss has one second to end by itself, with its own message and after
// closing its files. A rank that is inside a long computation or a blocked system call cannot do
// so; then the thread ends the process (Duties::end).
#include "core/control/member.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/network.hpp"
#include "core/base/text.hpp"
#include "core/control/hub_connection.hpp"
#include "core/control/hub_state.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kOwnGap{1000};      // as in hub_presence.cpp
constexpr milliseconds kGrace{1000};       // to end by itself after a loss
constexpr milliseconds kReport{10'000};    // the same while a report is being written
constexpr milliseconds kFirstCause{1000};  // time for the hub to decide on the first cause
constexpr milliseconds kLastWords{1000};

std::string encode_beat(std::initializer_list<int64_t> numbers) {
  Message beat{MessageType::kBeat, {}};
  for (const int64_t number : numbers) beat.fields.push_back(concat(number));
  return encode(beat);
}

}  // namespace

struct Member::Impl {
  MemberOptions options;
  std::unique_ptr<HubConnection> connection;
  FileDescriptor wake;

  mutable std::mutex mutex;  // protects everything below
  std::condition_variable changed;
  std::string out;  // bytes that have not been sent yet
  std::string cause;
  std::map<std::string, std::string> notes;
  std::map<std::string, std::optional<std::string>> answers;  // request -> answer
  int64_t last_request = 0;
  bool left = false, ending = false;
  std::optional<int> exit_code;  // exit code of the rank that failed; empty = a rank is lost
  bool hangs = false;            // the loss is a hang, about which this rank has not reported yet
  Clock::time_point lost_since;

  std::mutex duties_mutex;  // protects the members below
  Duties duties;
  std::future<void> report;  // that is being written

  std::thread thread;

  void wake_up() const {
    const uint64_t one = 1;
    if (::write(wake.get(), &one, sizeof one) < 0) return;  // it is awake already
  }
};

Member::Member(const MemberOptions& options,
               std::unique_ptr<HubConnection> connection,
               std::vector<Peer> peers)
    : peers_(std::move(peers)), impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->connection = std::move(connection);
  impl_->wake = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  impl_->thread = std::thread([this] { run(); });
  ::pthread_setname_np(impl_->thread.native_handle(), "yoke-member");
}

Member::~Member() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->wake_up();
  impl_->thread.join();
}

void Member::lose(const std::string& cause, bool hangs, std::optional<int> exit_code) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (lost() || impl_->left) return;
    impl_->cause = cause;
    impl_->lost_since = Clock::now();
    impl_->hangs = hangs;
    impl_->exit_code = exit_code;
    lost_.store(true, std::memory_order_relaxed);
  }
  impl_->changed.notify_all();
}

void Member::take(const Message& message) {
  const std::vector<std::string>& fields = message.fields;
  if (message.type == MessageType::kLost && fields.size() == 3) {
    const int64_t code = number_in(fields[2]);
    lose(fields[0],
         fields[1] == "1",
         code > 0 ? std::optional<int>(static_cast<int>(code)) : std::nullopt);
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  if (message.type == MessageType::kNote && fields.size() == 3) {
    impl_->notes[fields[1]] = fields[2];
    impl_->out += encode({MessageType::kAck, {fields[0]}});
  } else if (!fields.empty() &&
             (message.type == MessageType::kAnswer || message.type == MessageType::kPosted)) {
    const auto asked = impl_->answers.find(fields[0]);  // absent if the request has timed out
    if (asked != impl_->answers.end()) asked->second = fields.size() > 1 ? fields[1] : "";
    impl_->changed.notify_all();
  }
}

void Member::tell_hub(const Message& message) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->out += encode(message);
  }
  send_some();
}

// Sends what is waiting. Returns false if the connection is broken.
bool Member::send_some() {
  const std::lock_guard lock(impl_->mutex);
  while (!impl_->out.empty()) {
    const ssize_t n =
        ::send(impl_->connection->fd(), impl_->out.data(), impl_->out.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    impl_->out.erase(0, static_cast<size_t>(n));
  }
  impl_->changed.notify_all();
  return true;
}

// Takes all messages that have arrived. Returns whether there was one.
bool Member::take_all() {
  bool any = false;
  while (const std::optional<Message> message = impl_->connection->receive(milliseconds(0))) {
    any = true;
    take(*message);
  }
  return any;
}

void Member::run() {
  const std::string rank0 =
      concat("rank 0 (", peers_[0].host, ", process ", peers_[0].process, ")");
  const milliseconds lost_after = impl_->options.lost_after;
  Clock::time_point heard = Clock::now(), beat = heard, last_turn = heard;
  std::optional<Clock::time_point> ending_since;
  bool broken = false;  // the connection is closed; after leave() that is no loss
  for (;;) {
    bool open = !lost() && !broken;
    const Clock::time_point now = Clock::now();
    if (now - last_turn > kOwnGap) heard = now;  // this process was stopped, not the hub
    last_turn = now;
    if (now - beat >= HubState::kBeat) {
      beat = now;
      const std::lock_guard lock(impl_->mutex);
      impl_->out += encode_beat({step_, collectives_, computed_, pp_rank_});
    }
    bool waits_to_send = false;
    {
      const std::lock_guard lock(impl_->mutex);
      waits_to_send = !impl_->out.empty();
      if (impl_->ending && !ending_since) ending_since = now;
      if (impl_->ending && (!waits_to_send || !open || now - *ending_since > kLastWords)) return;
    }
    if (open && lost_after.count() > 0 && now - heard > lost_after) {
      const std::string cause = rank0 +
                                string_printf(" has not answered for %.1f s",
                                              static_cast<double>(lost_after.count()) / 1000) +
                                "; stopped, or cut off from this machine (" + own_host() +
                                ") by the network";
      // Perhaps only the way from the hub to here is cut. Then the hub and the others hear of it.
      tell_hub({MessageType::kFailure, {concat(static_cast<int>(Failure::kOwn)), cause, ""}});
      lose(cause, /*hangs=*/true);
      open = false;
    }
    do_duties(now);
    pollfd fds[] = {{impl_->wake.get(), POLLIN, 0},
                    {open ? impl_->connection->fd() : -1,
                     static_cast<short>(waits_to_send ? POLLIN | POLLOUT : POLLIN),
                     0}};
    ::poll(fds, 2, static_cast<int>(HubState::kBeat.count() / 2));
    uint64_t ignored = 0;
    if (fds[0].revents != 0 && ::read(impl_->wake.get(), &ignored, sizeof ignored) < 0) ignored = 0;
    if (!open) continue;
    try {
      if (take_all()) heard = Clock::now();
      if (!send_some()) {
        take_all();  // the hub may have sent the cause before it ended
        throw Error(YOKE_UNAVAILABLE, "the connection is broken");
      }
    } catch (const Error&) {
      broken = true;
      lose(rank0 + " ended without notice; its own output, or that of its launcher, says more",
           /*hangs=*/false);
    }
  }
}

// The duties are done under their lock, so that set_duties() can end them. A report may take longer
// than lost_after, because a disk is slow.
void Member::do_duties(Clock::time_point now) {
  const std::lock_guard duties_lock(impl_->duties_mutex);
  std::future<void>& report = impl_->report;
  const bool writes =
      report.valid() && report.wait_for(milliseconds(0)) != std::future_status::ready;
  std::string cause;
  bool hangs = false, overdue = false;
  {
    const std::lock_guard lock(impl_->mutex);
    cause = impl_->cause;
    hangs = !writes && std::exchange(impl_->hangs, false);
    overdue = lost() && !impl_->left && now - impl_->lost_since > (writes ? kReport : kGrace);
  }
  const Duties& duties = impl_->duties;
  std::atomic<bool>* wanted = duties.report_wanted;
  const bool asked = !writes && wanted != nullptr && wanted->exchange(false);
  if (duties.report && (hangs || asked)) {
    const std::string why = hangs ? cause : "SIGQUIT";
    try {
      report = std::async(std::launch::async, duties.report, why);
    } catch (const std::system_error&) {  // this process may have no more threads
      report = std::async(std::launch::deferred, duties.report, why);
      report.wait();
    }
  } else if (duties.end && overdue) {
    duties.end(cause);
  }
}

std::string Member::request(MessageType type,
                            std::vector<std::string> fields,
                            milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  const std::string number = concat(++impl_->last_request);
  fields.insert(fields.begin(), number);
  impl_->answers[number];
  impl_->out += encode({type, std::move(fields)});
  impl_->wake_up();
  const auto answered = [&] { return lost() || impl_->answers[number].has_value(); };
  impl_->changed.wait_for(lock, timeout, answered);
  const std::optional<std::string> answer = impl_->answers[number];
  impl_->answers.erase(number);
  if (answer) return *answer;
  if (lost()) throw Error(YOKE_UNAVAILABLE, impl_->cause);
  throw Error(YOKE_DEADLINE_EXCEEDED,
              "no answer of the other ranks within " + seconds_text(timeout) +
                  "; see their logs, or give more time with comm.timeout");
}

void Member::post(const std::string& key, const std::string& value, milliseconds timeout) {
  request(MessageType::kPost, {key, value}, timeout);
}

std::optional<std::string> Member::peek(const std::string& key) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->notes.find(key);
  if (found == impl_->notes.end()) return std::nullopt;
  return found->second;
}

std::string Member::cause() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->cause;
}

void Member::require_alive() const {
  if (lost()) throw Error(YOKE_UNAVAILABLE, cause());
}

std::optional<int> Member::exit_code_of_cause() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->exit_code;
}

std::string Member::report_failure(const std::string& error, Failure kind, int exit_code) {
  std::unique_lock lock(impl_->mutex);
  impl_->out +=
      encode({MessageType::kFailure, {concat(static_cast<int>(kind)), error, concat(exit_code)}});
  impl_->wake_up();
  if (kind != Failure::kOwn) {
    // The hub may have to wait until a member has been silent long enough.
    impl_->changed.wait_for(lock, kFirstCause + impl_->options.lost_after, [&] { return lost(); });
    return impl_->cause;
  }
  // The others must get the reason before they see that the connection is closed.
  impl_->changed.wait_for(lock, kLastWords, [&] { return lost() || impl_->out.empty(); });
  impl_->left = true;
  return "";
}

void Member::leave() {
  std::unique_lock lock(impl_->mutex);
  impl_->out += encode({MessageType::kGoodbye, {}});
  impl_->left = true;
  impl_->wake_up();
  impl_->changed.wait_for(lock, kLastWords, [&] { return impl_->out.empty(); });
}

void Member::set_duties(Duties duties) {
  std::future<void> report;
  {
    const std::lock_guard lock(impl_->duties_mutex);
    impl_->duties = std::move(duties);
    report = std::move(impl_->report);
  }
  if (report.valid()) report.wait();  // without the lock, so that beats are sent meanwhile
}

}  // namespace yoke
