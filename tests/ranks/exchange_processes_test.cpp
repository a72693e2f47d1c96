// Tests messages and exchanges of parts between processes, over Gloo and through shared memory.
#include "tests/ranks/exchange_programs.hpp"
#include "tests/support/process_ranks.hpp"

namespace yoke::test {
namespace {

class ExchangeBetweenProcesses : public ::testing::TestWithParam<CommTransport> {
 protected:
  CommOptions with(CommCheck check = CommCheck::kStep) const {
    CommOptions options;
    options.check = check;
    options.transport = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Transports,
                         ExchangeBetweenProcesses,
                         ::testing::Values(CommTransport::kGloo, CommTransport::kShm),
                         [](const auto& info) {
                           return info.param == CommTransport::kShm ? "Shm" : "Gloo";
                         });

TEST_P(ExchangeBetweenProcesses, GivesWhatPlainCopiesGive) {
  for (const int ranks : {2, 3}) processes(ranks, with(), exchange_through_the_sdk);
  processes(2, with(CommCheck::kFull), exchange_through_the_sdk);
}

TEST_P(ExchangeBetweenProcesses, RefusesBadInput) {
  processes(2, with(), refuse_wrong_exchanges);
}

}  // namespace
}  // namespace yoke::test
