#include "core/launch/machine_check.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>

#include "core/base/file_descriptor.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

GetVariable variables(std::map<std::string, std::string> values) {
  return [values](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

// A port of this machine that is in use.
class BusyPort {
 public:
  BusyPort() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    auto* address = reinterpret_cast<sockaddr*>(&here);
    ::bind(fd_.get(), address, size);
    ::listen(fd_.get(), 1);
    ::getsockname(fd_.get(), address, &size);
    number_ = ntohs(here.sin_port);
  }
  std::string number() const { return std::to_string(number_); }

 private:
  FileDescriptor fd_;
  int number_ = 0;
};

TEST(CheckRendezvousAddress, IsOkIfNoneIsSet) {
  EXPECT_EQ(check_rendezvous_address(variables({})).status, MachineFinding::kOk);
}

TEST(CheckRendezvousAddress, NamesTheVariableThatIsMissing) {
  const MachineFinding f = check_rendezvous_address(variables({{"MASTER_ADDR", "127.0.0.1"}}));
  EXPECT_EQ(f.status, MachineFinding::kProblem);
  EXPECT_THAT(f.found, HasSubstr("MASTER_PORT is not set"));
}

TEST(CheckRendezvousAddress, FindsAPortThatIsTaken) {
  const BusyPort busy;
  const auto get = variables({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", busy.number()}});
  const MachineFinding f = check_rendezvous_address(get);
  EXPECT_EQ(f.status, MachineFinding::kProblem);
  EXPECT_THAT(f.found, HasSubstr("Address already in use"));
  EXPECT_THAT(f.fix, HasSubstr("ss -ltnp 'sport = :" + busy.number()));
}

TEST(CheckRendezvousAddress, FindsAPortThatIsFree) {
  std::string number;
  { number = BusyPort().number(); }
  const MachineFinding f =
      check_rendezvous_address(variables({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", number}}));
  EXPECT_EQ(f.status, MachineFinding::kOk) << f.found;
}

TEST(CheckRendezvousAddress, KnowsAnotherMachine) {
  const auto get = variables({{"MASTER_ADDR", "192.0.2.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_THAT(check_rendezvous_address(get).found, HasSubstr("another machine"));
}

TEST(CheckRendezvousAddress, RefusesANameWithoutAddressAndAPortOutOfRange) {
  const MachineFinding name = check_rendezvous_address(
      variables({{"MASTER_ADDR", "no-such-host.invalid"}, {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(name.status, MachineFinding::kProblem);
  EXPECT_THAT(name.found, HasSubstr("no-such-host.invalid:29500 has no address"));
  const MachineFinding port =
      check_rendezvous_address(variables({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "0"}}));
  EXPECT_THAT(port.found, HasSubstr("allowed: 1 to 65535"));
}

TEST(CheckHostName, FindsAnInterfaceThatIsNotThere) {
  EXPECT_EQ(check_host_name(variables({{"GLOO_SOCKET_IFNAME", "lo"}})).status, MachineFinding::kOk);
  const MachineFinding f = check_host_name(variables({{"GLOO_SOCKET_IFNAME", "nope0"}}));
  EXPECT_EQ(f.status, MachineFinding::kProblem);
  EXPECT_THAT(f.found, HasSubstr("nope0, but there is no such interface"));
}

TEST(CheckCores, WarnsOfMoreThreadsThanCores) {
  EXPECT_EQ(check_cores(variables({{"OMP_NUM_THREADS", "100000"}})).status,
            MachineFinding::kWarning);
}

TEST(CheckSharedMemory, WarnsOfAFolderThatIsNotThere) {
  const MachineFinding f = check_shared_memory("/no/such/folder");
  EXPECT_EQ(f.status, MachineFinding::kWarning);
  EXPECT_THAT(f.found, HasSubstr("No such file or directory"));
}

TEST(CheckTransport, TriesToShareMemory) {
  EXPECT_THAT(check_transport().found, HasSubstr("shared memory between ranks"));
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const MachineFinding f = check_transport();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(f.status, MachineFinding::kWarning);
  EXPECT_THAT(f.found,
              HasSubstr("Gloo, which is slower within a machine, because no shared memory"));
  EXPECT_THAT(f.found, HasSubstr("ulimit -f"));
}

TEST(CheckCompiler, WarnsOfOneThatCannotBeStarted) {
  EXPECT_EQ(check_compiler("no-such-compiler").status, MachineFinding::kWarning);
}

TEST(CheckLoopback, FindsAConnection) {
  EXPECT_EQ(check_loopback().status, MachineFinding::kOk) << check_loopback().found;
}

}  // namespace
}  // namespace yoke
