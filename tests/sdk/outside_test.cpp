// Backends can be built outside of this source tree: against an install, with find_package(yoke).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// The project of a backend author whose machine has no LibTorch.
class Author {
 public:
  explicit Author(const std::string& cmake) {
    fs::copy(YOKE_PREFIX "/share/yoke/examples/serial.c", folder_ / "serial.c");
    folder_.write("CMakeLists.txt",
                  "cmake_minimum_required(VERSION 3.25)\nproject(mine LANGUAGES C)\n" + cmake);
  }
  SubprocessResult run(const Words& words) const {
    Words argv{
        "/usr/bin/env", "-i", "-C", folder_ / "", "PATH=/usr/bin:/bin", "HOME=" + folder_ / "home"};
    argv.insert(argv.end(), words.begin(), words.end());
    return run_subprocess(argv);
  }
  SubprocessResult configure() const {
    return run({"cmake", "-B", "build", "-G", "Ninja", "-DCMAKE_PREFIX_PATH=" YOKE_PREFIX});
  }
  std::string built(const std::string& file) const { return folder_ / ("build/" + file); }

 private:
  TempFolder folder_;
};

TEST(Outside, ABackendInCNeedsNoLibTorchToBuild) {
  const Author author(
      "find_package(yoke REQUIRED)\nyoke_add_backend(serial SOURCES serial.c LINK m)\n");
  const SubprocessResult configured = author.configure();
  ASSERT_TRUE(configured.ending.ok()) << configured.out << configured.err;
  const SubprocessResult made = author.run({"cmake", "--build", "build"});
  ASSERT_TRUE(made.ending.ok()) << made.out << made.err;
  const SubprocessResult info =
      author.run({YOKE_PREFIX "/bin/yoke", "backends", "info", author.built("serial.so")});
  EXPECT_EQ(info.ending.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, HasSubstr("not used (neutral model)"));
}

TEST(Outside, WithoutLibTorchABackendThatWantsItIsToldSo) {
  const Author author(
      "find_package(yoke REQUIRED)\nyoke_add_backend(mine TORCH SOURCES serial.c)\n");
  const SubprocessResult r = author.configure();
  EXPECT_NE(r.ending.exit_code, 0);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("yoke_add_backend(mine TORCH): LibTorch is not found"),
                    HasSubstr("YOKE_TORCH_DIR")));
}

TEST(Outside, LibTorchCanBeRequired) {
  const Author author("find_package(yoke REQUIRED COMPONENTS torch)\n");
  const SubprocessResult r = author.configure();
  EXPECT_NE(r.ending.exit_code, 0);
  EXPECT_THAT(r.err, HasSubstr("YOKE_TORCH_DIR"));
  const Author wrong("find_package(yoke REQUIRED COMPONENTS tensor)\n");
  EXPECT_THAT(wrong.configure().err, HasSubstr("yoke has no component 'tensor'; allowed: torch"));
}

}  // namespace
}  // namespace yoke::testing
