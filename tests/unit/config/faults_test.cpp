// Every way to write a run wrongly that we could think of, and the one sentence it earns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/config/support.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using testing::Given;
using ::testing::HasSubstr;
using testing::least;
using testing::Loading;
using ::testing::StartsWith;

struct Row {
  Given given;
  std::string fault;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.fault;
}

Row file(const std::string& more, const std::string& fault) {
  return {{least(more)}, fault};
}
Row word(const std::string& word, const std::string& fault) {
  return {{least(), {word}}, fault};
}
Row variable(const std::string& name, const std::string& value, const std::string& fault) {
  return {{least(), {}, {{name, value}}}, fault};
}

class Fault : public ::testing::TestWithParam<Row> {};

TEST_P(Fault, EarnsOneSentence) {
  EXPECT_THAT(Loading(GetParam().given).faults(), ElementsAre(GetParam().fault));
}

// The two keys that every run needs stand in lines 1 and 2.
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
             "run.toml:4: unknown key 'train.lr.peak'; 'train.lr' is no table"),
        file("[seed]\nvalue = 1", "run.toml:4: unknown key 'seed.value'; 'seed' is no table"),
        file("train = 3", "run.toml:3: 'train' is a table; write train.KEY = 3"),
        word("trian.steps=3",
             "command line: unknown table 'trian'; it is neither a table of a run file nor a "
             "backend "
             "that was found (draught_horse, ox); did you mean 'train'?"),
        word("train.stepz=3",
             "command line: unknown key 'train.stepz'; did you mean 'train.steps'?"),
        word("batch=3", "command line: unknown key 'batch'; `yoke config schema` lists all keys"),
        variable(
            "YOKE_TRAIN_STEP",
            "3",
            "YOKE_TRAIN_STEP: no key of a run has this variable; did you mean 'YOKE_TRAIN_STEPS'?"),
        variable("YOKE_SEEDS",
                 "3",
                 "YOKE_SEEDS: no key of a run has this variable; did you mean 'YOKE_SEED'?"),
        variable("YOKE_MODEL_SHAPE_OF_THINGS",
                 "3",
                 "YOKE_MODEL_SHAPE_OF_THINGS: no key of a run has this variable")));

INSTANTIATE_TEST_SUITE_P(
    UnknownTable,
    Fault,
    ::testing::Values(
        file("[mule]\nsize = 1\nname = \"x\"",
             "run.toml:4: unknown table 'mule'; it is neither a table of a run file nor a backend "
             "that was found (draught_horse, ox)"),
        file("[draught_house]\nsize = 1",
             "run.toml:4: unknown table 'draught_house'; it is neither a table of a run file nor a "
             "backend that was found (draught_horse, ox); did you mean 'draught_horse'?"),
        file(
            "[metric]",
            "run.toml:3: unknown table 'metric'; it is neither a table of a run file nor a backend "
            "that was found (draught_horse, ox); did you mean 'metrics'?"),
        file("[train.sub]", "run.toml:3: unknown table 'train.sub'; train has no tables below it"),
        file("[[train]]\nsteps = 1", "run.toml:3: 'train' is a table; write train.KEY = [{...}]"),
        file("ox = 3", "run.toml:3: unknown key 'ox'; `yoke config schema` lists all keys")));

INSTANTIATE_TEST_SUITE_P(
    Syntax,
    Fault,
    ::testing::Values(
        word("train.steps",
             "command line: 'train.steps' is not of the form key=value, like train.steps=10"),
        word("=3", "command line: '=3' is not of the form key=value, like train.steps=10"),
        word("", "command line: '' is not of the form key=value, like train.steps=10"),
        Row{{least(), {"seed=1", "seed=2"}}, "command line: seed is given twice"},
        file("\"train.steps\" = 1\n[train]\nsteps = 2",
             "run.toml:5: train.steps is given twice; first at run.toml:3")));

INSTANTIATE_TEST_SUITE_P(
    WrongType,
    Fault,
    ::testing::Values(
        file("[train]\nsteps = \"many\"",
             "run.toml:4: train.steps = \"many\": expected an integer, got a string"),
        file("[train]\nsteps = 1e2",
             "run.toml:4: train.steps = 100.0: expected an integer, got a float; write 100"),
        file("[train]\nsteps = 1.5",
             "run.toml:4: train.steps = 1.5: expected an integer, got a float"),
        file("[train]\nlr = \"fast\"",
             "run.toml:4: train.lr = \"fast\": expected a number, got a string"),
        file("[train]\nlr = true", "run.toml:4: train.lr = true: expected a number, got a boolean"),
        file("[train]\noptimizer = 3",
             "run.toml:4: train.optimizer = 3: expected a string, got an integer; write \"3\""),
        file("[train]\nbetas = [0.9]",
             "run.toml:4: train.betas = [0.9]: expected a list of two numbers, like [0.9, 0.95], "
             "got a list"),
        file("[train]\nbetas = 0.9",
             "run.toml:4: train.betas = 0.9: expected a list of two numbers, like [0.9, 0.95], got "
             "a float"),
        file("[model]\ntied = 1",
             "run.toml:4: model.tied = 1: expected true or false, got an integer"),
        file("data.order = [\"shuffled\"]",
             "run.toml:3: data.order = [\"shuffled\"]: expected a string, got a list"),
        file("backend_path = \"/a\"",
             "run.toml:3: backend_path = \"/a\": expected a list of strings, like [\"/a\", "
             "\"/b\"], got a string"),
        file("[run]\ndir = 2024-01-01",
             "run.toml:4: run.dir = 2024-01-01: expected a string, got a date or time; write "
             "\"2024-01-01\""),
        word("train.steps=ten",
             "command line: train.steps = \"ten\": expected an integer, got a string"),
        word("train.steps=", "command line: train.steps = \"\": expected an integer, got a string"),
        word("model.tied=yes",
             "command line: model.tied = \"yes\": expected true or false, got a string"),
        variable("YOKE_TRAIN_LR",
                 "quick",
                 "YOKE_TRAIN_LR: train.lr = \"quick\": expected a number, got a string"),
        file(
            "[ox]\nlist = [1, 2]",
            "run.toml:4: ox.list: expected an integer, a float, a boolean or a string, got a list"),
        word("ox.name=\xff", "command line: ox.name: not valid UTF-8 text"),
        word("run.dir=\xff", "command line: run.dir = \"\xff\": not valid UTF-8 text"),
        file("[run]\ndir = \"a\\u0000b\"",
             "run.toml:4: run.dir = \"a\\u0000b\": not valid UTF-8 text")));

INSTANTIATE_TEST_SUITE_P(
    OutOfRange,
    Fault,
    ::testing::Values(
        file("seed = -1", "run.toml:3: seed = -1: out of range; allowed: 0 or more"),
        file("dp_shards = 0", "run.toml:3: dp_shards = 0: out of range; allowed: 1 or more"),
        file("dp_degree = -2", "run.toml:3: dp_degree = -2: out of range; allowed: 1 or more"),
        file("dp_degree = 3000000000",
             "run.toml:3: dp_degree = 3000000000: out of range; allowed: at most 2147483647"),
        file("[train]\nsteps = -1",
             "run.toml:4: train.steps = -1: out of range; allowed: 0 or more"),
        file("[train]\nglobal_batch = 0",
             "run.toml:4: train.global_batch = 0: out of range; allowed: 1 or more"),
        file("[train]\nmicro_batch = 0",
             "run.toml:4: train.micro_batch = 0: out of range; allowed: 1 or more"),
        file("[train]\nlr = 0", "run.toml:4: train.lr = 0: out of range; allowed: above 0"),
        file("[train]\nlr = -1e-3",
             "run.toml:4: train.lr = -0.001: out of range; allowed: above 0"),
        file("[train]\nlr = inf", "run.toml:4: train.lr = inf: expected a finite number"),
        file("[train]\nclip = nan", "run.toml:4: train.clip = nan: expected a finite number"),
        file("[train]\nwarmup = -1",
             "run.toml:4: train.warmup = -1: out of range; allowed: 0 or more"),
        file("[train]\nbetas = [0.9, 1.0]",
             "run.toml:4: train.betas = [0.9, 1.0]: out of range; allowed: at least 0 and below 1"),
        file("[train]\neps = 0.0", "run.toml:4: train.eps = 0.0: out of range; allowed: above 0"),
        file("[train]\nmomentum = 1",
             "run.toml:4: train.momentum = 1: out of range; allowed: at least 0 and below 1"),
        file("data.holdout = 1.0",
             "run.toml:3: data.holdout = 1.0: out of range; allowed: at least 0 and below 1"),
        file("data.holdout = -0.1",
             "run.toml:3: data.holdout = -0.1: out of range; allowed: at least 0 and below 1"),
        file("data.seq_len = 0", "run.toml:3: data.seq_len = 0: out of range; allowed: 1 or more"),
        file("[model]\ndim = 0", "run.toml:4: model.dim = 0: out of range; allowed: 1 or more"),
        file("[checkpoint]\nkeep = 0",
             "run.toml:4: checkpoint.keep = 0: out of range; allowed: 1 or more"),
        file("[metrics]\nevery = 0",
             "run.toml:4: metrics.every = 0: out of range; allowed: 1 or more"),
        file("[comm]\ntimeout = 0",
             "run.toml:4: comm.timeout = 0: out of range; allowed: above 0 and at most 1e7"),
        file("[run]\ndir = \"\"", "run.toml:4: run.dir = \"\": must not be empty"),
        file("[checkpoint]\nresume = \"\"",
             "run.toml:4: checkpoint.resume = \"\": must not be empty")));

INSTANTIATE_TEST_SUITE_P(
    BadChoice,
    Fault,
    ::testing::Values(
        file("[train]\noptimizer = \"adam\"",
             "run.toml:4: train.optimizer = \"adam\": allowed: adamw, sgd; did you mean 'adamw'?"),
        file("[train]\nschedule = \"step\"",
             "run.toml:4: train.schedule = \"step\": allowed: constant, linear, cosine, wsd"),
        file("data.order = \"Shuffled\"",
             "run.toml:3: data.order = \"Shuffled\": allowed: shuffled, sequential; did you mean "
             "'shuffled'?"),
        file("[comm]\ncheck = \"\"", "run.toml:4: comm.check = \"\": allowed: off, step, full"),
        word("precision.param=fp16",
             "command line: precision.param = \"fp16\": allowed: fp64, fp32, bf16"),
        file("device = \"tpu\"",
             "run.toml:3: device = \"tpu\": allowed: cpu, cuda, auto; did you mean 'cpu'?"),
        variable("YOKE_TRAIN_DECAY",
                 "matrix",
                 "YOKE_TRAIN_DECAY: train.decay = \"matrix\": allowed: all, matrices")));

INSTANTIATE_TEST_SUITE_P(
    Planned,
    Fault,
    ::testing::Values(
        word("pp_degree=4",
             "command line: pp_degree = 4: pipeline parallelism is not built yet; allowed: 1"),
        word("device=gpu",
             "command line: device = \"gpu\": allowed: cpu, cuda, auto; did you mean 'cpu'?"),
        word("precision.param=fp8",
             "command line: precision.param = \"fp8\": fp8 is not built yet; allowed: fp64, fp32, "
             "bf16")));

INSTANTIATE_TEST_SUITE_P(
    Missing,
    Fault,
    ::testing::Values(
        Row{{"data.path = \"t\"\n"},
            "parallel_backend is not set; found: draught_horse, ox; write parallel_backend = "
            "\"draught_horse\" in run.toml, or parallel_backend=draught_horse on the command line"},
        Row{{"parallel_backend = \"ox\"\n"},
            "data.path is not set; write data.path = \"FILE\" in run.toml, or data.path=FILE on "
            "the "
            "command line"},
        Row{{least(), {"data.path="}},
            "data.path is not set; write data.path = \"FILE\" in run.toml, or data.path=FILE on "
            "the "
            "command line"}));

INSTANTIATE_TEST_SUITE_P(
    Contradiction,
    Fault,
    ::testing::Values(
        file("[precision]\nparam = \"fp64\"\nreduce = \"fp32\"",
             "precision.reduce = \"fp32\" (run.toml:5) is less precise than precision.param = "
             "\"fp64\" (run.toml:4); allowed: fp64"),
        word("precision.reduce=bf16",
             "precision.reduce = \"bf16\" (command line) is less precise than precision.param = "
             "\"fp32\" (default); allowed: fp32, fp64"),
        file("[model]\ndim = 64\nheads = 5",
             "model.dim = 64 (run.toml:4) is not a multiple of model.heads = 5 (run.toml:5); "
             "nearest: "
             "model.dim = 60 or 65"),
        file("[model]\nheads = 4\nkv_heads = 8",
             "model.heads = 4 (run.toml:4) is not a multiple of model.kv_heads = 8 (run.toml:5); "
             "nearest: model.heads = 8"),
        word(
            "train.micro_batch=3",
            "train.global_batch = 16 (default) is not a multiple of train.micro_batch = 3 (command "
            "line); nearest: train.global_batch = 15 or 18"),
        file("data.holdout = 0\n[eval]\nevery = 5",
             "eval.every = 5 (run.toml:5) has nothing to evaluate on, for data.holdout = 0.0 "
             "(run.toml:3); set eval.every = 0, or data.holdout above 0"),
        word("parallel_backend=train",
             "parallel_backend = \"train\" (command line): a backend cannot be named like a table "
             "of "
             "the run file"),
        word("backend_path=relative/folder",
             "backend_path = [\"relative/folder\"] (command line): every folder must be an "
             "absolute path"),
        word("worker=bin/mine",
             "worker = \"bin/mine\" (command line): must be an absolute path, or empty for "
             "yoke-worker"),
        word("train.steps=0",
             "train.steps = 0 (command line) only saves the initial values, and checkpoint.every = "
             "0 (default) saves nothing; set checkpoint.every = 1, or train.steps above 0")));

TEST(ConfigError, ReportsAllFaultsOfAllLayersAtOnce) {
  const Loading loaded({least("sead = 1\n[train]\nsteps = -1\nlr = -1\nmicro_batch = 3\n"),
                        {"pp_degree=2", "nonsense"},
                        {{"YOKE_TRAIN_WARMUP", "-1"}}});
  EXPECT_THAT(loaded.faults(),
              ElementsAre(StartsWith("command line: 'nonsense'"),
                          StartsWith("run.toml:3: unknown key"),
                          StartsWith("run.toml:5: train.steps"),
                          StartsWith("run.toml:6: train.lr"),
                          StartsWith("YOKE_TRAIN_WARMUP: train.warmup"),
                          StartsWith("command line: pp_degree"),
                          StartsWith("train.global_batch = 16 (default)")));
  EXPECT_THAT(loaded.text(), StartsWith("run.toml: 7 faults\n  command line: 'nonsense'"));
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

// A key at fault has no sound value, so a contradiction with it would only confuse.
TEST(ConfigError, SaysNothingAboutContradictionsWithAFaultyKey) {
  EXPECT_THAT(Loading({least("[precision]\nparam = \"fp64\"\nreduce = \"fp23\"\n")}).faults(),
              ElementsAre(StartsWith("run.toml:5: precision.reduce")));
}

TEST(ConfigError, GivesThePlaceOfASyntaxErrorAndStillReadsTheCommandLine) {
  const Loading loaded({least("[train\nsteps = 1\n"), {"sead=1"}});
  ASSERT_EQ(loaded.faults().size(), 2u);
  EXPECT_THAT(loaded.faults()[0], StartsWith("run.toml:3: not valid TOML: "));
  EXPECT_THAT(loaded.faults()[1], StartsWith("command line: unknown key 'sead'"));
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
            "/tmp: not a regular file; every rank reads the run file for itself");
  EXPECT_EQ(fault_of_file("/dev/null"),
            "/dev/null: not a regular file; every rank reads the run file for itself");
  const testing::TempFolder folder;
  EXPECT_THAT(fault_of_file(folder.write("binary",
                                         std::string("\x7f"
                                                     "ELF\x02\x01\x01\0\xff\xfe",
                                                     10))),
              HasSubstr("binary:1: not valid TOML: "));
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
