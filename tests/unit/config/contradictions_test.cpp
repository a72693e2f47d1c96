// Tests the messages about values that contradict each other.
#include "tests/unit/config/fault_rows.hpp"

namespace yoke {
namespace {

using testing::file;
using testing::Row;
using testing::word;

class Contradiction : public ::testing::TestWithParam<Row> {};

TEST_P(Contradiction, IsReportedWithOneMessage) {
  testing::expect_one_message(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    Contradiction,
    ::testing::Values(
        file("[precision]\nparam = \"fp64\"\nreduce = \"fp32\"",
             "precision.reduce = \"fp32\" (run.toml:5) is less precise than precision.param = "
             "\"fp64\" (run.toml:4); allowed: fp64"),
        word("precision.reduce=bf16",
             "precision.reduce = \"bf16\" (command line) is less precise than precision.param = "
             "\"fp32\" (default); allowed: fp32, fp64"),
        file("[precision]\nparam = \"fp16\"\nreduce = \"bf16\"",
             "precision.reduce = \"bf16\" (run.toml:5) is less precise than precision.param = "
             "\"fp16\" (run.toml:4); allowed: fp16, fp32, fp64"),
        word("loss_scale.window=10",
             "loss_scale.window = 10 (command line) has no effect with precision.param = \"fp32\" "
             "(default); set precision.param = \"fp16\", or remove it"),
        file("[precision]\nparam = \"fp16\"\n[loss_scale]\nstatic = 8\nwindow = 10",
             "loss_scale.window = 10 (run.toml:7) has no effect with loss_scale.static = 8.0 "
             "(run.toml:6); remove one of them"),
        file("[precision]\nparam = \"fp16\"\n[loss_scale]\nrule = \"grad_scaler\"\nmin = 2",
             "loss_scale.min = 2.0 (run.toml:7) has no effect with loss_scale.rule = "
             "\"grad_scaler\" (run.toml:6); remove one of them"),
        file("[precision]\nparam = \"fp16\"\n[loss_scale]\nrule = \"fp16_optimizer\"\nhysteresis = "
             "1",
             "loss_scale.hysteresis = 1 (run.toml:7) has no effect with loss_scale.rule = "
             "\"fp16_optimizer\" (run.toml:6); remove one of them"),
        file("[precision]\nparam = \"fp16\"\n[loss_scale]\nrule = \"fp16_optimizer\"\n"
             "initial_power = 2\nmin = 8",
             "loss_scale.min = 8.0 (run.toml:8) is above the initial scale, 2 to the power of "
             "loss_scale.initial_power = 2 (run.toml:7)"),
        file("[precision]\nparam = \"fp16\"\n[loss_scale]\ninitial_power = 2\nmin = 8",
             "loss_scale.min = 8.0 (run.toml:7) is above the initial scale, 2 to the power of "
             "loss_scale.initial_power = 2 (run.toml:6)"),
        file("[precision]\nparam = \"fp16\"\nproduct = \"fp8\"",
             "precision.product = \"fp8\" (run.toml:5) is not supported with precision.param = "
             "\"fp16\" (run.toml:4); set precision.param = \"bf16\", which needs no loss scale, or "
             "precision.product = \"param\""),
        file("[train]\ndeterministic = true\ntune_products = true",
             "train.tune_products = true (run.toml:5) contradicts train.deterministic = true "
             "(run.toml:4); remove one of them"),
        file("[train]\noptimizer = \"lion\"\nbias_correction = false",
             "train.bias_correction = false (run.toml:5) has no effect with train.optimizer = "
             "\"lion\" (run.toml:4); only adamw and adam correct moments; remove it"),
        word("data.split=[9, 1]",
             "data.split = [9.0, 1.0] (command line) has no effect with data.order = \"shuffled\" "
             "(default); set data.order = \"megatron\", or use data.holdout"),
        file("data.order = \"megatron\"\ndata.holdout = 0.1",
             "data.holdout = 0.1 (run.toml:4) has no effect with data.order = \"megatron\" "
             "(run.toml:3); use data.split"),
        file("data.order = \"megatron\"\ndata.split = [0, 0]",
             "data.split = [0.0, 0.0] (run.toml:4): allowed: one to three shares, of training, "
             "evaluation and test, with a sum above 0"),
        file("[train]\noptimizer = \"muon\"",
             "train.optimizer = \"muon\" (run.toml:4) needs a momentum above 0; add train.momentum "
             "= 0.95"),
        word("precision.fp8_recipe=rowwise",
             "precision.fp8_recipe = \"rowwise\" (command line) has no effect with "
             "precision.product = \"param\" (default); set precision.product = \"fp8\", or leave "
             "precision.fp8_recipe out"),
        file(
            "[precision]\nfp8_skip = []",
            "precision.fp8_skip = [] (run.toml:4) has no effect with precision.product = \"param\" "
            "(default); set precision.product = \"fp8\", or leave precision.fp8_skip out"),
        file("[model]\ndim = 64\nheads = 5",
             "model.dim = 64 (run.toml:4) is not a multiple of model.heads = 5 (run.toml:5); "
             "nearest: model.dim = 60 or 65"),
        file("[model]\nheads = 4\nkv_heads = 8",
             "model.heads = 4 (run.toml:4) is not a multiple of model.kv_heads = 8 (run.toml:5); "
             "nearest: model.heads = 8"),
        word(
            "train.micro_batch=3",
            "train.global_batch = 16 (default) is not a multiple of train.micro_batch = 3 (command "
            "line); nearest: train.global_batch = 15 or 18"),
        file("data.holdout = 0\n[eval]\nevery = 5",
             "eval.every = 5 (run.toml:5) has no data to evaluate on, because data.holdout = 0.0 "
             "(run.toml:3); set eval.every = 0, data.holdout above 0, or eval.path"),
        file("data.holdout = 0.05\n[eval]\nevery = 5\npath = \"v\"",
             "data.holdout = 0.05 (run.toml:3) would hold out training data for evaluation, but "
             "eval.path = \"v\" (run.toml:6) is evaluated; remove one of them"),
        word("eval.path=v",
             "eval.path = \"v\" (command line) is never evaluated, because eval.every = 0 "
             "(default); set eval.every above 0, or remove eval.path"),
        word("data.weights=1,2",
             "data.weights = [1.0, 2.0] (command line) has a weight for 2 entries, but data.path = "
             "\"text\" (run.toml:2) has 1; give one weight for each entry of data.path"),
        word("data.document_end=0",
             "data.document_end = 0 (command line) has no effect with data.documents = \"joined\" "
             "(default); set data.documents = \"separate\", or remove it"),
        word("parallel_backend=train",
             "parallel_backend = \"train\" (command line): a backend cannot have the name of a "
             "table of the run file"),
        word("lr_schedule.power=2",
             "lr_schedule.power = 2.0 (command line) has no effect with train.schedule = "
             "\"constant\" "
             "(default); remove it, or choose another schedule"),
        file("[train]\nschedule = \"linear\"\nwarmup = 9\n[lr_schedule]\ntotal_steps = 8",
             "lr_schedule.total_steps = 8 (run.toml:7) is less than train.warmup = 9 (run.toml:5); "
             "the "
             "schedule must not end before its warmup"),
        word("backend_path=relative/folder",
             "backend_path = [\"relative/folder\"] (command line): every folder must be an "
             "absolute path"),
        word("worker=bin/mine",
             "worker = \"bin/mine\" (command line): must be an absolute path, or empty for "
             "yoke-worker"),
        file("[checkpoint]\nbest = true\nevery = 5",
             "checkpoint.best = true (run.toml:4) has no effect, because eval.every = 0 (default); "
             "set eval.every above 0, or remove checkpoint.best"),
        file("[checkpoint]\nbest = true\n[eval]\nevery = 5",
             "checkpoint.best = true (run.toml:4) has no effect, because checkpoint.every = 0 "
             "(default); set checkpoint.every above 0, or remove checkpoint.best"),
        word("train.steps=0",
             "train.steps = 0 (command line) only saves the initial parameters, but "
             "checkpoint.every = 0 (default) disables saving; set checkpoint.every = 1, or "
             "train.steps above 0")));

}  // namespace
}  // namespace yoke
