#!/usr/bin/env python3
"""Checks that nanotron_compat trains like nanotron.

The losses and norms of nanotron are in nanotron_curves.json, so the comparison needs no Python packages. If nanotron is
installed (scripts/setup --peers), some of the same runs are made with it, and its learning-rate schedules are compared
as well. `nanotron_oracle.py --record` writes the file from such runs.
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

CURVES = pathlib.Path(__file__).with_name("nanotron_curves.json")
# Bounds of the relative difference of each step: (loss, gradient norm). fp64 tests the logic; fp32 is a sanity check. In
# bf16, nanotron begins with values in bf16 and sums rows of matrices in another order.
BOUNDS = {"fp64": (1e-12, 1e-10), "fp32": (2e-6, 4e-4), "bf16": (2e-3, 5e-2)}
SPACE = 32  # the most frequent byte of the text: without it, micro-batches differ in their number of targets

ZERO = {"zero_stage": 1}
SEQUENCE = {"tp_mode": "REDUCE_SCATTER"}
# Name: (ranks, dtype, arguments of the peer, options of nanotron_compat, other keys of the run).
CASES = {
    "one rank, accumulation": (1, "fp64", ["zero0", "--accumulate", "4"], {"loss": "even"}, {"train__micro_batch": 2}),
    "two replicas": (2, "fp64", ["zero0"], {"loss": "even"}, {}),
    "two replicas, small buckets, accumulation": (
        2, "fp64", ["zero0", "--bucket-mb", "1", "--accumulate", "2"], {"ddp_bucket_cap_mb": 1, "loss": "even"},
        {"train__micro_batch": 2}),
    "four replicas": (4, "fp64", ["zero0"], {"recompute_layer": "true"}, {}),
    "ZeRO stage 1": (2, "fp64", ["zero1"], ZERO, {}),
    "ZeRO stage 1, accumulation": (
        2, "fp64", ["zero1", "--accumulate", "2"], {**ZERO, "loss": "mean_of_means"}, {"train__micro_batch": 2}),
    "ZeRO stage 1 over four ranks": (4, "fp64", ["zero1"], ZERO, {}),
    "mean of means over uneven micro-batches": (
        2, "fp64", ["zero1", "--pad-token", str(SPACE), "--accumulate", "4"], {**ZERO, "loss": "mean_of_means"},
        {"train__micro_batch": 1, "data__pad_token": SPACE}),
    "ZeRO stage 1 in fp32": (2, "fp32", ["zero1"], ZERO, {}),
    "tensor parallelism, tied": (
        2, "fp64", ["zero0", "--tp", "2", "--tied"], {"loss": "even"}, {"tp_degree": 2, "model__tied": "true"}),
    "tensor parallelism, REDUCE_SCATTER": (
        2, "fp64", ["zero0", "--tp", "2", "--sequence-parallel"], {**SEQUENCE, "loss": "even"}, {"tp_degree": 2}),
    "tensor parallelism, REDUCE_SCATTER, ZeRO stage 1, accumulation": (
        4, "fp64", ["zero1", "--tp", "2", "--sequence-parallel", "--accumulate", "2"],
        {**ZERO, **SEQUENCE, "loss": "even"}, {"tp_degree": 2, "train__micro_batch": 2}),
    "pipeline, afab": (
        2, "fp64", ["zero0", "--pp", "2", "--accumulate", "4"], {"loss": "even"},
        {"pp_degree": 2, "train__micro_batch": 2}),
    "pipeline, 1f1b, tied": (
        2, "fp64", ["zero0", "--pp", "2", "--pp-engine", "1f1b", "--accumulate", "4", "--tied"],
        {"pp_engine": "1f1b", "loss": "even"}, {"pp_degree": 2, "train__micro_batch": 2, "model__tied": "true"}),
    "pipeline, 1f1b, ZeRO stage 1": (
        4, "fp64", ["zero1", "--pp", "2", "--pp-engine", "1f1b", "--accumulate", "4"],
        {**ZERO, "pp_engine": "1f1b", "loss": "even"}, {"pp_degree": 2, "train__micro_batch": 1}),
    "pipeline, tensor parallelism, mean of means in fp32": (
        4, "fp32", ["zero0", "--pp", "2", "--tp", "2", "--sequence-parallel", "--accumulate", "4", "--pad-token",
                    str(SPACE)],
        {**SEQUENCE, "loss": "mean_of_means"},
        {"pp_degree": 2, "tp_degree": 2, "train__micro_batch": 2, "data__pad_token": SPACE}),
    "ZeRO stage 1 in bf16 with sums in fp32": (
        2, "bf16", ["zero1", "--fp32-sums", "--accumulate", "2"], {**ZERO, "accumulate_grad_in_fp32": "true"},
        {"train__micro_batch": 2}),
}
# Cases that the others include to a large part.
NIGHTLY = {
    "one rank, accumulation", "two replicas", "four replicas", "ZeRO stage 1", "ZeRO stage 1, accumulation",
    "ZeRO stage 1 over four ranks", "ZeRO stage 1 in fp32", "tensor parallelism, REDUCE_SCATTER", "pipeline, afab",
    "pipeline, tensor parallelism, mean of means in fp32",
}


def run_nanotron(case, text, out):
    ranks, dtype, arguments, _, _ = CASES[case]
    return curves.run_peer("nanotron", ranks, dtype, arguments, text, out)


class RecordedCurves(support.OracleTest):
    """Compares runs with the recorded losses and norms of nanotron."""

    def compare(self, names):
        curves.check_recorded(self, CURVES, {name: CASES[name] for name in names}, "nanotron_compat", BOUNDS,
                              train__decay="all")


class Training(RecordedCurves):
    def test_every_case_is_recorded(self):
        self.assertEqual(set(json.loads(CURVES.read_text(encoding="utf-8"))["cases"]), set(CASES))
        self.assertLess(NIGHTLY, set(CASES))

    def test_recorded_losses_and_norms_of_nanotron(self):
        self.compare(case for case in CASES if case not in NIGHTLY)


class Nightly(RecordedCurves):
    def test_recorded_losses_and_norms_of_other_arrangements(self):
        self.compare(case for case in CASES if case in NIGHTLY)


@unittest.skipUnless(curves.has_module("nanotron"), "nanotron is not installed; scripts/setup --peers installs it")
class Peer(support.OracleTest):
    """Checks that the recorded values are still those of the installed nanotron. It is a nightly test."""

    def test_the_installed_nanotron_still_has_the_recorded_losses(self):
        recorded = json.loads(CURVES.read_text(encoding="utf-8"))["cases"]
        for number, case in enumerate(("ZeRO stage 1, accumulation", "mean of means over uneven micro-batches")):
            theirs = run_nanotron(case, self.text, self.folder / f"{number}.jsonl")
            for a, b in zip(theirs["loss"], recorded[case]["loss"], strict=True):
                self.assertLess(abs(a - b) / b, 1e-13, case)


FILE = """
parallelism: {dp: 1, tp: 1, pp: 1}
model:
  dtype: float32
  model_config: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, vocab_size: 256}
tokens: {sequence_length: 16, train_steps: 24, micro_batch_size: 2, batch_accumulation_per_replica: 1}
optimizer:
  zero_stage: 0
  accumulate_grad_in_fp32: false
  weight_decay: 0.01
  clip_grad: 1.0
  adam_beta1: 0.9
  adam_beta2: 0.95
  adam_eps: 1.0e-08
  learning_rate_scheduler: %s
"""
LINEAR, CONSTANT = {"lr_warmup_style": "linear"}, {"lr_warmup_style": "constant"}
SCHEDULES = [
    {**LINEAR, "lr_warmup_steps": 5},
    LINEAR,
    {**CONSTANT, "min_decay_lr": 0.0003},
    {**CONSTANT, "lr_warmup_steps": 6, "lr_decay_style": "cosine", "min_decay_lr": 0.0},
    {**LINEAR, "lr_warmup_steps": 5, "min_decay_lr": 0.0003},
    {**LINEAR, "lr_warmup_steps": 4, "lr_decay_style": "cosine", "lr_decay_steps": 12, "min_decay_lr": 0.0},
    {**LINEAR, "lr_warmup_steps": 3, "lr_decay_starting_step": 10, "lr_decay_steps": 9, "min_decay_lr": 0.001},
    {**LINEAR, "lr_warmup_steps": 3, "lr_decay_starting_step": 10, "lr_decay_steps": 9, "lr_decay_style": "cosine",
     "min_decay_lr": 0.0},
    {**CONSTANT, "lr_decay_starting_step": 8, "min_decay_lr": 0.0},
]
# Prints the rates of nanotron's scheduler as its trainer sets it up, for each dictionary of a list as JSON.
SCHEDULER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import nanotron_peer
nanotron_peer.make_modules()
nanotron_peer.import_logging()
import torch
from nanotron.trainer import DistributedTrainer
from nanotron.config import LRSchedulerArgs
from nanotron.helpers import lr_scheduler_builder
class Optimizer:
    def __init__(self):
        self.base = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.003)
    def get_base_optimizer(self):
        return self.base
everything = []
for keys in json.loads(sys.argv[2]):
    args = LRSchedulerArgs(learning_rate=0.003, **keys)
    if args.lr_decay_steps is None:  # as Config does
        args.lr_decay_steps = 24 - args.lr_warmup_steps
    optimizer = Optimizer()
    scheduler = lr_scheduler_builder(optimizer, args, 24)
    rates = []
    for _ in range(24):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.base.step()
        scheduler.step()
    everything.append(rates)
print(json.dumps(everything))
"""


@unittest.skipUnless(curves.has_module("nanotron"), "nanotron is not installed; scripts/setup --peers installs it")
class Schedules(support.OracleTest):
    def test_an_imported_file_has_the_rates_of_nanotron(self):
        command = [support.find_peers_python(), "-c", SCHEDULER, support.REPOSITORY / "bench/peers", json.dumps(SCHEDULES)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yoke = os.environ["YOKE_BIN"] + "/yoke"
        for number, (keys, theirs) in enumerate(zip(SCHEDULES, json.loads(output.splitlines()[-1]), strict=True)):
            with self.subTest(keys):
                file, run_file = self.folder / f"{number}.yaml", self.folder / f"{number}.toml"
                scheduler = json.dumps({"learning_rate": 0.003, **keys}).replace('"', "")
                file.write_text(FILE % scheduler, encoding="utf-8")
                lines = subprocess.run(
                    [yoke, "config", "import", file, f"data.path={self.text}", "metrics.every=1"], check=True,
                    capture_output=True, text=True).stdout
                self.assertNotIn("# refused", lines)
                run_dir = self.folder / f"run{number}"
                run_file.write_text(lines, encoding="utf-8")
                subprocess.run([yoke, "train", run_file, f"run.dir={run_dir}", f"nanotron_compat.config={file}"],
                               check=True, capture_output=True)
                ours = [line["lr"] for line in support.read_lines(run_dir / "metrics.jsonl") if "lr" in line]
                self.assertEqual(len(ours), len(theirs))
                for step, (a, b) in enumerate(zip(ours, theirs), start=1):
                    self.assertAlmostEqual(a, b, delta=1e-15, msg=f"step {step}")


def record():
    about = ("Losses and gradient norms of nanotron 0.4 on the CPU, written by nanotron_oracle.py --record on 2026-11-23: "
             "tiny, 20 steps, AdamW, rotary tables in the dtype of the run.")
    curves.record(Training, CURVES, about, {case: functools.partial(run_nanotron, case) for case in CASES})


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        unittest.main(verbosity=2)
