// The thread waits in poll() for the listening socket and all connections, passes what it reads to
// a state machine, and sends what that decides. All sockets are non-blocking: a member that does
// not read cannot delay the others.
//
// Anyone may connect to an open port, so what strangers can cost is limited. At most 64
// connections, or two for each rank if that is more, may wait to join, for 3 seconds each. A frame
// may have 1 KiB before the proof of the secret and 4 MiB after it. If more connections arrive, the
// oldest is closed, so that a rank, which joins within milliseconds, always gets in.
#include "core/control/hub.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/control/listening.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTurn{100};  // longest wait of the loop; HubLogic wants ticks
constexpr milliseconds kLinger{5000};
constexpr milliseconds kClosing{1000};  // time to send the last words of a connection
constexpr std::chrono::seconds kBetweenReports{5};
constexpr size_t kReadBytes = 65536;

}  // namespace

class Hub::Server {
 public:
  Server(FileDescriptor listener,
         std::unique_ptr<HubLogic> logic,
         std::function<void(const std::string&)> progress)
      : listener_(std::move(listener)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        logic_(std::move(logic)),
        progress_(std::move(progress)) {
    if (!wake_.open()) throw Error(YOKE_RESOURCE_EXHAUSTED, "too many open files for the hub");
    ::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  }

  void run() {
    Clock::time_point report = Clock::now() + kBetweenReports;
    for (;;) {
      turn();
      const Clock::time_point now = Clock::now();
      if (const auto text = take_refusal()) logic_->refuse(*text);
      logic_->tick(now);
      perform();
      if (now >= report) {
        report = now + kBetweenReports;
        if (const std::string text = logic_->missing(); progress_ && !text.empty()) progress_(text);
      }
      if (may_end(now)) return;
    }
  }

  void refuse(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      refusal_ = text;
    }
    wake();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_since_ = Clock::now();
    }
    wake();
  }

 private:
  struct Socket {
    FileDescriptor fd;
    FrameReader reader{0};
    std::string out;                             // bytes that have not been sent yet
    std::optional<Clock::time_point> closing{};  // close once `out` is empty, or kClosing later
  };

  void wake() {
    const uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof one) < 0) return;  // it is awake already
  }

  std::optional<std::string> take_refusal() {
    const std::lock_guard lock(mutex_);
    return std::exchange(refusal_, std::nullopt);
  }

  bool may_end(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    if (!ending_since_) return false;
    bool sent = true;
    for (const auto& [id, socket] : sockets_) sent = sent && socket.out.empty();
    return (logic_->finished() && sent) || now - *ending_since_ > kLinger;
  }

  void turn() {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0},
                            {Clock::now() < accept_again_ ? -1 : listener_.get(), POLLIN, 0}};
    std::vector<int> ids;
    for (const auto& [id, socket] : sockets_) {
      fds.push_back(
          {socket.fd.get(), static_cast<short>(socket.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      ids.push_back(id);
    }
    if (::poll(fds.data(), fds.size(), static_cast<int>(kTurn.count())) > 0) {
      uint64_t ignored = 0;
      if (fds[0].revents != 0 && ::read(wake_.get(), &ignored, sizeof ignored) < 0) ignored = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        if ((fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) receive(ids[i]);
      }
      if (fds[1].revents != 0) accept();
    }
    perform();
    const Clock::time_point now = Clock::now();
    for (const int id : ids) {
      const auto found = sockets_.find(id);
      if (found == sockets_.end() || !found->second.closing) continue;
      if (found->second.out.empty() || now - *found->second.closing > kClosing) close(id);
    }
  }

  void accept() {
    for (;;) {
      FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.open()) {
        // Without free descriptors the listener stays readable; a pause keeps the thread from
        // spinning.
        if (errno == EMFILE || errno == ENFILE) accept_again_ = Clock::now() + kTurn;
        return;
      }
      if (logic_->has_too_many_strangers()) close(logic_->oldest_stranger());
      configure_connection(fd.get(), logic_->lost_after());
      const int id = ++last_id_;
      logic_->connected(id, far_address(fd.get()), near_address(fd.get()), Clock::now());
      sockets_[id].fd = std::move(fd);
    }
  }

  void receive(int id) {
    const auto found = sockets_.find(id);
    if (found == sockets_.end()) return;
    Socket& socket = found->second;
    char buffer[kReadBytes];
    const ssize_t n = ::recv(socket.fd.get(), buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      close(id);
      return;
    }
    if (socket.closing) return;  // nothing more is wanted from it
    socket.reader.append(buffer, static_cast<size_t>(n));
    try {
      for (;;) {
        // A message may prove the connection, which raises the limit.
        socket.reader.set_limit(logic_->frame_limit(id));
        const std::optional<Message> message = socket.reader.next();
        if (!message) break;
        logic_->received(id, *message, Clock::now());
      }
    } catch (const Error&) {
      close(id);
    }
  }

  // Carries out what the state has decided.
  void perform() {
    for (HubAction& action : logic_->take_actions()) {
      const auto found = sockets_.find(action.connection);
      if (found == sockets_.end()) continue;
      if (action.close && !found->second.closing) found->second.closing = Clock::now();
      found->second.out += action.bytes;
    }
    std::vector<int> broken;
    for (auto& [id, socket] : sockets_) {
      if (!send_some(socket)) broken.push_back(id);
    }
    for (const int id : broken) read_last_words(id);
  }

  // Closes a connection whose other end is closed, and before that takes what was sent on it: a
  // rank that fails says why and ends.
  void read_last_words(int id) {
    constexpr int kMostReads = 1000;
    sockets_.at(id).out.clear();
    for (int i = 0; i < kMostReads && sockets_.count(id) > 0; ++i) receive(id);
    close(id);
  }

  // Returns false if the connection is broken.
  static bool send_some(Socket& socket) {
    while (!socket.out.empty()) {
      const ssize_t n = ::send(socket.fd.get(), socket.out.data(), socket.out.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      socket.out.erase(0, static_cast<size_t>(n));
    }
    return true;
  }

  void close(int id) {
    if (sockets_.erase(id) > 0) logic_->closed(id, Clock::now());
  }

  FileDescriptor listener_, wake_;
  const std::unique_ptr<HubLogic> logic_;
  const std::function<void(const std::string&)> progress_;
  std::map<int, Socket> sockets_;
  int last_id_ = 0;
  Clock::time_point accept_again_{};
  std::mutex mutex_;  // protects the members below
  std::optional<std::string> refusal_;
  std::optional<Clock::time_point> ending_since_;
};

Hub::Hub(FileDescriptor listener,
         std::unique_ptr<HubLogic> logic,
         std::function<void(const std::string&)> progress)
    : server_(std::make_unique<Server>(std::move(listener), std::move(logic), std::move(progress))),
      thread_([this] { server_->run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "yoke-hub");
}

Hub::Hub(FileDescriptor listener,
         HubOptions options,
         std::function<void(const std::string&)> progress)
    : Hub(
          std::move(listener),
          std::make_unique<HubState>(std::move(options), Clock::now()),
          !progress ? std::move(progress) : [progress](const std::string& text) {
            progress("waiting for the other ranks: " + text);
          }) {}

Hub::~Hub() {
  server_->end();
  thread_.join();
}

void Hub::refuse(const std::string& text) {
  server_->refuse(text);
}

}  // namespace yoke
