// Tests with the real program that a run on the CPU loads no library of CUDA, and that
// device = cuda is refused on a machine without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/launch/nvidia_driver.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Returns the log of the dynamic linker about all files that the processes of a run opened.
std::string opened_files(const std::vector<std::string>& words) {
  const Playground here;
  const SubprocessResult r =
      here.yoke(words, {"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + here.folder() / "opened"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(here.folder().path())) {
    if (entry.path().filename().string().starts_with("opened.")) all += read_file(entry.path());
  }
  return all;
}

TEST(Device, ARunOnTheCpuNeverLoadsCuda) {
  for (const char* backend : {"parallel_backend=ptd", "parallel_backend=deepspeed_stub"}) {
    const std::string files =
        opened_files({"train", "run.toml", "device=cpu", "train.steps=1", backend});
    EXPECT_THAT(files, HasSubstr("libtorch_cpu.so"));
    for (const char* library :
         {"libtorch_cuda", "libc10_cuda", "libyoke_cuda", "libnccl", "libcuda.so"})
      EXPECT_THAT(files, Not(HasSubstr(library))) << backend;
  }
}

TEST(Device, CudaWithoutADriverIsRefusedInOneSentence) {
  if (nvidia_driver().devices > 0) GTEST_SKIP() << "this machine has a GPU";
  const Playground here;
  const SubprocessResult r =
      here.yoke({"train", "run.toml", "parallel_backend=ptd", "device=cuda"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, StartsWith("yoke: device = cuda, but "));
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs"));
}

}  // namespace
}  // namespace yoke::testing
