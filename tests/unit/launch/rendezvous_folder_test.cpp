#include "core/launch/rendezvous_folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace yoke
