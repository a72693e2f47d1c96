#include "core/control/handshakes.hpp"

#include <algorithm>
#include <utility>

#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kStrangerFrame = 1024;
constexpr size_t kJoinFrame = size_t{4} << 20;
constexpr size_t kMemberFrame = size_t{64} << 20;
constexpr std::chrono::milliseconds kHandshake{3000};  // time for a connection to join

void turn_away(int connection, const std::string& text, std::vector<HubAction>& out) {
  out.push_back({connection, encode({MessageType::kRefused, {text}})});
  out.push_back({connection, "", true});
}

}  // namespace

Handshakes::Handshakes(Secret secret, int32_t members, std::string noun)
    : secret_(std::move(secret)), members_(members), noun_(std::move(noun)) {}

void Handshakes::connected(int connection, const std::string& peer, Time now) {
  Connection& c = connections_[connection] = Connection();
  c.peer = peer;
  c.since = now;
}

void Handshakes::received(int connection, const Message& message, std::vector<HubAction>& actions) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Connection& c = found->second;
  if (!c.greeted) {
    greet(connection, c, message, actions);
    return;
  }
  c.proved = message.type == MessageType::kProof && message.fields.size() == 1 &&
             same_proof(message.fields[0], c.proof);
  if (!c.proved)
    turn_away(connection, "this " + noun_ + " does not know the secret of the run", actions);
}

void Handshakes::greet(int connection,
                       Connection& c,
                       const Message& message,
                       std::vector<HubAction>& out) {
  if (message.type != MessageType::kHello || message.fields.size() != 2) {
    out.push_back({connection, "", true});
    return;
  }
  if (message.fields[0] != kControlProtocol) {
    turn_away(connection,
              concat(noun_, " 0 speaks '", kControlProtocol, "', this ", noun_, " '") +
                  message.fields[0] + "'; install the same version of Yoke on all machines",
              out);
    return;
  }
  c.greeted = true;
  const std::string nonce = make_nonce();
  c.proof = secret_.proof("member", nonce, message.fields[1]);
  out.push_back(
      {connection,
       encode({MessageType::kChallenge, {nonce, secret_.proof("hub", nonce, message.fields[1])}})});
}

bool Handshakes::proved(int connection) const {
  const auto found = connections_.find(connection);
  return found != connections_.end() && found->second.proved;
}

void Handshakes::joined(int connection) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) found->second.joined = true;
}

void Handshakes::closed(int connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  if (!found->second.proved && found->second.greeted) ++rejected_[found->second.peer];
  connections_.erase(found);
}

void Handshakes::tick(Time now, std::vector<HubAction>& actions) const {
  for (const auto& [connection, c] : connections_) {
    if (!c.joined && now - c.since > kHandshake) actions.push_back({connection, "", true});
  }
}

size_t Handshakes::frame_limit(int connection) const {
  if (!proved(connection)) return kStrangerFrame;
  return connections_.at(connection).joined ? kMemberFrame : kJoinFrame;
}

bool Handshakes::has_too_many_strangers() const {
  const auto waiting = std::count_if(
      connections_.begin(), connections_.end(), [](auto& c) { return !c.second.joined; });
  return waiting >= std::max(64, 2 * members_);
}

int Handshakes::oldest_stranger() const {
  int oldest = -1;
  for (const auto& [connection, c] : connections_) {
    if (!c.joined && (oldest < 0 || c.since < connections_.at(oldest).since)) oldest = connection;
  }
  return oldest;
}

std::string Handshakes::refused_text() const {
  std::string text;
  for (const auto& [address, count] : rejected_) {
    text += concat("; refused: ", count, count == 1 ? " connection" : " connections") +
            (address.empty() ? "" : " from " + address) + " without the secret of the run";
  }
  return text;
}

}  // namespace yoke
