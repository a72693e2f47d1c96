// The hub and its members over real sockets, as threads of this process.
#include "core/control/hub.hpp"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include <climits>
#include <future>
#include <system_error>
#include <thread>

#include "core/control/decline.hpp"
#include "core/control/hub_connection.hpp"
#include "core/control/member.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HubTest : public ::testing::Test {
 protected:
  std::unique_ptr<Hub> start(int32_t ranks, HubOptions options = {}) {
    std::string fault;
    FileDescriptor listener = listen_for_members(at_, true, fault);
    EXPECT_EQ(fault, "");
    options.world_size = ranks;
    options.host = "here";
    options.process = "1";
    return std::make_unique<Hub>(
        std::move(listener), options, std::function<void(const std::string&)>());
  }
  std::unique_ptr<Member> join(int32_t rank,
                               int32_t ranks,
                               MemberOptions options = {},
                               const Introduction& facts = {}) {
    options.rank = rank;
    options.world_size = ranks;
    return Member::join([this] { return at_; }, options, facts);
  }
  // Joins all ranks, each from a thread.
  std::vector<std::unique_ptr<Member>> join_all(int32_t ranks, const MemberOptions& options = {}) {
    std::vector<std::future<std::unique_ptr<Member>>> joining;
    for (int32_t r = 0; r < ranks; ++r)
      joining.push_back(
          std::async(std::launch::async, [=, this] { return join(r, ranks, options); }));
    std::vector<std::unique_ptr<Member>> members;
    for (auto& j : joining) members.push_back(j.get());
    return members;
  }
  std::string refusal(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return concat(e.code(), ": ", e.what());
    }
    return "nothing was refused";
  }

  testing::TempFolder folder_;
  ControlAddress at_{folder_ / "socket", "", 0};
};

TEST_F(HubTest, MembersMeetAndShareKeysAndNotes) {
  const auto hub = start(3);
  auto members = join_all(3);
  EXPECT_EQ(members[1]->peers().size(), 3u);
  auto waiting = std::async(std::launch::async, [&] {
    return members[2]->request(MessageType::kGet, {"key"}, seconds(60));
  });
  members[0]->request(MessageType::kSet, {"key", "value"}, seconds(60));
  EXPECT_EQ(waiting.get(), "value");
  members[1]->post("note", "7", seconds(60));
  for (const auto& m : members) EXPECT_EQ(m->peek("note").value_or(""), "7");
  EXPECT_THAT(refusal([&] { members[0]->request(MessageType::kGet, {"no"}, milliseconds(50)); }),
              HasSubstr("no answer of the other ranks within 0.05 s"));
  for (const auto& m : members) m->leave();
}

TEST_F(HubTest, MembersLearnThatOneIsGone) {
  const auto hub = start(3);
  auto members = join_all(3);
  members[2].reset();
  for (const int r : {0, 1}) {
    while (!members[r]->lost()) std::this_thread::yield();
    EXPECT_THAT(members[r]->cause(), StartsWith("rank 2 ("));
    EXPECT_THROW(members[r]->require_alive(), Error);
    EXPECT_FALSE(members[r]->exit_code_of_cause());
    EXPECT_THAT(refusal([&] { members[r]->request(MessageType::kGet, {"no"}, seconds(60)); }),
                HasSubstr("rank 2 ("));
    EXPECT_THAT(members[r]->report_failure("connection closed", Member::Failure::kLost, 5),
                StartsWith("rank 2 ("));
  }
}

TEST_F(HubTest, MembersLearnTheErrorOfARank) {
  const auto hub = start(2);
  auto members = join_all(2);
  EXPECT_EQ(members[1]->report_failure("the disk is full", Member::Failure::kOwn, 1), "");
  members[1].reset();
  while (!members[0]->lost()) std::this_thread::yield();
  EXPECT_THAT(members[0]->cause(), HasSubstr("failed: the disk is full"));
  EXPECT_EQ(members[0]->exit_code_of_cause(), 1);
}

TEST_F(HubTest, MembersLearnThatRank0IsGone) {
  auto hub = start(2);
  auto members = join_all(2);
  members[0].reset();
  while (!members[1]->lost()) std::this_thread::yield();
  EXPECT_THAT(members[1]->cause(), StartsWith("rank 0 ("));
}

TEST_F(HubTest, AMemberThatDoesNotEndAfterALossIsEnded) {
  const auto hub = start(2);
  auto members = join_all(2);
  std::promise<std::string> ended;
  members[0]->set_duties({[&, once = false](const std::string& cause) mutable {
                            if (!std::exchange(once, true)) ended.set_value(cause);
                          },
                          {},
                          nullptr});
  members[1].reset();
  EXPECT_THAT(ended.get_future().get(), StartsWith("rank 1 ("));
  members[0]->set_duties({});
}

TEST_F(HubTest, MembersReportAboutThemselvesWhenAskedAndWhenTheRunHangs) {
  const auto hub = start(2);
  auto members = join_all(2);
  std::promise<std::string> asked, hangs;
  std::atomic<bool> wanted{true};
  members[0]->set_duties({{}, [&](const std::string& cause) { asked.set_value(cause); }, &wanted});
  EXPECT_EQ(asked.get_future().get(), "SIGQUIT");
  members[0]->set_duties({{}, [&](const std::string& cause) { hangs.set_value(cause); }, nullptr});
  members[1]->report_failure("not finished within 60 s", Member::Failure::kTimeout, 5);
  EXPECT_THAT(hangs.get_future().get(), HasSubstr("not finished within 60 s"));
  members[0]->set_duties({});
}

// A limit of the user or of a container may forbid further threads.
TEST_F(HubTest, MembersReportWithoutAFurtherThread) {
  const auto hub = start(1);
  const auto member = join(0, 1);
  std::promise<std::string> asked;
  std::atomic<bool> wanted{true};
  pthread_attr_t usual, impossible;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&impossible), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&impossible, size_t{1} << 60), 0);  // no address space
  ASSERT_EQ(::pthread_setattr_default_np(&impossible), 0);
  EXPECT_THROW(std::thread([] {}).join(), std::system_error);
  member->set_duties({{}, [&](const std::string& cause) { asked.set_value(cause); }, &wanted});
  EXPECT_EQ(asked.get_future().get(), "SIGQUIT");
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  member->set_duties({});
  EXPECT_FALSE(member->lost()) << member->cause();
}

// The disk may be slow.
TEST_F(HubTest, ARankThatWritesAReportSendsBeats) {
  const auto hub = start(2);
  auto members = join_all(2);
  std::promise<void> started, end;
  std::atomic<bool> wanted{true};
  const auto report = [&](const std::string&) {
    started.set_value();
    end.get_future().wait();
  };
  members[1]->set_duties({{}, report, &wanted});
  started.get_future().wait();
  std::this_thread::sleep_for(seconds(3));  // longer than lost_after
  EXPECT_FALSE(members[0]->lost()) << members[0]->cause();
  end.set_value();
  members[1]->set_duties({});
  for (const auto& m : members) m->leave();
}

TEST_F(HubTest, AMemberThatLeavesInOrderIsNotMissed) {
  const auto hub = start(2);
  auto members = join_all(2);
  members[1]->leave();
  members[1].reset();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(members[0]->lost());
  members[0]->leave();
}

TEST_F(HubTest, TheWaitForOtherRanksCanBeCancelledAndEnds) {
  const auto hub = start(2);
  std::atomic<bool> stop{true};
  MemberOptions options;
  options.cancel = &stop;
  EXPECT_THAT(refusal([&] { join(0, 2, options); }), StartsWith(concat(int{YOKE_CANCELLED}, ":")));
}

TEST_F(HubTest, AbsentHubIsNamed) {
  MemberOptions options;
  options.join_timeout = milliseconds(300);
  EXPECT_THAT(refusal([&] { join(1, 2, options); }),
              HasSubstr("rank 0 cannot be reached at " + at_.socket));
}

TEST_F(HubTest, SecretsMustBeEqual) {
  HubOptions with_secret;
  with_secret.secret = Secret("0123456789abcdef");
  MemberOptions none, wrong, right;
  wrong.secret = Secret("0123456789abcdeX");
  right.secret = with_secret.secret;
  {
    const auto hub = start(1, with_secret);
    EXPECT_THAT(refusal([&] { join(0, 1, none); }), HasSubstr("requires the secret"));
    EXPECT_THAT(refusal([&] { join(0, 1, wrong); }), HasSubstr("another secret"));
    join(0, 1, right)->leave();
  }
  ::unlink(at_.socket.c_str());
  const auto hub = start(1);
  EXPECT_THAT(refusal([&] { join(0, 1, right); }), HasSubstr("rank 0 runs without a secret"));
  join(0, 1)->leave();
}

TEST_F(HubTest, RanksThatDifferAreRefusedOnAllSides) {
  const auto hub = start(2);
  auto other = std::async(std::launch::async, [&] {
    return refusal([&] { join(1, 2, {}, {{"seed", "2", ""}}); });
  });
  const std::string mine = refusal([&] { join(0, 2, {}, {{"seed", "1", ""}}); });
  EXPECT_THAT(mine, HasSubstr("seed: rank 0"));
  EXPECT_EQ(other.get(), mine);
}

TEST_F(HubTest, ARankThatDeclinesEndsTheWaitOfTheOthers) {
  const auto hub = start(3);
  auto waiting = std::async(std::launch::async, [&] { return refusal([&] { join(0, 3); }); });
  decline_run({.at = at_, .rank = 2, .world_size = 3}, "no such file: data.bin");
  EXPECT_THAT(waiting.get(), HasSubstr("cannot take part: no such file: data.bin"));
}

TEST_F(HubTest, Rank0ThatDeclinesTellsTheOthers) {
  auto waiting = std::async(std::launch::async, [&] { return refusal([&] { join(1, 2); }); });
  decline_run({.at = at_, .rank = 0, .world_size = 2, .one_machine = true}, "no such file");
  EXPECT_THAT(waiting.get(), HasSubstr("rank 0 ("));
}

// Returns the time, in milliseconds, for which data may be unacknowledged; 0 = the kernel's limit.
int user_timeout(int socket) {
  int limit = -1;
  socklen_t size = sizeof limit;
  ::getsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size);
  return limit;
}

// Returns the socket of this process that is connected to this port of 127.0.0.1; -1 = none.
int connected_to(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in far{};
    socklen_t size = sizeof far;
    const bool named = ::getpeername(fd, reinterpret_cast<sockaddr*>(&far), &size) == 0;
    if (named && far.sin_family == AF_INET && ntohs(far.sin_port) == port) return fd;
  }
  return -1;
}

// The user says how long the network may be silent, so the kernel must not end a connection before.
TEST(Connections, OutliveASilenceOfLostAfter) {
  for (const auto& [lost_after, limit] : {std::pair(seconds(2), 3000),
                                          std::pair(seconds(20), 21'000),
                                          std::pair(seconds(10'000'000), INT_MAX),
                                          std::pair(seconds(0), 0)}) {
    std::string fault;
    FileDescriptor listener = listen_for_members({"", "127.0.0.1", 0}, true, fault);
    ASSERT_EQ(fault, "");
    const ControlAddress at{"", "127.0.0.1", near_port(listener.get())};
    HubOptions options;
    options.lost_after = lost_after;
    const Hub hub(std::move(listener), options, std::function<void(const std::string&)>());
    HubSocket socket = connect_to_hub(at, lost_after);
    ASSERT_EQ(socket.fault, "");
    HubConnection member(std::move(socket.fd), at.text());
    member.greet(Secret());  // the hub has accepted the connection once it answers
    EXPECT_EQ(user_timeout(member.fd()), limit);
    EXPECT_EQ(user_timeout(connected_to(near_port(member.fd()))), limit);
  }
}

// Idle connections and nonsense must neither keep ranks out nor cost memory.
TEST_F(HubTest, StrangersDoNotKeepRanksOut) {
  const auto hub = start(2);
  std::vector<FileDescriptor> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(connect_to_hub(at_, {}).fd);
  for (int i = 0; i < 50; ++i) {
    const FileDescriptor noise = connect_to_hub(at_, {}).fd;
    const std::string text(static_cast<size_t>(1 + i * 37), static_cast<char>(i));
    ::send(noise.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  auto members = join_all(2);
  for (const auto& m : members) m->leave();
}

TEST_F(HubTest, AProgramThatIsNoHubIsRecognised) {
  std::string fault;
  const FileDescriptor listener = listen_for_members(at_, true, fault);
  // Accepts and never answers: the kernel completes the connections.
  EXPECT_THAT(refusal([&] { join(1, 2); }), HasSubstr("it belongs to another program"));
}

}  // namespace
}  // namespace yoke
