// Joining is done by the thread that trains, because it may take minutes, reports its progress and
// can be cancelled.
#include <unistd.h>

#include <thread>
#include <utility>

#include "core/base/network.hpp"
#include "core/control/hub_connection.hpp"
#include "core/control/hub_state.hpp"
#include "core/control/join_wait.hpp"
#include "core/control/member.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};  // a cancel flag is noticed after this time
constexpr milliseconds kBetweenAttempts{200};
constexpr milliseconds kDecline{30'000};  // time for a declining rank to reach the hub
constexpr int kStrangeAnswers =
    3;  // number of answers of another program after which the wait ends
constexpr milliseconds kOwnGap{1000};  // as in hub_presence.cpp

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_INVALID_ARGUMENT, text);
}

std::vector<Peer> peers_in(const Message& welcome) {
  std::vector<Peer> peers;
  for (size_t i = 0; i + 2 < welcome.fields.size(); i += 3)
    peers.push_back({welcome.fields[i], welcome.fields[i + 1], welcome.fields[i + 2]});
  return peers;
}

}  // namespace

// Waits until the hub welcomes, refuses or sends back this rank, or until the run has failed before
// its start. Other messages are ignored.
Message Member::wait_for_answer(HubConnection& connection,
                                const MemberOptions& options,
                                const JoinWait& wait) {
  Clock::time_point heard = Clock::now(), beat = heard;
  try {
    for (;;) {
      wait.check_cancel();
      const std::optional<Message> message = connection.receive(kSlice);
      const Clock::time_point now = Clock::now();
      if (message) heard = now;
      if (message && message->type == MessageType::kWelcome) return *message;
      if (message && !message->fields.empty() &&
          (message->type == MessageType::kRefused || message->type == MessageType::kLost ||
           message->type == MessageType::kRetry))
        return *message;
      if (now - beat > HubState::kBeat) {
        if (now - beat > kOwnGap) heard = now;  // this process was stopped, not the hub
        beat = now;
        connection.send({MessageType::kBeat, {"0", "0", "0", "0"}});
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
  JoinWait wait(options);
  int strange_answers = 0;
  for (;;) {
    const ControlAddress at = where();
    HubSocket socket = connect_to_hub(at, options.lost_after);
    if (!socket.has_address) {
      wait.pause(no_address_text(at.host, socket.fault), YOKE_INVALID_ARGUMENT);
      continue;
    }
    if (!socket.fd.open()) {
      wait.pause(concat("rank 0 cannot be reached at ", at.text(), " (", socket.fault, ")"),
                 YOKE_UNAVAILABLE);
      continue;
    }
    const std::string address = near_address(socket.fd.get());
    auto connection = std::make_unique<HubConnection>(std::move(socket.fd), at.text());
    try {
      connection->greet(options.secret);
      connection->send({MessageType::kJoin,
                        {options.job,
                         concat(options.rank),
                         concat(options.world_size),
                         own_host(),
                         concat(::getpid()),
                         address,
                         pack_introduction(introduction)}});
    } catch (const Error& e) {
      if (e.code() != YOKE_UNAVAILABLE) throw;
      // A hub closes connections when too many ranks and strangers arrive at once.
      if (!connection->closed() && ++strange_answers == kStrangeAnswers) {
        refuse(std::string(e.what()) +
               "; it belongs to another program: choose another MASTER_PORT for all ranks");
      }
      wait.pause(e.what(), YOKE_UNAVAILABLE);
      continue;
    }
    const Message answer = wait_for_answer(*connection, options, wait);
    if (answer.type == MessageType::kWelcome) {
      return std::unique_ptr<Member>(new Member(options, std::move(connection), peers_in(answer)));
    }
    const std::string& text = answer.fields[0];
    if (answer.type == MessageType::kRefused) refuse(text);
    if (answer.type == MessageType::kLost) throw Error(YOKE_UNAVAILABLE, text);
    wait.pause(text, YOKE_UNAVAILABLE);
  }
}

void Member::decline(const ControlAddress& at,
                     const MemberOptions& options,
                     const std::string& why) noexcept {
  try {
    const auto until = Clock::now() + kDecline;
    HubSocket socket;
    while (!(socket = connect_to_hub(at, options.lost_after)).fd.open()) {
      if (Clock::now() > until) return;
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    HubConnection connection(std::move(socket.fd), at.text());
    connection.greet(options.secret);
    connection.send({MessageType::kDecline,
                     {options.job,
                      concat(options.rank),
                      concat(options.world_size),
                      own_host(),
                      concat(::getpid()),
                      why}});
  } catch (const std::exception&) {
    // The reason is printed by this rank in any case.
  }
}

}  // namespace yoke
