#include "core/control/machine_link.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <thread>

#include "core/base/exit_code.hpp"
#include "core/control/hub.hpp"
#include "core/control/hub_connection.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

using std::chrono::seconds;

class MachineLinkTest : public ::testing::Test {
 protected:
  FileDescriptor listen() {
    std::string fault;
    FileDescriptor listener = listen_for_members(at_, true, fault);
    EXPECT_EQ(fault, "");
    return listener;
  }
  std::unique_ptr<MachineLink> link(seconds join_timeout, seconds lost_after = seconds(2)) {
    MachineLinkOptions options;
    options.lost_after = lost_after;
    options.at = at_;
    options.machine = 1;
    options.machines = 2;
    options.join_timeout = join_timeout;
    options.print = [this](const std::string& text) { printed_ += text; };
    return std::make_unique<MachineLink>(options);
  }
  static MachineOrder next_order(MachineLink& link) {
    for (;;) {
      if (const auto order = link.take_order()) return *order;
      pollfd fd{link.order_fd(), POLLIN, 0};
      ::poll(&fd, 1, -1);
    }
  }

  testing::TempFolder folder_;
  ControlAddress at_{folder_ / "socket", "", 0};
  std::string printed_;
};

// A listener that never answers: the kernel completes the connections.
TEST_F(MachineLinkTest, TakesASilentListenerForAnotherProgram) {
  const FileDescriptor silent = listen();
  const auto link = this->link(seconds(600));
  link->ready();
  const MachineOrder order = next_order(*link);
  EXPECT_EQ(order.exit_code, kExitUsage);
  EXPECT_NE(order.text.find("it belongs to another program"), std::string::npos) << order.text;
}

// Machine 0 is frozen, or starts again, after the link has been accepted.
TEST_F(MachineLinkTest, WaitsForAHubThatItKnows) {
  MachinesOptions options;
  options.min = options.max = 2;
  auto hub = std::make_unique<Hub>(
      listen(),
      std::make_unique<MachinesState>(options, std::chrono::steady_clock::now()),
      [](const std::string&) {});
  const auto link = this->link(seconds(15));  // three answers that do not come take nine seconds
  link->ready();
  std::this_thread::sleep_for(seconds(2));  // beats arrive
  hub.reset();
  std::filesystem::remove(at_.socket);
  const FileDescriptor silent = listen();
  const MachineOrder order = next_order(*link);
  EXPECT_EQ(order.exit_code, kExitRankLost) << order.text;
  EXPECT_NE(order.text.find("gave up after 15 s"), std::string::npos) << order.text;
}

// Without lost_after the hub keeps the connection of a machine that has lost power for minutes. Its
// next launcher must wait for longer than the ten seconds that suffice otherwise.
TEST_F(MachineLinkTest, WithoutLostAfterWaitsForItsNumberUntilJoinTimeout) {
  MachinesOptions options;
  options.min = options.max = 2;
  options.lost_after = seconds(0);
  const Hub hub(listen(),
                std::make_unique<MachinesState>(options, std::chrono::steady_clock::now()),
                [](const std::string&) {});
  HubConnection earlier(connect_to_hub(at_, seconds(0)).fd, at_.text(), "machine");
  earlier.greet({});
  earlier.send({MessageType::kJoin, {"", "1", "2", "node1", "812", "", pack_introduction({})}});
  ASSERT_TRUE(earlier.receive(seconds(60)));  // a beat: the hub has accepted it
  const auto link = this->link(seconds(14), seconds(0));
  link->ready();
  const MachineOrder order = next_order(*link);
  EXPECT_NE(order.text.find("gave up after 14 s"), std::string::npos) << order.text;
}

}  // namespace
}  // namespace yoke
