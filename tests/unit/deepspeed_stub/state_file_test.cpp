// Files for state: they have no name, their space is reserved, and folders that cannot be used are
// refused with the reason.
#include "plugins/deepspeed_stub/offload/state_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using yoke::testing::TempFolder;

std::string refusal(const std::string& folder) {
  try {
    require_disk_folder(folder, "offload_optimizer.nvme_path");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_FAILED_PRECONDITION);
    return e.what();
  }
  return "accepted";
}

TEST(DiskFolder, MustExistAndBeAFolder) {
  const TempFolder folder;
  EXPECT_EQ(refusal(folder.path()), "accepted");
  EXPECT_THAT(refusal(folder / "nowhere"),
              AllOf(HasSubstr("offload_optimizer.nvme_path = \"" + folder / "nowhere"),
                    HasSubstr("does not exist; name a writable folder on a local disk")));
  EXPECT_THAT(refusal(folder.write("file", "x")), HasSubstr("is not a folder"));
}

TEST(DiskFolder, MustBeWritable) {
  if (geteuid() == 0) {
    // Nothing but a read-only file system keeps root from writing.
    EXPECT_THAT(refusal("/proc"), HasSubstr("cannot be written to ("));
    return;
  }
  const TempFolder folder;
  chmod(folder.path().c_str(), 0500);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("cannot be written to (Permission denied)"));
}

TEST(DiskFolder, MustNotBeInMemory) {
  EXPECT_THAT(refusal("/dev/shm"), HasSubstr("is in memory (tmpfs), so offload to it would save"));
}

TEST(StateFile, IsPrivateHasNoNameAndReadsAsZeros) {
  const TempFolder folder;
  constexpr int64_t kBytes = 1 << 20;
  const StateFile file(folder.path(), kBytes);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  struct stat entry {};
  ASSERT_EQ(fstat(file.descriptor(), &entry), 0);
  EXPECT_EQ(entry.st_nlink, 0u);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
  EXPECT_EQ(entry.st_size, kBytes);
  EXPECT_GE(entry.st_blocks * 512, kBytes) << "the space is not reserved";
  EXPECT_TRUE(fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC);
  std::vector<char> bytes(kBytes, 1);
  ASSERT_EQ(pread(file.descriptor(), bytes.data(), kBytes, 0), kBytes);
  EXPECT_EQ(bytes, std::vector<char>(kBytes, 0));
}

TEST(StateFile, NamesTheBytesThatAreMissing) {
  const TempFolder folder;
  struct statvfs disk {};
  ASSERT_EQ(statvfs(folder.path().c_str(), &disk), 0);
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  const int64_t bytes = free + (int64_t{1} << 40);
  try {
    const StateFile file(folder.path(), bytes);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_RESOURCE_EXHAUSTED);
    EXPECT_THAT(e.what(), HasSubstr("needs " + std::to_string(bytes) + " bytes in "));
    EXPECT_THAT(e.what(), HasSubstr(" are free; free space there, set nvme_path"));
  }
}

int64_t free_blocks(const TempFolder& folder) {
  struct statvfs disk {};
  statvfs(folder.path().c_str(), &disk);
  return static_cast<int64_t>(disk.f_bfree * disk.f_frsize);
}

TEST(StateFile, LeavesNothingBehindAfterSigkill) {
  const TempFolder folder;
  constexpr int64_t kBytes = int64_t{1} << 30;
  const pid_t child = fork();
  if (child == 0) {
    const StateFile file(folder.path(), kBytes);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const int64_t after = free_blocks(folder);
  const StateFile again(folder.path(), kBytes);
  EXPECT_LT(free_blocks(folder), after - kBytes / 2) << "the file takes no space";
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
