#!/usr/bin/env python3
"""Checks that megatron_compat trains like Megatron Core.

The losses and norms of Megatron are in megatron_curves.json, so the comparison needs no Python packages. If Megatron
Core is installed (scripts/setup --peers), the same runs are made with it, and its learning-rate schedules are compared
as well. `megatron_oracle.py --record` writes the file from such runs.
"""
import functools
import json
import os
import pathlib
import subprocess
import sys
import unittest

import curves
import support

CURVES = pathlib.Path(__file__).with_name("megatron_curves.json")
# Bounds of the relative difference of each step: (loss, gradient norm). fp64 tests the logic; fp32 is a sanity check.
BOUNDS = {"fp64": (1e-12, 1e-10), "fp32": (2e-6, 4e-4)}
SPACE = 32  # the most frequent byte of the text: without it, micro-batches differ in their number of targets

DISTRIBUTED = {"use_distributed_optimizer": "true"}
OVERLAP = {"overlap_grad_reduce": "true", "ddp_bucket_size": 20000}
BOTH = {**DISTRIBUTED, **OVERLAP, "overlap_param_gather": "true"}
SEQUENCE = {"sequence_parallel": "true"}
# Name: (ranks, dtype, arguments of the peer, options of megatron_compat, other keys of the run).
CASES = {
    "two replicas": (2, "fp64", ["ddp"], {"loss": "even"}, {}),
    "two replicas, overlap, average in the collective, accumulation": (
        2, "fp64", ["ddp_overlap", "--bucket-size", "20000", "--average", "--accumulate", "2"],
        {**OVERLAP, "ddp_average_in_collective": "true", "loss": "even"}, {"train__micro_batch": 2}),
    "distributed optimizer": (2, "fp64", ["distopt"], DISTRIBUTED, {}),
    "distributed optimizer, overlap, accumulation": (
        2, "fp64", ["distopt_overlap", "--bucket-size", "20000", "--accumulate", "2"], {**BOTH, "loss": "mean_of_means"},
        {"train__micro_batch": 2}),
    "two instances of the distributed optimizer": (
        4, "fp64", ["distopt", "--instances", "2"], {**DISTRIBUTED, "num_distributed_optimizer_instances": 2}, {}),
    "loss per token over uneven micro-batches": (
        2, "fp64", ["distopt_overlap", "--per-token", "--pad-token", str(SPACE), "--accumulate", "4"],
        {**BOTH, "loss": "per_token"}, {"train__micro_batch": 1, "data__pad_token": SPACE}),
    "mean of means over uneven micro-batches": (
        2, "fp64", ["distopt_overlap", "--pad-token", str(SPACE), "--accumulate", "4"],
        {**BOTH, "loss": "mean_of_means"}, {"train__micro_batch": 1, "data__pad_token": SPACE}),
    "uniform recomputation": (
        1, "fp64", ["ddp", "--recompute", "uniform"],
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 4}, {}),
    "recomputation of a block": (
        1, "fp64", ["ddp", "--recompute", "block"],
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4}, {}),
    "distributed optimizer in fp32": (
        2, "fp32", ["distopt_overlap", "--bucket-size", "20000"], BOTH, {}),
    "tensor parallelism, tied": (
        2, "fp64", ["ddp", "--tp", "2", "--tied"], {"loss": "even"}, {"tp_degree": 2, "model__tied": "true"}),
    "tensor and sequence parallelism": (
        2, "fp64", ["ddp", "--tp", "2", "--sequence-parallel"], {**SEQUENCE, "loss": "even"}, {"tp_degree": 2}),
    "tensor and sequence parallelism, distributed optimizer, overlap, accumulation": (
        4, "fp64", ["distopt_overlap", "--bucket-size", "20000", "--tp", "2", "--sequence-parallel", "--accumulate", "2"],
        {**BOTH, **SEQUENCE, "loss": "even"}, {"tp_degree": 2, "train__micro_batch": 2}),
    "pipeline": (
        2, "fp64", ["ddp", "--pp", "2", "--accumulate", "4"], {"loss": "even"}, {"pp_degree": 2, "train__micro_batch": 2}),
    "pipeline, distributed optimizer, overlap, tied": (
        4, "fp64", ["distopt_overlap", "--bucket-size", "20000", "--pp", "2", "--accumulate", "4", "--tied"],
        {**BOTH, "loss": "even"}, {"pp_degree": 2, "train__micro_batch": 1, "model__tied": "true"}),
    "interleaved pipeline": (
        2, "fp64", ["distopt", "--pp", "2", "--chunks", "2", "--accumulate", "4"],
        {**DISTRIBUTED, "num_virtual_stages_per_pipeline_rank": 2, "loss": "even"},
        {"pp_degree": 2, "train__micro_batch": 2}),
    "pipeline, loss per token over uneven micro-batches, recomputation": (
        2, "fp64", ["distopt", "--pp", "2", "--accumulate", "8", "--per-token", "--pad-token", str(SPACE), "--recompute",
                    "block"],
        {**DISTRIBUTED, "loss": "per_token", "recompute_granularity": "full", "recompute_method": "block",
         "recompute_num_layers": 4}, {"pp_degree": 2, "train__micro_batch": 1, "data__pad_token": SPACE}),
    "pipeline, tensor and sequence parallelism in fp32": (
        4, "fp32", ["ddp", "--pp", "2", "--tp", "2", "--sequence-parallel", "--accumulate", "4"],
        {**SEQUENCE, "loss": "even"}, {"pp_degree": 2, "tp_degree": 2, "train__micro_batch": 2}),
}
# Cases that the others include to a large part.
NIGHTLY = {
    "two replicas", "two replicas, overlap, average in the collective, accumulation", "distributed optimizer",
    "distributed optimizer, overlap, accumulation", "uniform recomputation", "distributed optimizer in fp32",
    "tensor parallelism, tied", "tensor and sequence parallelism", "pipeline",
    "pipeline, tensor and sequence parallelism in fp32",
}


def run_megatron(case, text, out):
    ranks, dtype, arguments, _, _ = CASES[case]
    return curves.run_peer("megatron", ranks, dtype, arguments, text, out)


class RecordedCurves(support.OracleTest):
    """Compares runs with the recorded losses and norms of Megatron."""

    def compare(self, names):
        curves.check_recorded(self, CURVES, {name: CASES[name] for name in names}, "megatron_compat", BOUNDS,
                              train__decay="matrices")


class Training(RecordedCurves):
    def test_every_case_is_recorded(self):
        self.assertEqual(set(json.loads(CURVES.read_text(encoding="utf-8"))["cases"]), set(CASES))
        self.assertLess(NIGHTLY, set(CASES))

    def test_recorded_losses_and_norms_of_megatron(self):
        self.compare(case for case in CASES if case not in NIGHTLY)


class Nightly(RecordedCurves):
    def test_recorded_losses_and_norms_of_other_arrangements(self):
        self.compare(case for case in CASES if case in NIGHTLY)


@unittest.skipUnless(curves.has_module("megatron.core"), "Megatron Core is not installed; scripts/setup --peers installs it")
class Peer(support.OracleTest):
    """Checks that the recorded values are still those of the installed Megatron Core. It is a nightly test."""

    def test_the_installed_megatron_still_has_the_recorded_losses(self):
        recorded = json.loads(CURVES.read_text(encoding="utf-8"))["cases"]
        for number, case in enumerate(("distributed optimizer, overlap, accumulation",
                                       "mean of means over uneven micro-batches")):
            theirs = run_megatron(case, self.text, self.folder / f"{number}.jsonl")
            for a, b in zip(theirs["loss"], recorded[case]["loss"], strict=True):
                self.assertLess(abs(a - b) / b, 1e-13, case)


MODEL = ("--num-layers 1 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 2 --normalization RMSNorm --swiglu "
         "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --position-embedding-type rope "
         "--untie-embeddings-and-output-weights --vocab-size 256 --seq-length 16 --micro-batch-size 2 "
         "--global-batch-size 2 --eval-iters 0 --log-interval 1 --lr 0.003 ")
RATES = [
    "--train-iters 24 --lr-decay-style constant --lr-warmup-iters 5",
    "--train-iters 24 --lr-decay-style linear --lr-warmup-iters 5 --min-lr 0.0003",
    "--train-iters 24 --lr-decay-iters 20 --lr-decay-style cosine --lr-warmup-init 0.001 --lr-warmup-fraction 0.25",
    "--train-samples 48 --lr-decay-samples 40 --lr-warmup-samples 8 --lr-decay-style cosine --min-lr 0.001",
    "--train-iters 24 --lr-decay-style inverse-square-root --lr-warmup-iters 4",
    *(f"--train-iters 24 --lr-decay-style WSD --lr-wsd-decay-iters 9 --lr-warmup-iters 3 --min-lr 0.0001 {style}"
      for style in ("", "--lr-wsd-decay-style linear", "--lr-wsd-decay-style cosine", "--lr-wsd-decay-style minus_sqrt")),
]
# Prints the rates of Megatron's scheduler as its training loop sets it up, from the arguments as JSON.
SCHEDULER = """
import json, sys, torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
a = json.loads(sys.argv[1])
batch = 2
steps = int(a.get('train-iters', 0)) or int(a['train-samples']) // batch
samples = lambda name: int(a[name + '-samples']) if name + '-samples' in a else int(a.get(name + '-iters', 0)) * batch
decay = samples('lr-decay') or steps * batch
warmup = float(a['lr-warmup-fraction']) * decay if 'lr-warmup-fraction' in a else samples('lr-warmup')
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.003)
scheduler = OptimizerParamScheduler(
    optimizer, init_lr=float(a.get('lr-warmup-init', 0)), max_lr=0.003, min_lr=float(a.get('min-lr', 0)),
    lr_warmup_steps=warmup, lr_decay_steps=decay, lr_decay_style=a['lr-decay-style'], start_wd=0.01, end_wd=0.01,
    wd_incr_steps=steps, wd_incr_style='constant', wsd_decay_steps=samples('lr-wsd-decay') or None,
    lr_wsd_decay_style=a.get('lr-wsd-decay-style', 'exponential'))
rates = []
for _ in range(steps):
    rates.append(optimizer.param_groups[0]['lr'])
    scheduler.step(batch)
print(json.dumps(rates))
"""


@unittest.skipUnless(curves.has_module("megatron.core"), "Megatron Core is not installed; scripts/setup --peers installs it")
class Schedules(support.OracleTest):
    def rates_of_megatron(self, arguments):
        words = arguments.replace("--", "").split()
        pairs = json.dumps(dict(zip(words[::2], words[1::2])))
        command = [support.find_peers_python(), "-c", SCHEDULER, pairs]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])

    def test_an_imported_command_line_has_the_rates_of_megatron(self):
        yoke = os.environ["YOKE_BIN"] + "/yoke"
        for number, arguments in enumerate(RATES):
            with self.subTest(arguments):
                script, run_file = self.folder / f"{number}.args", self.folder / f"{number}.toml"
                script.write_text(MODEL + arguments, encoding="utf-8")
                lines = subprocess.run([yoke, "config", "import", script, f"data.path={self.text}"], check=True,
                                       capture_output=True, text=True).stdout
                self.assertNotIn("# refused", lines)
                run_dir = self.folder / f"run{number}"
                run_file.write_text(lines, encoding="utf-8")
                subprocess.run([yoke, "train", run_file, f"run.dir={run_dir}",
                                f"megatron_compat.args_file={script}"], check=True, capture_output=True)
                ours = [line["lr"] for line in support.read_lines(run_dir / "metrics.jsonl") if "lr" in line]
                theirs = self.rates_of_megatron(arguments)
                self.assertEqual(len(ours), len(theirs))
                for step, (a, b) in enumerate(zip(ours, theirs), start=1):
                    self.assertAlmostEqual(a, b, delta=1e-15, msg=f"step {step}")


def record():
    about = ("Losses and gradient norms of Megatron Core 0.16.1 on the CPU, written by megatron_oracle.py --record on "
             "2026-11-23: tiny, 20 steps, AdamW, rotary tables in the dtype of the run.")
    curves.record(Training, CURVES, about, {case: functools.partial(run_megatron, case) for case in CASES})


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        unittest.main(verbosity=2)
