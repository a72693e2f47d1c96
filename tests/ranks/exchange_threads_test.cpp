// Tests messages and exchanges of parts between threads of this process.
#include "tests/ranks/exchange_programs.hpp"
#include "tests/support/virtual_ranks.hpp"

namespace yoke::test {
namespace {

CommOptions with(CommCheck check) {
  CommOptions options;
  options.check = check;
  return options;
}

TEST(ExchangeBetweenThreads, GivesWhatPlainCopiesGive) {
  for (const int ranks : {2, 3, 4}) {
    orderly_virtual_ranks(ranks, with(CommCheck::kStep), exchange_through_the_sdk);
    orderly_virtual_ranks(ranks, with(CommCheck::kFull), exchange_through_the_sdk);
  }
}

TEST(ExchangeBetweenThreads, RefusesBadInput) {
  for (const int ranks : {2, 3}) orderly_virtual_ranks(ranks, {}, refuse_wrong_exchanges);
}

TEST(ExchangeBetweenThreads, NoticesPartsThatDoNotFit) {
  virtual_ranks(2, {}, disagree_about_parts);
}

}  // namespace
}  // namespace yoke::test
