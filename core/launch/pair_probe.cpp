// A connection carries the token, then kPings single bytes that the server returns one by one, then
// streams that it discards. The sender counts only the bytes that the other machine has
// acknowledged, so that it can stop after kStream on a slow network and still know its speed.
#include "core/launch/pair_probe.hpp"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/base/network.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kPings = 50;
constexpr size_t kBytes = size_t{8} << 20;
constexpr size_t kBlock = size_t{256} << 10;
// Longer than the second after which Linux repeats the first packet of a connection.
constexpr milliseconds kConnect{2500};
constexpr milliseconds kExchange{3000};  // time of all round trips
constexpr int kStreams = 3;  // the fastest counts, because a busy machine delays some of them
constexpr milliseconds kStream{2000};
constexpr milliseconds kStreamAgain{300};  // a stream that takes longer is not repeated
constexpr milliseconds kServe{9000};       // time of a whole measurement

std::string reason(int error = errno) {
  return std::strerror(error);
}

// Waits until the socket is ready for `events`. Returns false at the deadline.
bool wait_for(int socket, int16_t events, Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  pollfd one{socket, events, 0};
  return left > 0 && ::poll(&one, 1, static_cast<int>(left)) == 1;
}

FileDescriptor connect_within(const SocketAddress& at, milliseconds limit, std::string& fault) {
  FileDescriptor fd(::socket(at.socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = 0;
  socklen_t size = sizeof error;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.socket), at.size) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      if (!wait_for(fd.get(), POLLOUT, Clock::now() + limit)) {
        fault = "no answer";
        return {};
      }
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) {
    fault = reason(error);
    return {};
  }
  const int yes = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return fd;
}

// Sends all bytes, or returns false at the deadline or if the connection breaks.
bool send_all(int socket, const std::string& bytes, Clock::time_point until) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EAGAIN || !wait_for(socket, POLLOUT, until)) {
      return false;
    }
  }
  return true;
}

// Returns the median time in which one byte reaches the other machine and returns.
double time_round_trips(int socket, std::string& fault) {
  const auto until = Clock::now() + kExchange;
  std::vector<double> seconds;
  for (char byte = 'p'; static_cast<int>(seconds.size()) < kPings;) {
    const auto begin = Clock::now();
    if (!send_all(socket, std::string(1, byte), until) || !wait_for(socket, POLLIN, until) ||
        ::recv(socket, &byte, 1, 0) != 1) {
      // A slow network has answered some of them.
      if (!seconds.empty() && Clock::now() >= until) break;
      fault = concat("a connection was made, but nothing came back after ", seconds.size()) +
              " messages";
      return 0;
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// Sends kBytes. Returns the bytes per second that the other machine acknowledges.
double time_one_stream(int socket, std::string& fault) {
  const std::vector<char> block(kBlock, 'b');
  const auto begin = Clock::now(), until = begin + kStream;
  size_t sent = 0;
  int waiting = 0;  // bytes that are not acknowledged yet
  while (Clock::now() < until) {
    if (sent < kBytes) {
      const ssize_t n = ::send(socket, block.data(), std::min(kBlock, kBytes - sent), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) {
        fault = "the connection broke: " + reason();
        return 0;
      }
      if (n < 0) wait_for(socket, POLLOUT, until);
      if (n > 0) sent += static_cast<size_t>(n);
    } else if (::ioctl(socket, SIOCOUTQ, &waiting) == 0 && waiting > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
      break;
    }
  }
  ::ioctl(socket, SIOCOUTQ, &waiting);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double rate = (static_cast<double>(sent) - waiting) / seconds;
  if (rate <= 0) fault = "small messages arrive, but large ones do not (is the MTU too large?)";
  return rate;
}

double time_streams(int socket, std::string& fault) {
  double best = 0;
  for (int i = 0; i < kStreams && fault.empty(); ++i) {
    const auto begin = Clock::now();
    best = std::max(best, time_one_stream(socket, fault));
    if (Clock::now() - begin > kStreamAgain) break;
  }
  return best;
}

}  // namespace

PairServer::PairServer(const std::string& address, const std::string& token)
    : token_(token), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const SocketAddress at = resolve(address, 0);
  std::string fault = at.fault;
  // An address that others use for this machine need not be one of its own.
  if (fault.empty())
    listener_ = is_own_address(at) ? listen_on(at, fault) : listen_everywhere(at, fault);
  if (!listener_.open() || !wake_.open())
    throw Error(YOKE_UNAVAILABLE, concat("this machine cannot listen at ", address, ": ", fault));
  ::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  sockaddr_storage here{};
  socklen_t size = sizeof here;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&here), &size);
  port_ = ntohs(here.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(here).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(here).sin_port);
  thread_ = std::thread([this] { run(); });
}

PairServer::~PairServer() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

void PairServer::run() {
  for (;;) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    const FileDescriptor fd(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.open()) serve(fd.get());
  }
}

void PairServer::serve(int socket) const {
  const auto until = Clock::now() + kServe;
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  std::string received;
  int echoed = 0;
  std::vector<char> buffer(kBlock);
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {socket, POLLIN, 0}};
    if (left <= 0 || ::poll(fds, 2, static_cast<int>(left)) <= 0 || fds[0].revents != 0) return;
    const bool greeted = received.size() == token_.size();
    const size_t wanted = !greeted          ? token_.size() - received.size()
                          : echoed < kPings ? static_cast<size_t>(kPings - echoed)
                                            : buffer.size();
    const ssize_t n = ::recv(socket, buffer.data(), wanted, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return;
    const std::string part(buffer.data(), greeted ? 0 : static_cast<size_t>(n));
    received += part;
    if (received != token_.substr(0, received.size())) return;
    if (!greeted || echoed >= kPings) continue;
    echoed += static_cast<int>(n);
    if (!send_all(socket, std::string(buffer.data(), static_cast<size_t>(n)), until)) return;
  }
}

PairResult measure_pair(const std::string& address, int port, const std::string& token) {
  PairResult result;
  const FileDescriptor fd = connect_within(resolve(address, port), kConnect, result.fault);
  if (!fd.open()) return result;
  if (!send_all(fd.get(), token, Clock::now() + kConnect)) {
    result.fault = "the connection broke: " + reason();
    return result;
  }
  result.round_trip = time_round_trips(fd.get(), result.fault);
  if (result.fault.empty()) result.bytes_per_second = time_streams(fd.get(), result.fault);
  return result;
}

}  // namespace yoke
