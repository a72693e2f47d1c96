// Joining is done by the calling thread, because it may take minutes, reports its progress and can
// be cancelled. Once all ranks are welcome, a thread of the member reads the connection: beats must
// be sent, and a loss noticed, while the rank computes.
//
// A rank that notices a loss has one second to end by itself, with its own message and after
// closing its files. A rank that is inside a long computation or a blocked system call cannot do
// so; then the thread ends the process (end_after_loss()).
#include "core/control/member.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/network.hpp"
#include "core/control/hub_state.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};  // a cancel flag is noticed after this time
constexpr milliseconds kBetweenAttempts{200};
constexpr milliseconds kGreeting{3000};  // a hub answers a greeting within this time
constexpr int kStrangeAnswers = 3;       // then the address is given up
constexpr std::chrono::seconds kBetweenReports{5};
constexpr milliseconds kOwnGap{1000};      // as in hub_state.cpp
constexpr milliseconds kGrace{1000};       // to end by itself after a loss
constexpr milliseconds kFirstCause{1000};  // wait for the first cause
constexpr milliseconds kLastWords{1000};
constexpr size_t kLargestFrame = size_t{64} << 20;

std::string seconds(milliseconds t) {
  return string_printf("%g s", static_cast<double>(t.count()) / 1000);
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_INVALID_ARGUMENT, text);
}

std::string lost_rank0(const std::string& host, const std::string& process) {
  return concat("rank 0 (", host, ", process ", process, ")");
}

}  // namespace

std::string own_host() {
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return host;
}

// ---- The connection while one thread uses it ----

class Member::Connection {
 public:
  Connection(FileDescriptor fd, std::string place) : fd_(std::move(fd)), place_(std::move(place)) {}

  int fd() const { return fd_.get(); }

  void send(const Message& message) {
    const std::string bytes = encode(message);
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n >= 0) {
        sent += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        pollfd writable{fd_.get(), POLLOUT, 0};
        if (::poll(&writable, 1, static_cast<int>(kGreeting.count())) != 1) fail("no answer");
      } else if (errno != EINTR) {
        fail(std::strerror(errno));
      }
    }
  }

  // Returns the next message, or nothing if none is complete after `limit`. Throws
  // Error(UNAVAILABLE) if the connection is closed or sends something else.
  std::optional<Message> receive(milliseconds limit) {
    try {
      if (auto message = reader_.next()) return message;
      pollfd readable{fd_.get(), POLLIN, 0};
      if (::poll(&readable, 1, static_cast<int>(limit.count())) != 1) return std::nullopt;
      char buffer[65536];
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
      if (n <= 0) fail(n == 0 ? "it closed the connection" : std::strerror(errno));
      reader_.append(buffer, static_cast<size_t>(n));
      return reader_.next();
    } catch (const Error& e) {
      if (e.code() == YOKE_UNAVAILABLE) throw;
      fail(e.what());
    }
  }

  // Proves to the hub that this rank knows the secret, and requires the same of the hub. Throws
  // Error: INVALID_ARGUMENT if the two have different secrets; UNAVAILABLE if the other side does
  // not behave like a hub.
  void greet(const Secret& secret) {
    const std::string nonce = make_nonce();
    send({MessageType::kHello, {kControlProtocol, nonce}});
    const Message challenge = expect(MessageType::kChallenge, 2);
    const std::string &hub_nonce = challenge.fields[0], &proof = challenge.fields[1];
    if (proof.empty() && secret.given()) {
      refuse(
          "YOKE_SECRET_FILE is set for this rank, but rank 0 runs without a secret; set it for "
          "all ranks");
    }
    if (!proof.empty() && !secret.given()) {
      refuse("rank 0 at " + place_ +
             " requires the secret of the run; set YOKE_SECRET_FILE for all ranks");
    }
    if (!same_proof(proof, secret.proof("hub", hub_nonce, nonce))) {
      refuse("rank 0 at " + place_ +
             " has another secret than this rank; give all ranks the same YOKE_SECRET_FILE");
    }
    send({MessageType::kProof, {secret.proof("member", hub_nonce, nonce)}});
  }

 private:
  Message expect(MessageType type, size_t num_fields) {
    const auto until = Clock::now() + kGreeting;
    for (;;) {
      const std::optional<Message> message = receive(kSlice);
      if (message && message->type == MessageType::kRefused && message->fields.size() == 1)
        refuse(message->fields[0]);
      if (message && message->type == type && message->fields.size() == num_fields) return *message;
      if (message) fail("it sends something else");
      if (Clock::now() > until) fail("no answer to a greeting within " + seconds(kGreeting));
    }
  }
  [[noreturn]] void fail(const std::string& why) {
    throw Error(
        YOKE_UNAVAILABLE,
        "what listens at " + place_ + " does not behave like rank 0 of a run (" + why + ")");
  }

  FileDescriptor fd_;
  std::string place_;
  FrameReader reader_{kLargestFrame};
};

// ---- Joining ----

// The attempts to join a run, until one succeeds.
class Member::Joining {
 public:
  explicit Joining(const MemberOptions& options)
      : options_(options),
        deadline_(Clock::now() + options.join_timeout),
        report_(Clock::now() + kBetweenReports) {}

  void check_cancel() const {
    if (options_.cancel != nullptr && options_.cancel->load())
      throw Error(YOKE_CANCELLED, "cancelled while waiting for the other ranks");
  }
  // Waits before the next attempt. `why` says why the last one failed.
  void pause(const std::string& why, int32_t code) {
    check_cancel();
    const Clock::time_point now = Clock::now();
    if (now > deadline_) {
      throw Error(code,
                  why + "; gave up after " + seconds(options_.join_timeout) +
                      " (launch.join_timeout); check that MASTER_ADDR is the host of rank 0, that "
                      "rank 0 has started, and that no firewall blocks its port");
    }
    if (options_.progress && now >= report_) {
      report_ = now + kBetweenReports;
      options_.progress(
          concat("rank ", options_.rank, " of ", options_.world_size, " is waiting: ", why));
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }

 private:
  const MemberOptions& options_;
  const Clock::time_point deadline_;
  Clock::time_point report_;
};

namespace {

std::vector<Peer> peers_in(const Message& welcome) {
  std::vector<Peer> peers;
  for (size_t i = 0; i + 2 < welcome.fields.size(); i += 3)
    peers.push_back({welcome.fields[i], welcome.fields[i + 1], welcome.fields[i + 2]});
  return peers;
}

}  // namespace

// Waits until the hub welcomes, refuses or sends back this rank, or until the run has failed before
// its start. Other messages are ignored.
Message Member::wait_for_answer(Connection& connection,
                                const MemberOptions& options,
                                const Joining& joining) {
  Clock::time_point heard = Clock::now(), beat = heard;
  try {
    for (;;) {
      joining.check_cancel();
      const std::optional<Message> message = connection.receive(kSlice);
      const Clock::time_point now = Clock::now();
      if (message) heard = now;
      if (message && message->type == MessageType::kWelcome) return *message;
      if (message && message->fields.size() == 1 &&
          (message->type == MessageType::kRefused || message->type == MessageType::kLost ||
           message->type == MessageType::kRetry))
        return *message;
      if (now - beat > HubState::kBeat) {
        if (now - beat > kOwnGap) heard = now;  // this process was stopped, not the hub
        beat = now;
        connection.send({MessageType::kBeat, {"0", "0"}});
      }
      if (options.lost_after.count() > 0 && now - heard > options.lost_after)
        throw Error(YOKE_UNAVAILABLE, "it does not answer any more");
    }
  } catch (const Error& e) {
    if (e.code() != YOKE_UNAVAILABLE) throw;
    throw Error(YOKE_UNAVAILABLE,
                concat("lost rank 0 before the start: ", e.what(), "; see the output of rank 0"));
  }
}

std::unique_ptr<Member> Member::join(const std::function<ControlAddress()>& where,
                                     const MemberOptions& options,
                                     const Introduction& introduction) {
  Joining joining(options);
  int strange_answers = 0;
  for (;;) {
    const ControlAddress at = where();
    std::string fault;
    FileDescriptor fd = connect_to_hub(at, fault);
    if (!fd.open()) {
      const bool unknown = at.socket.empty() && !resolve(at.host, at.port).fault.empty();
      joining.pause(unknown ? concat("MASTER_ADDR = '", at.host, "' has no address (", fault, ")")
                            : concat("rank 0 cannot be reached at ", at.text(), " (", fault, ")"),
                    unknown ? YOKE_INVALID_ARGUMENT : YOKE_UNAVAILABLE);
      continue;
    }
    const std::string address = near_address(fd.get());
    auto connection = std::make_unique<Connection>(std::move(fd), at.text());
    try {
      connection->greet(options.secret);
    } catch (const Error& e) {
      if (e.code() != YOKE_UNAVAILABLE) throw;
      if (++strange_answers == kStrangeAnswers) {
        refuse(std::string(e.what()) +
               "; it belongs to another program: choose another MASTER_PORT for all ranks");
      }
      joining.pause(e.what(), YOKE_UNAVAILABLE);
      continue;
    }
    connection->send({MessageType::kJoin,
                      {options.job,
                       concat(options.rank),
                       concat(options.world_size),
                       own_host(),
                       concat(::getpid()),
                       address,
                       pack_introduction(introduction)}});
    const Message answer = wait_for_answer(*connection, options, joining);
    if (answer.type == MessageType::kWelcome) {
      return std::unique_ptr<Member>(new Member(options, std::move(connection), peers_in(answer)));
    }
    const std::string& text = answer.fields[0];
    if (answer.type == MessageType::kRefused) refuse(text);
    if (answer.type == MessageType::kLost) throw Error(YOKE_UNAVAILABLE, text);
    joining.pause(text, YOKE_UNAVAILABLE);
  }
}

void Member::decline(const ControlAddress& at,
                     const MemberOptions& options,
                     const std::string& why) noexcept {
  try {
    const auto until = Clock::now() + kGreeting;
    std::string fault;
    FileDescriptor fd;
    while (!(fd = connect_to_hub(at, fault)).open()) {
      if (Clock::now() > until) return;
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    Connection connection(std::move(fd), at.text());
    connection.greet(options.secret);
    connection.send(
        {MessageType::kDecline, {concat(options.rank), own_host(), concat(::getpid()), why}});
  } catch (const std::exception&) {
    // The reason is printed by this rank in any case.
  }
}

// ---- Being a member ----

struct Member::Impl {
  MemberOptions options;
  std::unique_ptr<Connection> connection;
  FileDescriptor wake;

  mutable std::mutex mutex;  // protects everything below
  std::condition_variable changed;
  std::string out;  // bytes that have not been sent yet
  std::string cause;
  std::map<std::string, std::string> notes;
  std::map<std::string, std::optional<std::string>> answers;  // request -> answer
  int64_t last_request = 0;
  bool left = false, ending = false;
  Clock::time_point lost_since;
  std::function<void(const std::string&)> end;

  std::thread thread;

  void wake_up() const {
    const uint64_t one = 1;
    if (::write(wake.get(), &one, sizeof one) < 0) return;  // it is awake already
  }
};

Member::Member(const MemberOptions& options,
               std::unique_ptr<Connection> connection,
               std::vector<Peer> peers)
    : peers_(std::move(peers)), impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->connection = std::move(connection);
  impl_->wake = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  impl_->thread = std::thread([this] { run(); });
}

Member::~Member() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->wake_up();
  impl_->thread.join();
}

void Member::lose(const std::string& cause) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (lost() || impl_->left) return;
    impl_->cause = cause;
    impl_->lost_since = Clock::now();
    lost_.store(true, std::memory_order_relaxed);
  }
  impl_->changed.notify_all();
}

void Member::take(const Message& message) {
  const std::vector<std::string>& fields = message.fields;
  if (message.type == MessageType::kLost && fields.size() == 1) {
    lose(fields[0]);
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

void Member::run() {
  const std::string rank0 = lost_rank0(peers_[0].host, peers_[0].process);
  const milliseconds lost_after = impl_->options.lost_after;
  Clock::time_point heard = Clock::now(), beat = heard, last_turn = heard;
  std::optional<Clock::time_point> ending_since;
  for (;;) {
    bool open = !lost();
    const Clock::time_point now = Clock::now();
    if (now - last_turn > kOwnGap) heard = now;  // this process was stopped, not the hub
    last_turn = now;
    if (now - beat >= HubState::kBeat) {
      beat = now;
      const std::lock_guard lock(impl_->mutex);
      impl_->out +=
          encode({MessageType::kBeat, {concat(step_.load()), concat(collectives_.load())}});
    }
    bool waits_to_send = false;
    {
      const std::lock_guard lock(impl_->mutex);
      waits_to_send = !impl_->out.empty();
      if (impl_->ending && !ending_since) ending_since = now;
      if (impl_->ending && (!waits_to_send || !open || now - *ending_since > kLastWords)) return;
    }
    if (open && lost_after.count() > 0 && now - heard > lost_after) {
      lose(rank0 +
           string_printf(" has not answered for %.1f s",
                         static_cast<double>(lost_after.count()) / 1000) +
           "; stopped, or cut off from this machine (" + own_host() + ") by the network");
      open = false;
    }
    end_if_overdue(now);
    pollfd fds[] = {{impl_->wake.get(), POLLIN, 0},
                    {open ? impl_->connection->fd() : -1,
                     static_cast<short>(waits_to_send ? POLLIN | POLLOUT : POLLIN),
                     0}};
    ::poll(fds, 2, static_cast<int>(HubState::kBeat.count() / 2));
    uint64_t ignored = 0;
    if (fds[0].revents != 0 && ::read(impl_->wake.get(), &ignored, sizeof ignored) < 0) ignored = 0;
    if (!open) continue;
    try {
      while (const std::optional<Message> message = impl_->connection->receive(milliseconds(0))) {
        heard = Clock::now();
        take(*message);
      }
      if (!send_some()) throw Error(YOKE_UNAVAILABLE, "the connection is broken");
    } catch (const Error&) {
      lose(rank0 + " ended without notice; its own output, or that of its launcher, says more");
    }
  }
}

void Member::end_if_overdue(std::chrono::steady_clock::time_point now) {
  std::function<void(const std::string&)> end;
  std::string cause;
  {
    const std::lock_guard lock(impl_->mutex);
    if (!lost() || impl_->left || !impl_->end || now - impl_->lost_since < kGrace) return;
    end = impl_->end;
    cause = impl_->cause;
  }
  end(cause);
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
              "no answer of the other ranks within " + seconds(timeout) +
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

std::string Member::report_failure(const std::string& error, bool only_lost) {
  std::unique_lock lock(impl_->mutex);
  impl_->out += encode({MessageType::kFailure, {only_lost ? "1" : "0", error}});
  impl_->wake_up();
  if (only_lost) {
    impl_->changed.wait_for(lock, kFirstCause, [&] { return lost(); });
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

void Member::end_after_loss(std::function<void(const std::string& cause)> end) {
  const std::lock_guard lock(impl_->mutex);
  impl_->end = std::move(end);
}

}  // namespace yoke
