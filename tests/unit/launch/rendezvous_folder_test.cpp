#include "core/launch/rendezvous_folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

TEST(RendezvousFolder, IsPrivateAndGoneAfterwards) {
  std::string path;
  {
    const RendezvousFolder folder;
    path = folder.path();
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0700u);
    std::ofstream(path + "/store") << "x";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(RendezvousFolder, OfAKilledLauncherGoesAtTheNextStart) {
  const testing::TempFolder parent;
  ASSERT_EQ(::setenv("TMPDIR", parent.path().c_str(), 1), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    new RendezvousFolder;
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(launcher, nullptr, 0);
  const RendezvousFolder alive;
  std::filesystem::create_directory(parent / "yoke-a1b2c3");  // no launcher made it: it has no lock
  const RendezvousFolder next;
  ::unsetenv("TMPDIR");
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(parent.path()))
    left.insert(entry.path().string());
  EXPECT_EQ(left, (std::set<std::string>{alive.path(), next.path(), parent / "yoke-a1b2c3"}));
}

}  // namespace
}  // namespace yoke
