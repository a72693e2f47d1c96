// Transfers through io_uring and by threads, against pread and pwrite.
#include "plugins/deepspeed_stub/offload/file_io.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::HasSubstr;
using yoke::testing::TempFolder;
using Settings = OffloadSettings::Io;

constexpr int64_t kBytes = 100'003;

class Io : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<FileIo> open(const Settings& settings) {
    if (!GetParam()) return open_threads(settings);
    std::string why_not;
    auto io = open_uring(settings, &why_not);
    if (io == nullptr) skipped_ = why_not;
    return io;
  }
  TempFolder folder_;
  StateFile file_{folder_.path(), kBytes};
  std::string skipped_;
};

std::vector<char> noise(int64_t bytes) {
  std::vector<char> values(static_cast<size_t>(bytes));
  std::mt19937 random(7);
  for (char& value : values) value = static_cast<char>(random());
  return values;
}

TEST_P(Io, WritesAndReadsInBlocksOfAnySize) {
  const std::vector<char> values = noise(kBytes);
  for (const Settings& settings : {Settings{},
                                   Settings{.block_size = 1000, .queue_depth = 3, .threads = 2},
                                   Settings{.block_size = 999, .queue_depth = 1},
                                   Settings{.block_size = 4096, .single_submit = true}}) {
    const auto io = open(settings);
    if (io == nullptr) GTEST_SKIP() << skipped_;
    ASSERT_EQ(ftruncate(file_.descriptor(), 0), 0);
    ASSERT_EQ(ftruncate(file_.descriptor(), kBytes), 0);
    io->write(file_, 0, values.data(), kBytes).wait();
    std::vector<char> there(kBytes);
    ASSERT_EQ(pread(file_.descriptor(), there.data(), kBytes, 0), kBytes);
    EXPECT_EQ(there, values);
    std::vector<char> part(5000);
    io->read(file_, 12'345, part.data(), 5000).wait();
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 12'345));
  }
}

// The memory of a transfer is the caller's again when the Transfer is gone, however it ends.
TEST_P(Io, ATransferThatIsDroppedIsComplete) {
  const auto io = open({.block_size = 1000, .queue_depth = 4});
  if (io == nullptr) GTEST_SKIP() << skipped_;
  const std::vector<char> values = noise(kBytes);
  io->write(file_, 0, values.data(), kBytes).wait();
  std::vector<char> first(kBytes), second(kBytes);
  Transfer transfer = io->read(file_, 0, first.data(), kBytes);
  transfer = io->read(file_, 0, second.data(), kBytes);
  EXPECT_EQ(first, values);
  { const Transfer dropped = std::move(transfer); }
  EXPECT_EQ(second, values);
}

TEST_P(Io, AFailureIsFinal) {
  const auto io = open({.block_size = 1000});
  if (io == nullptr) GTEST_SKIP() << skipped_;
  std::vector<char> memory(2000);
  Transfer beyond = io->read(file_, kBytes - 500, memory.data(), 2000);
  for (int i = 0; i < 2; ++i) {
    try {
      i == 0 ? beyond.wait() : io->read(file_, 0, memory.data(), 10).wait();
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
      EXPECT_THAT(e.what(), HasSubstr("could not read from its file in " + file_.folder()));
      EXPECT_THAT(e.what(), HasSubstr("the file has become shorter"));
    }
  }
}

// A limit of the size of files makes writes fail, as a full disk does.
TEST_P(Io, AWriteThatFailsIsReported) {
  const auto io = open({});
  if (io == nullptr) GTEST_SKIP() << skipped_;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::vector<char> memory(2000);
  try {
    io->write(file_, 0, memory.data(), 2000).wait();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("could not write to its file"));
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

INSTANTIATE_TEST_SUITE_P(Ways, Io, ::testing::Bool(), [](const auto& info) {
  return info.param ? "uring" : "threads";
});

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
