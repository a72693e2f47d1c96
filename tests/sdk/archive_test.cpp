// The archive that cpack makes works without this source tree. It is unpacked into a folder
// with a space in its name, and runs with only the environment variables that the README names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr uintmax_t kLargest = 50 << 20;  // upper bound of the archive's size in bytes
const std::string kTorchLib = YOKE_TORCH_DIR "/lib";

SubprocessResult command(const Words& words) {
  Words argv{"/usr/bin/env"};
  argv.insert(argv.end(), words.begin(), words.end());
  return run_subprocess(argv);
}

class Archive : public ::testing::Test {
 protected:
  // Unpacks the archive once for all tests.
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    fs::create_directory(root());
    const SubprocessResult r = command(
        {"tar", "--no-same-owner", "--strip-components=1", "-xzf", YOKE_ARCHIVE, "-C", root()});
    ASSERT_TRUE(r.ending.ok()) << r.err;
    std::string text;
    for (int i = 0; text.size() < 20000; ++i)
      text += "the ox " + std::to_string(i * i % 97) + " pulls; ";
    folder_->write("text.txt", text);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string root() { return *folder_ / "a place"; }

  // Runs the archive's yoke. torch_lib: value of YOKE_TORCH_LIB, "" = not set.
  static SubprocessResult yoke(const Words& words, const std::string& torch_lib = kTorchLib) {
    Words argv{"-i", "-C", *folder_ / "", "PATH=/usr/bin:/bin", "HOME=" + *folder_ / "home"};
    if (!torch_lib.empty()) argv.push_back("YOKE_TORCH_LIB=" + torch_lib);
    argv.push_back(root() + "/bin/yoke");
    argv.insert(argv.end(), words.begin(), words.end());
    return command(argv);
  }
  static void expect_refused(const std::string& torch_lib, const std::string& why) {
    for (const Words& words :
         {Words{"train", root() + "/share/yoke/configs/parity.toml", "data.path=text.txt"},
          Words{"backends", "list"}}) {
      const SubprocessResult r = yoke(words, torch_lib);
      EXPECT_THAT(r.ending.exit_code, ::testing::AnyOf(2, 3));
      EXPECT_THAT(r.err, AllOf(HasSubstr(why), HasSubstr("2.11.0"), HasSubstr("YOKE_TORCH_LIB")));
      EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    }
  }
  // Creates a folder that looks like LibTorch's: its libraries in lib, and a version.py.
  static std::string torch_of_version(const std::string& version) {
    const std::string base = *folder_ / ("torch-" + version);
    folder_->write("torch-" + version + "/version.py",
                   "from typing import Optional\n__version__ = '" + version + "+cpu'\n");
    fs::create_directory(base + "/lib");
    for (const auto& entry : fs::directory_iterator(kTorchLib)) {
      if (entry.is_regular_file())
        fs::create_symlink(entry, base + "/lib/" + entry.path().filename().string());
    }
    return base + "/lib";
  }
  static std::vector<fs::path> programs() {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(root())) {
      if (!entry.is_directory() && read_file(entry.path())
                                       .starts_with("\x7f"
                                                    "ELF"))
        found.push_back(entry);
    }
    return found;
  }

  static TempFolder* folder_;
};
TempFolder* Archive::folder_ = nullptr;

TEST_F(Archive, IsSmallAndSaysHowToUseIt) {
  EXPECT_LE(fs::file_size(YOKE_ARCHIVE), kLargest);
  EXPECT_THAT(read_file(root() + "/README.md"), HasSubstr("YOKE_TORCH_LIB"));
  for (const char* file : {"LICENSE", "NOTICE"})
    EXPECT_TRUE(fs::exists(root() + "/share/doc/yoke/" + file));
}

TEST_F(Archive, LinksOfItsDocumentsLeadSomewhere) {
  const SubprocessResult r = command({YOKE_TREE "/scripts/check_links", root()});
  EXPECT_TRUE(r.ending.ok()) << r.out << r.err;
}

TEST_F(Archive, NoProgramKnowsWhereItWasBuilt) {
  ASSERT_GE(programs().size(), 4u);
  // Assertions in LibTorch's headers embed the paths of these headers. The preset `package`
  // shortens the paths.
  Words places{YOKE_BUILD, YOKE_TREE};
  if (YOKE_HIDE_PATHS) places.push_back(YOKE_TORCH_DIR);
  for (const fs::path& program : programs()) {
    const std::string bytes = read_file(program);
    for (const std::string& place : places)
      EXPECT_EQ(bytes.find(place), std::string::npos) << program << " holds " << place;
    const std::string dynamic = command({"readelf", "-d", program}).out;
    EXPECT_FALSE(std::regex_search(dynamic, std::regex("R(UN)?PATH.*\\[/"))) << program << "\n"
                                                                             << dynamic;
  }
}

TEST_F(Archive, NeedsNothingButLibTorchAndABareDebian) {
  const std::regex cuda(
      "lib(torch_cuda|c10_cuda)\\.so");  // libraries that are loaded on a device only
  const std::regex there(
      "lib(torch_cpu|c10|gomp|stdc\\+\\+|gcc_s|m|c)\\.so(\\.[0-9]+)?|ld-linux-x86-64\\.so\\.2");
  const std::regex arrow("lib(arrow|parquet)\\.so\\.[0-9]+");  // loaded for Parquet files only
  std::set<std::string> ours;
  for (const fs::path& program : programs()) ours.insert(program.filename());
  const std::regex needed("\\(NEEDED\\).*\\[(.*)\\]");
  for (const fs::path& program : programs()) {
    const std::string dynamic = command({"readelf", "-d", program}).out;
    const bool device = program.filename() == "libyoke_cuda.so";
    const bool parquet = program.filename() == "libyoke_parquet.so";
    for (std::sregex_iterator it(dynamic.begin(), dynamic.end(), needed), end; it != end; ++it) {
      const std::string name = (*it)[1];
      EXPECT_TRUE(ours.count(name) == 1 || std::regex_match(name, there) ||
                  (device && std::regex_match(name, cuda)) ||
                  (parquet && std::regex_match(name, arrow)))
          << program << " needs " << name;
    }
  }
}

TEST_F(Archive, FindsItsBackends) {
  const SubprocessResult r = yoke({"backends", "list"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  for (const auto& entry : fs::directory_iterator(root() + "/lib/yoke/backends"))
    EXPECT_THAT(r.out, HasSubstr(entry.path().string()));
  EXPECT_EQ(r.out.find("rejected"), std::string::npos) << r.out;
}

TEST_F(Archive, TrainsOnTwoRanks) {
  const SubprocessResult r = yoke({"train",
                                   root() + "/share/yoke/configs/parity.toml",
                                   "data.path=text.txt",
                                   "train.steps=2",
                                   "parallel_backend=serial",
                                   "--nproc",
                                   "2"});
  EXPECT_EQ(r.ending.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("step: 2 ")) << r.out;
}

TEST_F(Archive, WithoutLibTorchSaysWhichOneItNeeds) {
  expect_refused("", "does not find LibTorch");
}

TEST_F(Archive, RefusesAFolderThatIsNotLibTorchs) {
  expect_refused("/no/such", "YOKE_TORCH_LIB = \"/no/such\" is not a folder");
  expect_refused(root(), "does not contain libtorch_cpu.so");
  const SubprocessResult above = yoke({"backends", "list"}, YOKE_TORCH_DIR);
  EXPECT_THAT(above.err, HasSubstr("did you mean " + kTorchLib + "?"));
}

TEST_F(Archive, RefusesAnotherVersion) {
  expect_refused(torch_of_version("2.10.0"), "is version 2.10.0");
}

TEST_F(Archive, NamesLibrariesThatLibTorchLacks) {
  const std::string lib = torch_of_version("2.11.0");
  fs::remove(lib + "/libc10.so");
  expect_refused(lib, "libc10.so");
}

}  // namespace
}  // namespace yoke::testing
