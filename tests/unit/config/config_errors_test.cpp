// Tests that each error of a configuration is reported with one message, and that the valid values
// are kept.
#include <filesystem>

#include "tests/unit/config/fault_rows.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::file;
using ::testing::HasSubstr;
using testing::least;
using testing::Loading;
using ::testing::Not;
using testing::Row;
using ::testing::StartsWith;
using testing::word;

class Fault : public ::testing::TestWithParam<Row> {};

TEST_P(Fault, IsReportedWithOneMessage) {
  testing::expect_one_message(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    UnknownKey,
    Fault,
    ::testing::Values(
        file("sead = 1", "run.toml:3: unknown key 'sead'; did you mean 'seed'?"),
        file("[train]\nstep = 1",
             "run.toml:4: unknown key 'train.step'; did you mean 'train.steps'?"),
        file("[train]\noptimzer = \"sgd\"",
             "run.toml:4: unknown key 'train.optimzer'; did you mean 'train.optimizer'?"),
        file("lr = 1", "run.toml:3: unknown key 'lr'; did you mean 'train.lr'?"),
        file("[model]\nseq_len = 8",
             "run.toml:4: unknown key 'model.seq_len'; did you mean 'data.seq_len'?"),
        file("data.zzzzzz = 1",
             "run.toml:3: unknown key 'data.zzzzzz'; `yoke config schema` lists all keys"),
        file("[train.lr]\npeak = 1",
             "run.toml:4: unknown key 'train.lr.peak'; 'train.lr' is not a table"),
        file("[seed]\nvalue = 1", "run.toml:4: unknown key 'seed.value'; 'seed' is not a table"),
        file("train = 3", "run.toml:3: 'train' is a table; write train.KEY = 3"),
        word("trian.steps=3",
             "command line: unknown table 'trian'; it is neither a table of the run file nor a "
             "backend (found: draught_horse, ox); did you mean 'train'?"),
        word("train.stepz=3",
             "command line: unknown key 'train.stepz'; did you mean 'train.steps'?"),
        word("batch=3",
             "command line: unknown key 'batch'; `yoke config schema` lists all keys; an option of "
             "a backend is written with its name, BACKEND.batch")));

INSTANTIATE_TEST_SUITE_P(
    UnknownTable,
    Fault,
    ::testing::Values(
        file(
            "[mule]\nsize = 1\nname = \"x\"",
            "run.toml:4: unknown table 'mule'; it is neither a table of the run file nor a backend "
            "(found: draught_horse, ox)"),
        file("[draught_house]\nsize = 1",
             "run.toml:4: unknown table 'draught_house'; it is neither a table of the run file nor "
             "a backend (found: draught_horse, ox); did you mean 'draught_horse'?"),
        file("[metric]",
             "run.toml:3: unknown table 'metric'; it is neither a table of the run file nor a "
             "backend (found: draught_horse, ox); did you mean 'metrics'?"),
        file("[train.sub]", "run.toml:3: unknown table 'train.sub'; train has no subtables"),
        file("[[train]]\nsteps = 1", "run.toml:3: 'train' is a table; write train.KEY = [{...}]"),
        file("[train]\nepochs = 3",
             "run.toml:4: unknown key 'train.epochs'; use train.steps; a run prints at its start "
             "how many epochs its steps are"),
        file("learning_rate = 3", "run.toml:3: unknown key 'learning_rate'; use train.lr"),
        file("ox = 3",
             "run.toml:3: unknown key 'ox'; `yoke config schema` lists all keys; an option of a "
             "backend is written with its name, BACKEND.ox")));

INSTANTIATE_TEST_SUITE_P(
    Missing,
    Fault,
    ::testing::Values(
        Row{{"data.path = \"t\"\n"},
            "parallel_backend is not set; backends found: draught_horse, ox; write "
            "parallel_backend = \"draught_horse\" in run.toml, or parallel_backend=draught_horse "
            "on the command line"},
        Row{{"parallel_backend = \"ox\"\n"},
            "data.path is not set; write data.path = \"FILE\" in run.toml, or data.path=FILE on "
            "the command line"},
        Row{{least(), {"data.path="}},
            "data.path is not set; write data.path = \"FILE\" in run.toml, or data.path=FILE on "
            "the command line"}));

TEST(ConfigError, ReportsAllFaultsOfAllLayersAtOnce) {
  const Loading loaded({least("sead = 1\n[train]\nsteps = -1\nlr = -1\nmicro_batch = 3\n"),
                        {"pp_degree=0", "nonsense"},
                        {{"YOKE_TRAIN_WARMUP", "-1"}}});
  EXPECT_THAT(loaded.faults(),
              ElementsAre(StartsWith("command line: 'nonsense'"),
                          StartsWith("run.toml:3: unknown key"),
                          StartsWith("run.toml:5: train.steps"),
                          StartsWith("run.toml:6: train.lr"),
                          StartsWith("YOKE_TRAIN_WARMUP: train.warmup"),
                          StartsWith("command line: pp_degree"),
                          StartsWith("train.global_batch = 16 (default)")));
  EXPECT_THAT(loaded.text(), StartsWith("run.toml: 7 errors\n  command line: 'nonsense'"));
}

TEST(ConfigError, OneFaultStandsAlone) {
  EXPECT_EQ(Loading({least("sead = 1")}).text(),
            "run.toml:3: unknown key 'sead'; did you mean 'seed'?");
}

TEST(ConfigError, IsAnInvalidArgument) {
  EXPECT_EQ(ConfigError("x", {"y"}).code(), YOKE_INVALID_ARGUMENT);
}

TEST(ConfigError, NamesEveryAssignmentOfAnUnknownTableOnlyOncePerLayer) {
  const Loading loaded({least("[mule]\na = 1\nb = 2\n"), {"mule.a=1", "mule.c=2"}});
  EXPECT_THAT(loaded.faults(),
              ElementsAre(StartsWith("run.toml:4: unknown table 'mule'"),
                          StartsWith("command line: unknown table 'mule'")));
}

// A key with an error has its default value, so a reported contradiction with it would be
// misleading.
TEST(ConfigError, SaysNothingAboutContradictionsWithAFaultyKey) {
  EXPECT_THAT(Loading({least("[precision]\nparam = \"fp64\"\nreduce = \"fp23\"\n")}).faults(),
              ElementsAre(StartsWith("run.toml:5: precision.reduce")));
}

TEST(ConfigError, GivesThePlaceOfASyntaxErrorAndStillReadsTheCommandLine) {
  const Loading loaded({least("[train\nsteps = 1\n"), {"sead=1"}});
  ASSERT_EQ(loaded.faults().size(), 2u);
  EXPECT_THAT(loaded.faults()[0],
              AllOf(StartsWith("run.toml:3: not valid TOML: "), Not(HasSubstr("config import"))));
  EXPECT_THAT(loaded.faults()[1], StartsWith("command line: unknown key 'sead'"));
}

TEST(ConfigError, SaysWhatIsWrongWithALineThatIsNotToml) {
  const std::pair<const char*, const char*> lines[] = {
      {"preset = tiny", "; a text has quotes: preset = \"tiny\""},
      {"path = data/x.txt", "; a text has quotes: path = \"data/x.txt\""},
      {"path = /data/x.txt", "; a text has quotes: path = \"/data/x.txt\""},
      {"preset = \u201ctiny\u201d", "; the line has curly quotes: write straight ones, \" or '"},
      {"preset = \"tiny", "; the closing quote is missing"},
      {"tied = True", "; write tied = true"},
      {"clip = None", "; a key that is left out has its default"},
      {"steps = 3,", "; remove the comma at the end"},
      {"clip = .5", "; write clip = 0.5"},
      {"steps =", "; the value is missing"},
      {"tied = True  # default", "; write tied = true"},
      {"preset = tiny # a note", "; a text has quotes: preset = \"tiny\""},
      {"steps = 3,  # a note", "; remove the comma at the end"},
      {"steps = # a note", "; the value is missing"},
      {"preset = tiny  # not \u201csmall\u201d", "; a text has quotes: preset = \"tiny\""},
      {"preset = \"it\u2019s # 1", "; the closing quote is missing"}};
  for (const auto& [line, hint] : lines) {
    const Loading loaded({least(std::string("[model]\n") + line + "\n")});
    ASSERT_EQ(loaded.faults().size(), 1u) << line;
    EXPECT_THAT(loaded.faults()[0], AllOf(StartsWith("run.toml:4: "), EndsWith(hint)));
  }
}

// The advice is about values, so it would be misleading if the value is correct.
TEST(ConfigError, SaysNothingAboutALineWhoseValueIsCorrect) {
  for (const char* line : {"tied = true",
                           "path = \"it\u2019s \\\" # 1\"  # a \u201cnote\u201d",
                           "betas = [0.9, 0.95]  # True"}) {
    const std::string twice = std::string(line) + "\n" + line + "\n";
    const Loading loaded({least("[model]\n" + twice)});
    ASSERT_EQ(loaded.faults().size(), 1u) << line;
    EXPECT_THAT(loaded.faults()[0],
                AllOf(StartsWith("run.toml:5: "), HasSubstr("redefine"), Not(HasSubstr(";"))));
  }
  const Loading open({least("[model]\nbetas = [a,\n0.95]\n")});
  ASSERT_EQ(open.faults().size(), 1u);
  EXPECT_THAT(open.faults()[0], Not(HasSubstr("comma at the end")));
}

TEST(ConfigError, AKeyTwiceInTheFileIsNamed) {
  const Loading loaded({least("[train]\nsteps = 1\nsteps = 2\n")});
  ASSERT_EQ(loaded.faults().size(), 1u);
  EXPECT_THAT(loaded.faults()[0], StartsWith("run.toml:5: "));
  EXPECT_THAT(loaded.faults()[0], HasSubstr("'steps'"));
}

std::string fault_of_file(const std::string& path) {
  try {
    load_config(path, {}, {}, [](const auto&) { return std::vector<std::string>{}; });
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.faults().size(), 1u);
    return e.what();
  }
  return "no fault";
}

TEST(ConfigError, SaysWhyAFileCannotBeRead) {
  EXPECT_EQ(fault_of_file("/no/such/run.toml"), "/no/such/run.toml: there is no such file");
  EXPECT_EQ(fault_of_file("/tmp"),
            "/tmp: not a regular file; every rank opens the run file, so it cannot be a pipe");
  EXPECT_EQ(fault_of_file("/dev/null"),
            "/dev/null: not a regular file; every rank opens the run file, so it cannot be a pipe");
  const testing::TempFolder folder;
  EXPECT_THAT(fault_of_file(folder.write("binary",
                                         std::string("\x7f"
                                                     "ELF\x02\x01\x01\0\xff\xfe",
                                                     10))),
              HasSubstr("binary:1: not valid TOML: "));
  const std::string yaml = folder.write("ds.yaml", "zero_stage: 1\n");
  EXPECT_THAT(fault_of_file(yaml),
              AllOf(HasSubstr("not valid TOML: "), HasSubstr("`yoke config import " + yaml + "`")));
}

TEST(ConfigError, AnEmptyFileLacksWhatEveryRunNeeds) {
  EXPECT_THAT(
      Loading({""}).faults(),
      ElementsAre(StartsWith("parallel_backend is not set"), StartsWith("data.path is not set")));
}

TEST(ConfigError, SaysThatNoBackendWasFound) {
  const testing::TempFolder folder;
  const std::string path = folder.write("run.toml", "data.path = \"t\"\n");
  EXPECT_THAT(fault_of_file(path),
              StartsWith("parallel_backend is not set; no backend was found; write "
                         "parallel_backend = \"NAME\" in "));
}

}  // namespace
}  // namespace yoke
