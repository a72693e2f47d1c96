// Tests `yoke backends check` as a user runs it: the backends of this tree pass,
// sdk/conformance/CHECKS.md is up to date, and a wrong command line is reported in one sentence.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {
namespace {

SubprocessResult check(std::vector<std::string> words) {
  std::vector<std::string> argv = {
      std::string(std::getenv("YOKE_BIN")) + "/yoke", "backends", "check"};
  argv.insert(argv.end(), words.begin(), words.end());
  return run_subprocess(argv);
}

class Backend : public ::testing::TestWithParam<const char*> {};

TEST_P(Backend, KeepsTheContract) {
  const std::string file =
      std::string(std::getenv("YOKE_BIN")) + "/../lib/yoke/backends/" + GetParam() + ".so";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not part of this build";
  const SubprocessResult result = check({file, "--nproc", "2", "--timeout", "300"});
  EXPECT_EQ(result.ending.exit_code, 0) << result.out << result.err;
}

INSTANTIATE_TEST_SUITE_P(InTree,
                         Backend,
                         ::testing::Values("serial",
                                           "replicas",
                                           "pipeline",
                                           "torch_replicas",
                                           "diloco",
                                           "signsgd",
                                           "ptd",
                                           "deepspeed_stub",
                                           "accelerate_compat",
                                           "megatron_compat",
                                           "nanotron_compat",
                                           "validate"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DeepChecks, PassForSerialAtFourRanks) {
  const SubprocessResult result =
      check({"serial", "--only", "N3,N15", "--nproc", "4", "--timeout", "300"});
  EXPECT_EQ(result.ending.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("1 passed, 0 failed, 1 not run"), std::string::npos) << result.out;
}

TEST(CheckList, IsTheCommittedDocument) {
  const SubprocessResult result = check({"--list", "--format", "md"});
  EXPECT_EQ(result.ending.exit_code, 0);
  EXPECT_EQ(result.out,
            read_file(std::string(std::getenv("YOKE_SOURCE")) + "/sdk/conformance/CHECKS.md"))
      << "regenerate it: yoke backends check --list --format md > sdk/conformance/CHECKS.md";
}

TEST(CheckReports, AreWrittenAsJsonAndJunit) {
  const TempFolder folder;
  const SubprocessResult result = check({"serial",
                                         "--only",
                                         "S1",
                                         "--only",
                                         "L1",
                                         "--json-file",
                                         folder / "r.json",
                                         "--junit",
                                         folder / "r.xml"});
  EXPECT_EQ(result.ending.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_file(folder / "r.json"));
  EXPECT_EQ(json["passed"], 2);
  EXPECT_EQ(json["checks"][1]["id"], "L1");
  EXPECT_EQ(json["checks"][1]["status"], "passed");
  const std::string xml = read_file(folder / "r.xml");
  EXPECT_NE(xml.find("tests=\"2\" failures=\"0\""), std::string::npos) << xml;
}

TEST(CheckReports, LeaveOutRowsOfChecksThatAFailedOnePrevents) {
  const TempFolder folder;
  const std::string path = folder.write("no.so", "a text");
  const SubprocessResult result = check({path, "--json-file", folder / "r.json"});
  EXPECT_EQ(result.ending.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find(" checks were not run, because S1 failed\n"), std::string::npos)
      << result.out;
  EXPECT_LT(std::count(result.out.begin(), result.out.end(), '\n'), 15) << result.out;
  const auto json = nlohmann::json::parse(read_file(folder / "r.json"));
  EXPECT_GT(json["checks"].size(), 50u) << "programs get every row";
}

struct Misuse {
  std::vector<std::string> words;
  int code;
  const char* says;
};

TEST(CheckCommand, ReportsMisuseInOneSentence) {
  const Misuse misuses[] = {
      {{}, 2, "PATH is missing"},
      {{"serial", "--only", "C99"}, 2, "no such check"},
      {{"serial", "--nproc", "0"}, 2, "--nproc"},
      {{"serial", "--timeout", "0"}, 2, "--timeout"},
      {{"seriel"}, 3, "did you mean 'serial'"},
      {{"./nothing.so"}, 3, "does not exist"},
      {{"/"}, 3, "is not a file"},
      {{"serial", "--only", "S1", "--junit", "/nowhere/x.xml"},
       2,
       "--junit /nowhere/x.xml cannot be written: No such file"},
  };
  for (const Misuse& m : misuses) {
    const SubprocessResult result = check(m.words);
    EXPECT_EQ(result.ending.exit_code, m.code) << m.says << result.out << result.err;
    EXPECT_NE(result.err.find(m.says), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace yoke::testing
