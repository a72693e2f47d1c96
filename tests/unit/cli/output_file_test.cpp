#include "core/cli/output_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/base/exit_code.hpp"
#include "core/base/file_descriptor.hpp"
#include "core/cli/stop.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempFolder;

// Returns the message of require_writable(); "" = it accepts the path.
std::string refusal(const std::string& path) {
  try {
    require_writable("--out", path);
  } catch (const Stop& stop) {
    EXPECT_EQ(stop.exit_code, kExitUsage);
    return stop.text;
  }
  return "";
}

TEST(OutputFile, ReplacesARegularFile) {
  const TempFolder folder;
  const std::string path = folder / "a.json";
  for (const char* text : {"first, and longer", "second"}) {
    EXPECT_EQ(refusal(path), "");
    write_output(path, text);
    EXPECT_EQ(read_file(path), text);
  }
}

// Files in this folder are regular, too.
TEST(OutputFile, ReplacesAFileInSharedMemory) {
  const std::string path = "/dev/shm/yoke-output-file-test-" + std::to_string(::getpid());
  write_output(path, "first");
  write_output(path, "second");
  EXPECT_EQ(read_file(path), "second");
  fs::remove(path);
}

TEST(OutputFile, FollowsASymbolicLink) {
  const TempFolder folder;
  folder.write("real.json", "old");
  fs::create_symlink("real.json", folder / "link.json");
  EXPECT_EQ(refusal(folder / "link.json"), "");
  write_output(folder / "link.json", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link.json"));
  EXPECT_EQ(read_file(folder / "real.json"), "new");
}

TEST(OutputFile, WritesToADevice) {
  const TempFolder folder;
  fs::create_symlink("/dev/null", folder / "nowhere");
  EXPECT_EQ(refusal(folder / "nowhere"), "");
  write_output(folder / "nowhere", "text");
  EXPECT_TRUE(fs::is_character_file(folder / "nowhere"));
}

TEST(OutputFile, WritesToAPipeWhoseReaderSeesNoEndBefore) {
  const TempFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const FileDescriptor reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  char text[8];
  EXPECT_EQ(refusal(path), "");
  pollfd end{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 0), 0) << "a writer has come and gone";
  write_output(path, "text");
  EXPECT_EQ(::read(reader.get(), text, sizeof text), 4);
  EXPECT_TRUE(fs::is_fifo(path));
}

TEST(OutputFile, WritesToTheFileOfAnOpenDescriptor) {
  const TempFolder folder;
  folder.write("log", "before ");
  const FileDescriptor log(::open((folder / "log").c_str(), O_WRONLY | O_APPEND));
  const std::string path = "/dev/fd/" + std::to_string(log.get());
  EXPECT_EQ(refusal(path), "");
  write_output(path, "result");
  ASSERT_EQ(::write(log.get(), " after", 6), 6);
  EXPECT_EQ(read_file(folder / "log"), "before result after");
}

TEST(OutputFile, RefusesWhatCannotBeWritten) {
  const TempFolder folder;
  EXPECT_THAT(refusal(folder.path()), HasSubstr("cannot be written: Is a directory"));
  EXPECT_THAT(refusal(folder / "missing/a.json"), HasSubstr("cannot be written: No such file"));
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  folder.write("a.json", "old");
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refusal(folder / "a.json"), HasSubstr("no file can be created in"));
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace yoke
