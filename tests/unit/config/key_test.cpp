// Tests the messages about values that a key does not accept.
#include "tests/unit/config/fault_rows.hpp"

namespace yoke {
namespace {

using testing::file;
using testing::Row;
using testing::variable;
using testing::word;

class KeyFault : public ::testing::TestWithParam<Row> {};

TEST_P(KeyFault, IsReportedWithOneMessage) {
  testing::expect_one_message(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    WrongType,
    KeyFault,
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
        word("train.betas=[0.9]",
             "command line: train.betas = [0.9]: expected a list of two numbers, like [0.9, 0.95], "
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
        file("[eval]\npath = 3",
             "run.toml:4: eval.path = 3: expected a string, or a list of strings, like [\"a\", "
             "\"b\"], got an integer"),
        file("eval.path = [\"a\", \"\"]",
             "run.toml:3: eval.path = [\"a\", \"\"]: no entry may be empty"),
        file("data.weights = \"a\"",
             "run.toml:3: data.weights = \"a\": expected a list of numbers, like [0.7, 0.3], got a "
             "string"),
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
    KeyFault,
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
        file("data.weights = [0]",
             "run.toml:3: data.weights = [0]: out of range; allowed: above 0"),
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
    KeyFault,
    ::testing::Values(
        file("[train]\noptimizer = \"lyon\"",
             "run.toml:4: train.optimizer = \"lyon\": allowed: adamw, adam, lion, muon, sgd; did "
             "you mean "
             "'lion'?"),
        file("[train]\nschedule = \"step\"",
             "run.toml:4: train.schedule = \"step\": allowed: constant, linear, cosine, "
             "cosine_restarts, polynomial, "
             "inverse_sqrt, wsd, WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest"),
        file("data.order = \"Shuffled\"",
             "run.toml:3: data.order = \"Shuffled\": allowed: shuffled, sequential, megatron, "
             "nanotron; did you mean "
             "'shuffled'?"),
        file("[comm]\ncheck = \"\"", "run.toml:4: comm.check = \"\": allowed: off, step, full"),
        word("precision.param=fp12",
             "command line: precision.param = \"fp12\": allowed: fp64, fp32, bf16, fp16; did you "
             "mean 'fp32'?"),
        file("device = \"tpu\"",
             "run.toml:3: device = \"tpu\": allowed: cpu, cuda, auto; did you mean 'cpu'?"),
        variable("YOKE_TRAIN_DECAY",
                 "matrix",
                 "YOKE_TRAIN_DECAY: train.decay = \"matrix\": allowed: all, matrices")));

}  // namespace
}  // namespace yoke
