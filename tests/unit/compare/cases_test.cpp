#include "core/compare/cases.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::compare {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

TEST(Cases, AreANameAndOverrides) {
  const CaseSpec spec = parse_case("hsdp:dp_degree=2,nproc=4,profile.steps=1,2");
  EXPECT_EQ(spec.name, "hsdp");
  EXPECT_EQ(spec.nproc, 4);
  EXPECT_THAT(spec.overrides, ElementsAre("dp_degree=2", "profile.steps=1,2"));
  EXPECT_FALSE(spec.external());
}

TEST(Cases, MayBeACommand) {
  const CaseSpec spec = parse_external("ddp=torchrun --x=1 peer.py");
  EXPECT_EQ(spec.name, "ddp");
  EXPECT_EQ(spec.command, "torchrun --x=1 peer.py");
}

TEST(Cases, MayBeInTheRunFile) {
  const testing::TempFolder folder;
  folder.write(
      "run.toml",
      "[train]\nsteps = 3\n[[compare.case]]\nname = \"a\"\nnproc = 2\nparallel_backend = \"ox\"\n"
      "ox.stage = 3\n[[compare.case]]\nname = \"peer\"\nexternal = \"run it\"\n");
  std::vector<std::string> notes;
  const auto cases = cases_of_file((folder.path() / "run.toml").string(), notes);
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].name, "a");
  EXPECT_EQ(cases[0].nproc, 2);
  EXPECT_THAT(cases[0].overrides, UnorderedElementsAre("parallel_backend=\"ox\"", "ox.stage=3"));
  EXPECT_EQ(cases[1].command, "run it");
  folder.write("bad.toml", "[[compare.case]]\nnproc = 2\n");
  EXPECT_THAT(refusal([&] { cases_of_file((folder.path() / "bad.toml").string(), notes); }),
              HasSubstr("bad.toml:1: [[compare.case]] needs a name"));
}

TEST(Cases, OfARunFileHavePathsBesideIt) {
  const testing::TempFolder folder;
  folder.write("sub/own.yaml", "");
  folder.write("sub/more/ds.json", "");
  folder.write("sub/evaluation.txt", "");
  folder.write("sub/run.toml",
               "[[compare.case]]\nname = \"a\"\nox.file = \"own.yaml\"\nox.other = "
               "\"more/ds.json\"\nox.word = \"more\"\nox.gone = \"no/file\"\nox.stage = 3\n"
               "eval.path = \"evaluation.txt\"\nprecision.param = \"bf16\"\n");
  const std::string beside = (folder.path() / "sub").string();
  std::vector<std::string> notes;
  const auto cases = cases_of_file(beside + "/run.toml", notes);
  EXPECT_THAT(cases[0].overrides,
              UnorderedElementsAre("ox.file=\"" + beside + "/own.yaml\"",
                                   "ox.other=\"" + beside + "/more/ds.json\"",
                                   "ox.word=\"more\"",  // a folder is not what an option names
                                   "ox.gone=\"no/file\"",
                                   "ox.stage=3",
                                   "eval.path=\"" + beside + "/evaluation.txt\"",
                                   "precision.param=\"bf16\""));
  EXPECT_TRUE(notes.empty());
}

TEST(Cases, OfARunFileSayWhichOfTwoFilesTheyMean) {
  const testing::TempFolder folder;
  const char* name = "of_two_files.yaml";
  folder.write(name, "beside");
  folder.write("run.toml",
               std::string("[[compare.case]]\nname = \"a\"\nox.file = \"") + name + "\"\n");
  std::ofstream(name) << "here";
  std::vector<std::string> notes;
  cases_of_file((folder.path() / "run.toml").string(), notes);
  std::filesystem::remove(name);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("ox.file: "), HasSubstr("beside the run file, is used")));
}

TEST(Cases, RefuseWhatIsNone) {
  EXPECT_THAT(refusal([] { parse_case("ptd"); }), HasSubstr("expected NAME:key=value"));
  EXPECT_THAT(refusal([] { parse_case("a:nproc=0"); }),
              HasSubstr("nproc=0: not a number of ranks"));
  EXPECT_THAT(refusal([] { parse_external("ddp"); }), HasSubstr("expected NAME=COMMAND"));
  EXPECT_THAT(refusal([] { parse_external("ddp="); }), HasSubstr("expected NAME=COMMAND"));
}

TEST(Cases, HaveNamesOfTheirOwn) {
  const auto named = [](const std::string& a, const std::string& b) {
    return refusal([&] { check_names({CaseSpec{a, {}, {}, ""}, CaseSpec{b, {}, {}, ""}}); });
  };
  EXPECT_EQ(named("a", "b-2.x_"), "");
  EXPECT_THAT(named("a", "a"), HasSubstr("two cases have the name 'a'"));
  EXPECT_THAT(named("a", "../b"), HasSubstr("case '../b': allowed are names of letters"));
  EXPECT_THAT(named("a", "reference"), HasSubstr("'reference', which is reserved"));
}

TEST(Cases, TakeTheirOwnValueOfAKey) {
  EXPECT_THAT(merged({"a=1", "b=2"}, {"b=3", "c=4"}), ElementsAre("a=1", "b=3", "c=4"));
}

LoadedConfig config(const std::string& key, const std::string& value) {
  LoadedConfig loaded;
  loaded.values = {{"seed", "1", "default"}, {key, value, "command line"}};
  return loaded;
}

TEST(Cases, MustTrainTheSame) {
  const CaseSpec a{"a", {}, {}, ""}, b{"b", {}, {}, ""};
  const auto text = [&](const char* key) {
    return incomparable(a, config(key, "1"), b, config(key, "2"));
  };
  for (const char* key :
       {"train.global_batch", "seed", "model.dim", "model.own_key", "data.seq_len"}) {
    EXPECT_THAT(text(key), HasSubstr("case 'b' is not comparable")) << key;
    EXPECT_THAT(text(key), HasSubstr(std::string(key) + " = 2, but 1 in case 'a'"));
  }
  for (const char* key : {"dp_degree", "train.micro_batch", "precision.param", "ox.option"})
    EXPECT_EQ(text(key), "") << key;
}

}  // namespace
}  // namespace yoke::compare
