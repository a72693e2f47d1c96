#!/usr/bin/env python3
"""Compares the loss scale of fp16 runs with those of DeepSpeed and PyTorch's GradScaler, and their losses with fp32.

Yoke decides which steps overflow. Each original gets the same overflows, one by one, and must have the same scale
before every step.
"""
import json
import math
import re
import unittest

from support import OracleTest, read_lines, use_peers

use_peers()

import torch  # noqa: E402
from deepspeed import comm  # noqa: E402
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer  # noqa: E402
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaleConfig  # noqa: E402

comm.get_rank = lambda group=None: 0  # the scaler asks for it before it logs
ATTEMPTS = 60  # steps with those that were skipped
SKIPPED = re.compile(r"step (\d+): gradients are not finite.*; loss scale ([0-9.e+]+)(?:, unchanged|, now )")
# The same micro-batches on every number of ranks, so that the same steps overflow.
RUN = {"model__preset": "tiny", "data__seq_len": 64, "train__global_batch": 8, "train__micro_batch": 2,
       "train__warmup": 2, "train__clip": 1.0, "train__lr": 3e-4, "precision__param": "fp16"}
FORCED = {"loss_scale__initial_power": 24, "loss_scale__window": 3}
# Name of the case: keys of the run file, and arguments of the original.
DEEPSPEED = {
    "defaults": ({}, {}),
    "hysteresis 1": ({"loss_scale__hysteresis": 1}, {"delayed_shift": 1}),
    "hysteresis 3": ({"loss_scale__hysteresis": 3}, {"delayed_shift": 3}),
    "consecutive hysteresis": ({"loss_scale__consecutive_hysteresis": "true"}, {"consecutive_hysteresis": True}),
}


class Deepspeed:
    def __init__(self, **given):
        self.scaler = DynamicLossScaler(**{
            "init_scale": 2.0**24, "scale_window": 3, "min_scale": 1.0, "delayed_shift": 2,
            "consecutive_hysteresis": False, **given})

    def scale(self):
        return self.scaler.loss_scale

    def update(self, overflowed):
        self.scaler.update_scale(overflowed)


class DeepspeedStage0:
    """What scales the loss at ZeRO stage 0."""

    def __init__(self):
        self.optimizer = object.__new__(FP16_Optimizer)  # its constructor needs parameters on a GPU
        self.optimizer.verbose = False
        self.optimizer.loss_scale_config = LossScaleConfig(
            torch.float16, True, 0, {"init_scale": 2.0**24, "scale_window": 3, "min_scale": 1.0})

    def scale(self):
        return self.optimizer.loss_scale_config.cur_scale

    def update(self, overflowed):
        self.optimizer._update_scale(overflowed)


class GradScaler:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
        self.param = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.param], lr=0.0)
        self.scaler.scale(torch.ones(1))  # creates the scale

    def scale(self):
        return self.scaler.get_scale()

    def update(self, overflowed):
        self.param.grad = torch.full((1,), math.inf if overflowed else 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class LossScale(OracleTest):
    def attempts(self, ranks, **keys):
        """Returns (step, scale, overflowed) for each step of a run, those that were skipped included."""
        run = self.train(ranks, train__steps=ATTEMPTS, **RUN, **keys)
        steps = [line for line in read_lines(run / "metrics.jsonl") if "loss" in line]
        found = [(line["step"], line["loss_scale"], False) for line in steps]
        for line in (run / "logs/rank_000.log").read_text().splitlines():
            if match := SKIPPED.search(line):
                found.append((int(match[1]), float(match[2]), True))
        self.assertEqual(len(found), ATTEMPTS + steps[-1]["skipped"])
        # Sorting is stable: the skipped attempts of a step come before the one that updated.
        return sorted(found, key=lambda attempt: (attempt[0], not attempt[2]))[:ATTEMPTS]

    def check(self, attempts, original):
        skipped = sum(overflowed for _, _, overflowed in attempts)
        self.assertGreater(skipped, 5, "the case forces too few overflows to test anything")
        self.assertLess(skipped, ATTEMPTS - 10)
        for number, (step, scale, overflowed) in enumerate(attempts):
            self.assertEqual(scale, original.scale(), f"attempt {number}, step {step}")
            original.update(overflowed)

    def test_every_step_has_the_scale_of_deepspeed(self):
        for name, (keys, arguments) in DEEPSPEED.items():
            for backend in ("ptd", "deepspeed_stub"):
                with self.subTest(name, backend=backend):
                    self.check(self.attempts(1, parallel_backend=backend, **FORCED, **keys), Deepspeed(**arguments))

    def test_every_step_of_a_ds_config_has_the_scale_of_its_stage(self):
        fp16 = {"enabled": True, "initial_scale_power": 24, "loss_scale_window": 3}
        for stage, original in ((0, DeepspeedStage0()), (1, Deepspeed())):
            with self.subTest(stage=stage):
                file = self.folder / f"stage{stage}.json"
                file.write_text(json.dumps({"fp16": fp16, "zero_optimization": {"stage": stage}}))
                self.check(self.attempts(1, parallel_backend="deepspeed_stub", deepspeed_stub__config_file=file),
                           original)

    def test_every_step_has_the_scale_of_grad_scaler(self):
        for backend in ("ptd", "accelerate_compat"):
            with self.subTest(backend):
                attempts = self.attempts(1, parallel_backend=backend, **FORCED, loss_scale__rule="grad_scaler")
                self.check(attempts, GradScaler())

    def test_all_numbers_of_ranks_skip_the_same_steps(self):
        expected = self.attempts(1, **FORCED)
        self.check(expected, Deepspeed())
        for ranks, keys in (
                (2, {"dp_shards": 2}), (4, {"dp_shards": 4}), (4, {"dp_degree": 2, "dp_shards": 2}),
                (2, {"parallel_backend": "deepspeed_stub", "deepspeed_stub__zero_stage": 1}),
                (4, {"parallel_backend": "deepspeed_stub", "deepspeed_stub__zero_stage": 2}),
                (4, {"parallel_backend": "deepspeed_stub", "deepspeed_stub__zero_stage": 3})):
            with self.subTest(f"{ranks} ranks, {json.dumps(keys)}"):
                self.assertEqual(self.attempts(ranks, **FORCED, **keys), expected)

    def test_losses_are_those_of_fp32(self):
        run = {**RUN, "train__steps": 100}
        wide = read_lines(self.train(1, **{**run, "precision__param": "fp32"}) / "metrics.jsonl")
        for keys in ({}, {"loss_scale__static": 1024.0}):
            with self.subTest(**keys):
                lines = read_lines(self.train(1, **run, **keys) / "metrics.jsonl")
                loss, expected = lines[99]["loss"], wide[99]["loss"]
                # Skipped steps move the data forward, so the last steps see neighbouring batches.
                mean = lambda all_lines: sum(line["loss"] for line in all_lines[90:]) / 10  # noqa: E731
                print(f"step 100: {loss:.4f} in fp16, {expected:.4f} in fp32, skipped {lines[99]['skipped']}")
                if lines[99]["skipped"] == 0:
                    self.assertLess(abs(loss - expected) / expected, 0.01)
                self.assertLess(abs(mean(lines) - mean(wide)) / mean(wide), 0.01)


if __name__ == "__main__":
    unittest.main(verbosity=2)
