// The handshake with the hub of the machines; hub_state_test.cpp has that of the ranks.
#include "core/control/handshakes.hpp"

#include <gmock/gmock.h>

#include "tests/unit/control/machines.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::MachinesParty;

TEST(Handshakes, MachinesProveThatTheyKnowTheSecret) {
  const Secret secret(std::string(32, 'a'));
  MachinesParty p(1, 2, {.secret = secret});
  p.join(1);
  EXPECT_THAT(p.last(1, MessageType::kRefused).at(0),
              HasSubstr("this machine does not know the secret"));
  EXPECT_TRUE(p.wants_closed(101));
  p.close(1);
  p.hub->connected(300, "", "", p.now);
  p.say(300, MessageType::kHello, {kControlProtocol, "nonce"});
  std::string nonce;
  for (const auto& [connection, message] : p.sent) {
    if (connection == 300) nonce = message.fields.at(0);
  }
  p.say(300, MessageType::kProof, {secret.proof("member", nonce, "nonce")});
  p.say(300,
        MessageType::kJoin,
        {"job", "0", "9", "node0", "10", "", pack_introduction(MachinesParty::facts)});
  p.say(300, MessageType::kReady, {});
  EXPECT_THAT(p.hub->missing(),
              HasSubstr("refused: 1 connection from 10.0.0.9 without the secret"));
}

}  // namespace
}  // namespace yoke
