#include "core/comm/meeting.hpp"

#include <unistd.h>

#include "core/comm/patience.hpp"
#include "core/comm/waiting.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

std::string key_of(int32_t rank) {
  return "here/" + std::to_string(rank);
}

// "host-a, process 123"
std::string this_process() {
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return std::string(host) + ", process " + std::to_string(::getpid());
}

// "of 4 ranks, 2, 3 are missing; here: 0 (host-a, process 12), 1 (host-b, process 7)"
std::string attendance(Mailbox& mailbox, int32_t world_size) {
  std::string here, missing;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const auto who = mailbox.peek(key_of(rank));
    std::string& list = who ? here : missing;
    list += (list.empty() ? "" : ", ") + std::to_string(rank) + (who ? " (" + *who + ")" : "");
  }
  return "of " + std::to_string(world_size) + " ranks, missing: " + missing + "; here: " + here;
}

// Rank 0 keeps the list of who is here, and may be the first to give up.
bool all_here(Mailbox& mailbox, int32_t rank, const std::vector<std::string>& everybody) {
  try {
    return mailbox.has(everybody);
  } catch (const Error& e) {
    if (rank == 0) throw;
    throw Error(YOKE_UNAVAILABLE,
                "rank 0 is gone, which kept the list of who is here (" + std::string(e.what()) +
                    "); see what it says");
  }
}

}  // namespace

void meet(Mailbox& mailbox, int32_t rank, int32_t world_size, const CommOptions& options) {
  const std::string me = this_process();
  if (const std::string holder = mailbox.claim(key_of(rank), me); holder != me) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "rank " + std::to_string(rank) + " is taken by " + holder + ", and also given to " +
                    me + "; every process needs a number of its own");
  }
  std::vector<std::string> everybody;
  for (int32_t r = 0; r < world_size; ++r) everybody.push_back(key_of(r));
  Patience patience(options, "the other ranks");
  Patience::State state;  // one word for all
  if (rank == 0)
    state = [&] { return "waiting for the other ranks: " + attendance(mailbox, world_size); };
  while (!all_here(mailbox, rank, everybody)) {
    if (patience.wait(state)) continue;
    throw Error(YOKE_UNAVAILABLE,
                attendance(mailbox, world_size) + "; gave up after " +
                    seconds_text(options.timeout) +
                    " (comm.timeout); see what the missing ranks say");
  }
}

}  // namespace yoke
