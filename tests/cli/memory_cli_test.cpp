// Tests what runs of the real program say about memory. Some fail for lack of it, with a limit of
// their address space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

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
  EXPECT_THAT(r.err,
              ContainsRegex("this would need less: train.micro_batch=[0-9]+ [^;]*, or "
                            "ptd.activation_checkpoint=full \\([0-9.]+ [MG]iB\\)[,;]"));
}

TEST(Memory, TheAdviceIsGeneralForABackendWithoutAForecast) {
  const Playground here;
  const SubprocessResult r = train(here, "serial", 700);
  EXPECT_EQ(r.ending.exit_code, 1) << r.err;
  EXPECT_THAT(r.err, HasSubstr("use smaller micro-batches (train.micro_batch, now 512)"));
}

// Returns the number of MiB after `what`; 0 if there is none.
double mib_after(const std::string& text, const std::string& what) {
  const size_t at = text.find(what);
  if (at == text.npos) return 0;
  std::istringstream rest(text.substr(at + what.size()));
  double number = 0;
  std::string unit;
  rest >> number >> unit;
  return unit == "MiB" ? number : 0;
}

// The predicted memory is that of tensors. A process also grows by what libraries and the C library
// keep.
TEST(Memory, IsReportedBesideWhatWasPredicted) {
  const Playground here;
  for (const std::string ranks : {"1", "2"}) {
    const SubprocessResult r = here.yoke({"train",
                                          "run.toml",
                                          "parallel_backend=ptd",
                                          "--nproc",
                                          ranks,
                                          "train.global_batch=256",
                                          "model.layers=8"});
    ASSERT_EQ(r.ending.exit_code, 0) << r.err;
    const double predicted = mib_after(r.out, "memory: predicted "),
                 measured = mib_after(r.out, " a rank, measured ");
    EXPECT_EQ(predicted, mib_after(r.out, "; together "));
    EXPECT_GT(predicted, 50);
    EXPECT_GT(measured, 0.9 * predicted);
    EXPECT_LT(measured, 1.2 * predicted + 30);
    EXPECT_THAT(r.out, HasSubstr(" MiB (growth of the process)\n"));
  }
}

TEST(Memory, IsNotReportedWithoutStepsOrForRanksInOneProcess) {
  const Playground here;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"train.steps=0"}, {"--virtual", "2", "parallel_backend=ptd"}}) {
    std::vector<std::string> args{"train", "run.toml"};
    args.insert(args.end(), more.begin(), more.end());
    const SubprocessResult r = here.yoke(args);
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, Not(HasSubstr("memory: predicted")));
  }
}

// The worker is a script that says what it was given.
TEST(Memory, OfWorkersUsesHugePagesUnlessTheUserDecides) {
  const Playground here;
  const auto given_to_worker = [&](const std::vector<std::string>& variables) {
    const std::string script = here.folder().write(
        "worker", "#!/bin/sh\necho \"$GLIBC_TUNABLES\" > \"" + (here.folder() / "seen") + "\"\n");
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    here.yoke({"train", "run.toml", "worker=" + script}, variables);
    return read_file(here.folder() / "seen");
  };
  EXPECT_EQ(given_to_worker({}), "glibc.malloc.hugetlb=1\n");
  EXPECT_EQ(given_to_worker({"GLIBC_TUNABLES=glibc.malloc.perturb=0"}),
            "glibc.malloc.perturb=0:glibc.malloc.hugetlb=1\n");
  EXPECT_EQ(given_to_worker({"GLIBC_TUNABLES=glibc.malloc.hugetlb=0"}), "glibc.malloc.hugetlb=0\n");
}

}  // namespace
}  // namespace yoke::testing
