#!/usr/bin/env python3
"""Compares the learning rate of every step of `yoke train` with that of transformers' and DeepSpeed's own schedulers."""
import unittest

from support import OracleTest, read_lines, use_peers

use_peers()

import torch  # noqa: E402
from deepspeed.runtime import lr_schedules as deepspeed  # noqa: E402
from transformers import optimization as transformers  # noqa: E402

STEPS, WARMUP, LR = 40, 8, 3e-3
HF = {"num_warmup_steps": WARMUP}
TOTAL = {**HF, "num_training_steps": STEPS}
# Name of the case: (keys of the run file, function that makes the original scheduler for an optimizer).
CASES = {
    "transformers constant_with_warmup": (
        {"train__schedule": "constant"}, lambda o: transformers.get_constant_schedule_with_warmup(o, **HF)),
    "transformers linear": (
        {"train__schedule": "linear"}, lambda o: transformers.get_linear_schedule_with_warmup(o, **TOTAL)),
    "transformers cosine": (
        {"train__schedule": "cosine"}, lambda o: transformers.get_cosine_schedule_with_warmup(o, **TOTAL)),
    "transformers cosine, a wave and a half": (
        {"train__schedule": "cosine", "lr_schedule__cycles": 1.5},
        lambda o: transformers.get_cosine_schedule_with_warmup(o, **TOTAL, num_cycles=1.5)),
    "transformers cosine_with_min_lr": (
        {"train__schedule": "cosine", "train__min_lr_factor": 0.1},
        lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, **TOTAL, min_lr_rate=0.1)),
    "transformers cosine_with_restarts": (
        {"train__schedule": "cosine_restarts", "lr_schedule__cycles": 3},
        lambda o: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(o, **TOTAL, num_cycles=3)),
    "transformers polynomial": (
        {"train__schedule": "polynomial", "lr_schedule__power": 2.5, "train__min_lr_factor": 0.2, "lr_schedule__total_steps": 30},
        lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, WARMUP, 30, lr_end=0.2 * LR, power=2.5)),
    "transformers inverse_sqrt": (
        {"train__schedule": "inverse_sqrt"}, lambda o: transformers.get_inverse_sqrt_schedule(o, WARMUP)),
    "transformers inverse_sqrt with a timescale": (
        {"train__schedule": "inverse_sqrt", "lr_schedule__timescale": 100},
        lambda o: transformers.get_inverse_sqrt_schedule(o, WARMUP, timescale=100)),
    **{f"transformers warmup_stable_decay, {original}": (
        {"train__schedule": "wsd", "lr_schedule__decay_steps": 12, "lr_schedule__decay_shape": shape, "train__min_lr_factor": 0.1,
         "lr_schedule__start_factor": 0.1},
        lambda o, original=original: transformers.get_wsd_schedule(
            o, WARMUP, 12, num_training_steps=STEPS, decay_type=original, min_lr_ratio=0.1))
       for original, shape in (("linear", "linear"), ("cosine", "cosine"), ("1-sqrt", "sqrt"))},
    **{f"DeepSpeed {name}, {shape}": (
        {"train__schedule": name, "lr_schedule__warmup_shape": shape, "lr_schedule__start_factor": 0.25, **keys},
        lambda o, make=getattr(deepspeed, name), shape=shape, total=total: make(
            o, **total, warmup_min_lr=0.25 * LR, warmup_max_lr=LR, warmup_num_steps=WARMUP, warmup_type=shape))
       for shape in ("linear", "log")
       for name, keys, total in (("WarmupLR", {}, {}), ("WarmupDecayLR", {}, {"total_num_steps": STEPS}),
                                 ("WarmupDecayLR", {"lr_schedule__total_steps": 30}, {"total_num_steps": 30}))},
    **{f"DeepSpeed WarmupCosineLR, {shape}": (
        {"train__schedule": "WarmupCosineLR", "lr_schedule__warmup_shape": shape, "lr_schedule__start_factor": 0.25,
         "train__min_lr_factor": 1e-4, "lr_schedule__total_steps": 35},
        lambda o, shape=shape: deepspeed.WarmupCosineLR(
            o, 35, warmup_min_ratio=0.25, warmup_num_steps=WARMUP, warmup_type=shape))
       for shape in ("linear", "log")},
    **{f"DeepSpeed OneCycle, {stairs} stairs": (
        {"train__schedule": "OneCycle", "lr_schedule__start_factor": 0.2, "lr_schedule__rise_steps": 10, "lr_schedule__fall_steps": 15,
         "lr_schedule__rise_stairs": stairs, "lr_schedule__fall_stairs": 3 if stairs else 0, "lr_schedule__tail_steps": 4, "lr_schedule__tail_rate": 0.5},
        lambda o, stairs=stairs: deepspeed.OneCycle(
            o, 0.2 * LR, LR, decay_lr_rate=0.5, cycle_first_step_size=10, cycle_second_step_size=15,
            cycle_first_stair_count=stairs, cycle_second_stair_count=3 if stairs else 0, decay_step_size=4,
            cycle_momentum=False))
       for stairs in (0, 5)},
    **{f"DeepSpeed LRRangeTest, staircase {staircase}": (
        {"train__schedule": "LRRangeTest", "lr_schedule__range_steps": 7, "lr_schedule__range_rate": 0.3,
         "lr_schedule__staircase": str(staircase).lower()},
        lambda o, staircase=staircase: deepspeed.LRRangeTest(o, LR, 7, 0.3, staircase))
       for staircase in (False, True)},
}


class Schedules(OracleTest):
    def original(self, make):
        """Returns the rate of each step: programs advance the scheduler after the update."""
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR)
        scheduler = make(optimizer)
        rates = []
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return rates

    def test_every_step_has_the_rate_of_the_original(self):
        for name, (keys, make) in CASES.items():
            with self.subTest(name):
                first = {"lr_schedule__first_step": 0} if name.startswith("transformers") else {}
                run = self.train(1, parallel_backend="serial", model__preset="tiny", model__layers=1, data__seq_len=8,
                                 train__global_batch=1, train__steps=STEPS, train__warmup=WARMUP, train__lr=LR, **first,
                                 **keys)
                rates = [line["lr"] for line in read_lines(run / "metrics.jsonl") if "lr" in line]
                self.assertEqual(len(rates), STEPS)
                for step, (rate, expected) in enumerate(zip(rates, self.original(make), strict=True), 1):
                    self.assertAlmostEqual(rate, expected, delta=1e-12 * LR, msg=f"step {step}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
