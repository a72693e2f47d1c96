#include "core/launch/pair_probe.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "core/base/network.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr const char* kHere = "127.0.0.1";

TEST(PairProbe, MeasuresTowardsAServer) {
  const PairServer server(kHere, "token");
  for (int i = 0; i < 2; ++i) {
    const PairResult r = measure_pair(kHere, server.port(), "token");
    EXPECT_EQ(r.fault, "");
    EXPECT_GT(r.round_trip, 0);
    EXPECT_GT(r.bytes_per_second, 0);
  }
}

TEST(PairProbe, OfAStrangerIsNotAnswered) {
  const PairServer server(kHere, "token");
  for (const char* other : {"tokem", "x", "tok!n and more"})
    EXPECT_NE(measure_pair(kHere, server.port(), other).fault, "") << other;
  EXPECT_EQ(measure_pair(kHere, server.port(), "token").fault, "");
}

TEST(PairProbe, NamesAnAddressWithoutServer) {
  int port = 0;
  { port = PairServer(kHere, "token").port(); }
  EXPECT_EQ(measure_pair(kHere, port, "token").fault, "Connection refused");
  EXPECT_THROW(PairServer("no-such-host.invalid", "token"), Error);
}

// The server must not wait for a client that says nothing.
TEST(PairProbe, EndsWhileAClientIsSilent) {
  std::string fault;
  FileDescriptor client(::socket(AF_INET, SOCK_STREAM, 0));
  const PairServer server(kHere, "token");
  const SocketAddress at = resolve(kHere, server.port());
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&at.socket), at.size), 0);
}

}  // namespace
}  // namespace yoke
