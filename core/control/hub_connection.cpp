#include "core/control/hub_connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};
constexpr milliseconds kGreeting{3000};  // a hub answers a greeting within this time

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_INVALID_ARGUMENT, text);
}

}  // namespace

void HubConnection::send(const Message& message) {
  const std::string bytes = encode(message);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd writable{fd_.get(), POLLOUT, 0};
      if (::poll(&writable, 1, static_cast<int>(kGreeting.count())) != 1) fail("no answer");
    } else if (errno != EINTR) {
      closed_ = true;
      fail(std::strerror(errno));
    }
  }
}

std::optional<Message> HubConnection::receive(milliseconds limit) {
  try {
    if (auto message = reader_.next()) return message;
    pollfd readable{fd_.get(), POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(limit.count())) != 1) return std::nullopt;
    char buffer[65536];
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    closed_ = n <= 0;
    if (n <= 0) fail(n == 0 ? "it closed the connection" : std::strerror(errno));
    reader_.append(buffer, static_cast<size_t>(n));
    return reader_.next();
  } catch (const Error& e) {
    if (e.code() == YOKE_UNAVAILABLE) throw;
    fail(e.what());
  }
}

void HubConnection::greet(const Secret& secret) {
  const std::string nonce = make_nonce();
  send({MessageType::kHello, {kControlProtocol, nonce}});
  const Message challenge = expect(MessageType::kChallenge, 2);
  const std::string &hub_nonce = challenge.fields[0], &proof = challenge.fields[1];
  const std::string all = "; give all " + noun_ + "s the same YOKE_SECRET_FILE";
  const std::string hub = noun_ + " 0 at " + place_;
  if (proof.empty() && secret.given()) {
    refuse("YOKE_SECRET_FILE is set for this " + noun_ + ", but " + noun_ +
           " 0 runs without a secret; set it for all " + noun_ + "s");
  }
  if (!proof.empty() && !secret.given())
    refuse(hub + " requires the secret of the run; set YOKE_SECRET_FILE for all " + noun_ + "s");
  if (!same_proof(proof, secret.proof("hub", hub_nonce, nonce)))
    refuse(hub + " has another secret than this " + noun_ + all);
  send({MessageType::kProof, {secret.proof("member", hub_nonce, nonce)}});
}

Message HubConnection::expect(MessageType type, size_t num_fields) {
  const auto until = Clock::now() + kGreeting;
  for (;;) {
    const std::optional<Message> message = receive(kSlice);
    if (message && message->type == MessageType::kRefused && message->fields.size() == 1)
      refuse(message->fields[0]);
    if (message && message->type == type && message->fields.size() == num_fields) return *message;
    if (message) fail("it sends something else");
    if (Clock::now() > until)
      fail("no answer to a greeting within " + concat(kGreeting.count() / 1000, " s"));
  }
}

void HubConnection::fail(const std::string& why) const {
  throw Error(
      YOKE_UNAVAILABLE,
      "what listens at " + place_ + " does not behave like " + noun_ + " 0 of a run (" + why + ")");
}

}  // namespace yoke
