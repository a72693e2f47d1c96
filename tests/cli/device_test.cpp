// Tests with the real program that a run on the CPU loads no library of CUDA, and what it says
// about a machine without a GPU and about one with a faulty driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/launch/nvidia_driver.hpp"
#include "tests/cli/playground.hpp"
#include "yoke/text.hpp"

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

// Runs yoke with the library of a driver that starts with the code `init`, runs programs of the
// CUDA version `version`, such as 12040, and has two devices.
SubprocessResult with_driver(const Playground& here,
                             const std::vector<std::string>& args,
                             int init,
                             int version) {
  return here.yoke(args,
                   {"LD_LIBRARY_PATH=" YOKE_FAKE_DRIVER,
                    "YOKE_DEVICE=auto",
                    concat("FAKE_DRIVER_INIT=", init),
                    concat("FAKE_DRIVER_VERSION=", version)});
}

constexpr const char* kTooOld =
    "the NVIDIA driver is too old: it runs programs of CUDA up to 12.4, and Yoke is one of CUDA "
    "13; install driver 580 or newer";

TEST(Device, ADriverThatIsTooOldIsNamedBeforeARankStarts) {
  const Playground here;
  const SubprocessResult r =
      with_driver(here, {"train", "run.toml", "parallel_backend=ptd", "device=cuda"}, 0, 12040);
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_EQ(r.err, concat("yoke: device = cuda, but ", kTooOld, ", or use device=cpu\n"));
  EXPECT_FALSE(std::filesystem::exists(here.folder() / "runs"));
}

TEST(Device, ARunThatDoesNotUseTheDevicesOfAFaultyDriverSaysSo) {
  if (!std::filesystem::exists(std::string(std::getenv("YOKE_BIN")) + "/../lib/libyoke_cuda.so"))
    GTEST_SKIP() << "a build without CUDA would not use them anyway";
  const Playground here;
  const SubprocessResult r =
      with_driver(here, {"train", "run.toml", "parallel_backend=ptd"}, 0, 12040);
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr(concat("note: this run computes on the CPU: ", kTooOld, "\n")));
}

TEST(Device, ADriverThatDoesNotStartIsNamedWithItsOwnText) {
  const Playground here;
  const SubprocessResult r =
      with_driver(here, {"train", "run.toml", "parallel_backend=ptd", "device=cuda"}, 803, 13000);
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err,
              HasSubstr("the NVIDIA driver cannot be started: cuInit fails with error 803 (text of "
                        "error 803), because its kernel module is of another version than "
                        "libcuda.so.1; reboot the machine, or use device=cpu\n"));
}

TEST(Device, DoctorWarnsOfAFaultyDriver) {
  const Playground here;
  const SubprocessResult r = with_driver(here, {"doctor"}, 0, 12040);
  EXPECT_THAT(r.out, HasSubstr("warning  device              cpu; the NVIDIA driver is too old"));
  EXPECT_THAT(r.out, HasSubstr("try: install driver 580 or newer"));
}

// A plan is made on one machine, for all. The driver has two devices.
TEST(Device, EachMachineNeedsADeviceForEachOfItsRanks) {
  const Playground here;
  const auto on_two_machines = [&](const char* ranks, const char* device) {
    return with_driver(here,
                       {"train",
                        "run.toml",
                        "parallel_backend=ptd",
                        "--nnodes",
                        "2",
                        "--node-rank",
                        "0",
                        "--master",
                        "127.0.0.1:29631",
                        "--nproc",
                        ranks,
                        device},
                       0,
                       13000);
  };
  const SubprocessResult fits = on_two_machines("2", "device=cuda");
  if (fits.err.find("built without CUDA") != std::string::npos) GTEST_SKIP() << fits.err;
  EXPECT_EQ(fits.ending.exit_code, 1) << fits.err;
  EXPECT_THAT(fits.err, HasSubstr("the device cannot be used"));
  const SubprocessResult too_many = on_two_machines("3", "device=cuda");
  EXPECT_EQ(too_many.ending.exit_code, 2);
  EXPECT_THAT(too_many.err,
              HasSubstr("3 ranks are to start on this machine, which has 2 CUDA devices"));
}

// The devices exist only for the part of the driver that Yoke itself asks, so CUDA cannot use them.
// The launcher holds back what ranks print until one has failed, and then shows it once. On a busy
// machine ranks may end so late that it has shown the lines of both before.
TEST(Device, ADeviceThatCudaCannotUseEndsTheRunWithOneMessageOfEachRank) {
  const Playground here;
  const SubprocessResult r = with_driver(
      here, {"train", "run.toml", "parallel_backend=ptd", "device=cuda", "--nproc", "2"}, 0, 13000);
  EXPECT_FALSE(r.timed_out);
  if (r.err.find("built without CUDA") != std::string::npos) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.ending.exit_code, 1) << r.err;
  const std::string what = "yoke: the device cannot be used: ";
  EXPECT_THAT(r.err, HasSubstr(what));
  for (const std::string rank : {"[rank 0] ", "[rank 1] "})
    EXPECT_EQ(r.err.find(rank + what), r.err.rfind(rank + what)) << r.err;
  EXPECT_THAT(r.err, Not(HasSubstr("frame #")));
}

}  // namespace
}  // namespace yoke::testing
