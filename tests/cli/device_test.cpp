// What a run loads for the device that it takes, on the real program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What the dynamic linker says of all files that the processes of a run opened.
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

}  // namespace
}  // namespace yoke::testing
