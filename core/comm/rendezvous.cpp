// Each rank writes its host and process id to the store under its own key, then polls until the
// keys of all ranks exist.
//
// c10d's TCPStore can wait for the workers by itself (`waitWorkers`), but its error does not say
// which rank is missing, and it supports neither a cancel flag nor progress reports. A key per rank
// costs one request per poll and gives all three.
#include "core/comm/rendezvous.hpp"

#include <unistd.h>

#include <vector>

#include "core/comm/polling.hpp"
#include "core/comm/transport.hpp"
#include "core/comm/work_wait.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string key_of(int32_t rank) {
  return concat("here/", rank);
}

// "host-a, process 123"
std::string this_process() {
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return concat(host, ", process ", ::getpid());
}

// "ranks 2, 3 of 4 are missing; present: 0 (host-a, process 12), 1 (host-b, process 7)"
std::string attendance(Mailbox& mailbox, int32_t world_size) {
  std::string present, missing;
  int32_t num_missing = 0;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const auto process = mailbox.peek(key_of(rank));
    if (!process) ++num_missing;
    std::string& list = process ? present : missing;
    if (!list.empty()) list += ", ";
    list += process ? concat(rank, " (", *process, ")") : concat(rank);
  }
  const bool one = num_missing == 1;
  return concat(one ? "rank " : "ranks ",
                num_missing > 0 ? missing : "none",
                " of ",
                world_size,
                one ? " is missing; present: " : " are missing; present: ",
                present);
}

// Rank 0 often serves the store and may be the first to give up. The other ranks then lose the
// store itself, so their message must refer to rank 0.
bool all_present(Mailbox& mailbox, int32_t rank, const std::vector<std::string>& keys) {
  try {
    return mailbox.has(keys);
  } catch (const Error& e) {
    if (rank == 0) throw;
    throw Error(YOKE_UNAVAILABLE,
                concat("lost rank 0, which serves the store of the rendezvous (",
                       e.what(),
                       "); see the output of rank 0"));
  }
}

}  // namespace

void wait_for_all_ranks(Mailbox& mailbox,
                        int32_t rank,
                        int32_t world_size,
                        const CommOptions& options) {
  const std::string me = this_process();
  if (const std::string holder = mailbox.claim(key_of(rank), me); holder != me) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("rank ",
                       rank,
                       " is taken by ",
                       holder,
                       " and was also given to ",
                       me,
                       "; give every process a rank of its own"));
  }
  std::vector<std::string> keys;
  for (int32_t r = 0; r < world_size; ++r) keys.push_back(key_of(r));
  PollLoop poll(options, "the other ranks");
  PollLoop::Status status;  // empty on the other ranks: one report is enough
  if (rank == 0)
    status = [&] { return "waiting for the other ranks: " + attendance(mailbox, world_size); };
  while (!all_present(mailbox, rank, keys)) {
    if (poll.sleep(status)) continue;
    throw Error(YOKE_UNAVAILABLE,
                concat(attendance(mailbox, world_size),
                       "; gave up after ",
                       seconds_text(options.timeout),
                       " (comm.timeout); see the output of the missing ranks"));
  }
}

}  // namespace yoke
