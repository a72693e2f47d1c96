// Lets runs fail for lack of memory, with the real program and a limit of its address space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/playground.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Trains with micro-batches of 512 sequences in processes of at most this much address space.
SubprocessResult train(const Playground& here, const std::string& backend, int64_t mib) {
  const std::string limit = concat("ulimit -v ", mib * 1024, "; exec \"$@\"");
  SubprocessOptions options;
  options.limit = std::chrono::seconds(1200);  // a limit for hangs; a busy machine is slow
  return run_subprocess({"/usr/bin/env",
                         "-C",
                         here.folder().path().string(),
                         "sh",
                         "-c",
                         limit,
                         "sh",
                         Playground::program(),
                         "train",
                         "run.toml",
                         "parallel_backend=" + backend,
                         "train.global_batch=512",
                         "train.micro_batch=512",
                         "model.layers=8",
                         "metrics.every=1"},
                        options);
}

TEST(Memory, ARunThatLacksItNamesTheChangesThatNeedLess) {
  const Playground here;
  const SubprocessResult r = train(here, "ptd", 700);
  EXPECT_FALSE(r.timed_out);
  EXPECT_EQ(r.ending.exit_code, 1) << r.err;
  EXPECT_THAT(r.err, HasSubstr("can't allocate memory"));
  EXPECT_THAT(r.err, Not(HasSubstr("frame #")));
  EXPECT_THAT(r.err, HasSubstr("a step of this run is forecast to need up to "));
  EXPECT_THAT(r.err, ContainsRegex("this would need less: train.micro_batch=[0-9]+ "));
}

TEST(Memory, TheAdviceIsGeneralForABackendWithoutAForecast) {
  const Playground here;
  const SubprocessResult r = train(here, "serial", 700);
  EXPECT_EQ(r.ending.exit_code, 1) << r.err;
  EXPECT_THAT(r.err, HasSubstr("use smaller micro-batches (train.micro_batch, now 512)"));
}

}  // namespace
}  // namespace yoke::testing
