#include "core/backend/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

std::vector<std::string> paths(const std::vector<SearchDir>& dirs) {
  std::vector<std::string> result;
  for (const SearchDir& dir : dirs) result.push_back(dir.path);
  return result;
}

// Two folders, searched in the order a, b.
struct TwoFolders {
  TempFolder folder;
  std::vector<SearchDir> dirs;

  explicit TwoFolders(const std::vector<std::string>& files) {
    for (const char* name : {"a", "b"}) std::filesystem::create_directory(folder / name);
    for (const std::string& file : files) {
      std::filesystem::permissions(folder.write(file, "x"),
                                   static_cast<std::filesystem::perms>(0644));
    }
    for (const char* name : {"a", "b"}) {
      std::filesystem::permissions(folder / name, static_cast<std::filesystem::perms>(0755));
    }
    SearchSettings settings;
    settings.config_path = {folder / "a", folder / "b"};
    dirs = search_dirs(settings);
  }
  std::string path(const std::string& file) const { return folder / file; }
};

std::string failure(const std::string& name, const std::vector<SearchDir>& dirs, int32_t code) {
  try {
    find_backend(name, dirs);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  return "";
}

TEST(SearchDirs, ComeInTheDocumentedOrder) {
  EXPECT_THAT(
      paths(search_dirs({{"/c1", "/c2"}, "/e1:/e2", "/home/me/.local/share", "/opt/yoke/lib"})),
      ElementsAre("/c1",
                  "/c2",
                  "/e1",
                  "/e2",
                  "/home/me/.local/share/yoke/backends",
                  "/opt/yoke/lib/yoke/backends",
                  "/usr/local/lib/yoke/backends"));
}

TEST(SearchDirs, AppearOnceAndNeverEmpty) {
  EXPECT_THAT(paths(search_dirs({{"/c"}, ":/c/::/d:", "", ""})),
              ElementsAre("/c", "/d", "/usr/local/lib/yoke/backends"));
}

TEST(SearchDirs, SayWhyNothingIsTakenFromThem) {
  const TempFolder folder;
  const std::string file = folder.write("file", "x");
  const auto dirs = search_dirs({{folder / "missing", file, "relative"}, "", "", ""});
  EXPECT_EQ(dirs[0].problem, "does not exist");
  EXPECT_EQ(dirs[1].problem, "not a directory");
  EXPECT_EQ(dirs[2].problem, "not an absolute path");
}

TEST(SearchSettings, FallBackToTheHomeFolder) {
  ::setenv("HOME", "/home/me", 1);
  ::unsetenv("XDG_DATA_HOME");
  EXPECT_EQ(SearchSettings::current().data_home, "/home/me/.local/share");
  ::setenv("XDG_DATA_HOME", "relative", 1);
  EXPECT_EQ(SearchSettings::current().data_home, "/home/me/.local/share");
  ::setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(SearchSettings::current().data_home, "/data");
  EXPECT_THAT(SearchSettings::current().lib_dir, ::testing::EndsWith("/lib"));
}

TEST(FindBackend, TakesTheFirstOfAName) {
  const TwoFolders two({"a/toy.so", "b/toy.so", "b/other.so"});
  EXPECT_EQ(find_backend("toy", two.dirs), two.path("a/toy.so"));
  EXPECT_EQ(find_backend("other", two.dirs), two.path("b/other.so"));
}

TEST(FindBackend, DoesNotFallThroughADanglingLink) {
  const TwoFolders two({"b/toy.so"});
  std::filesystem::create_symlink("/nowhere", two.path("a/toy.so"));
  EXPECT_EQ(find_backend("toy", two.dirs), two.path("a/toy.so"));
}

TEST(FindBackend, TakesAnAbsolutePath) {
  const TwoFolders two({"a/toy.so"});
  EXPECT_EQ(find_backend(two.path("a/toy.so"), {}), two.path("a/toy.so"));
}

TEST(FindBackend, RefusesARelativePathAndNamesTheAbsoluteOne) {
  EXPECT_THAT(failure("./toy.so", {}, YOKE_INVALID_ARGUMENT),
              AllOf(HasSubstr("'./toy.so' is relative"),
                    HasSubstr((std::filesystem::current_path() / "toy.so").string())));
}

TEST(FindBackend, RefusesWhatIsNoName) {
  for (const char* name : {"", "Toy", "7up", "a-b", "a.so", "a b", "..", "ä"}) {
    EXPECT_THAT(failure(name, {}, YOKE_INVALID_ARGUMENT), HasSubstr("is not allowed")) << name;
  }
}

TEST(FindBackend, ListsEveryDirectoryAndTheNearestName) {
  const TwoFolders two({"a/ponies.so", "b/oxen.so", "b/mules.so"});
  auto dirs = two.dirs;
  dirs.push_back({"/nowhere", "YOKE_BACKEND_PATH", "does not exist"});
  EXPECT_THAT(failure("ponis", dirs, YOKE_NOT_FOUND),
              AllOf(HasSubstr("backend 'ponis' not found; did you mean 'ponies'?"),
                    HasSubstr(two.path("a") + " (backend_path): 1 backend\n"),
                    HasSubstr(two.path("b") + " (backend_path): 2 backends\n"),
                    HasSubstr("/nowhere (YOKE_BACKEND_PATH): does not exist"),
                    HasSubstr("known: mules, oxen, ponies")));
}

TEST(ListCandidates, SaysWhichAreShadowedAndWhichCannotBeUsed) {
  const TwoFolders two({"a/toy.so", "b/toy.so", "b/No-Good.so", "b/notes.txt", "b/zebra.so"});
  std::filesystem::permissions(two.path("b/zebra.so"), static_cast<std::filesystem::perms>(0666));
  const auto all = list_candidates(two.dirs);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].name, "No-Good");
  EXPECT_THAT(all[0].problem, HasSubstr("is not allowed"));
  EXPECT_EQ(all[1].path, two.path("a/toy.so"));
  EXPECT_EQ(all[1].problem + all[1].shadowed_by, "");
  EXPECT_EQ(all[2].path, two.path("b/toy.so"));
  EXPECT_EQ(all[2].shadowed_by, two.path("a/toy.so"));
  EXPECT_THAT(all[3].problem, HasSubstr("writable by others"));
}

}  // namespace
}  // namespace yoke
