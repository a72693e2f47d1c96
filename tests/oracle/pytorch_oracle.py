#!/usr/bin/env python3
"""Checks that Yoke and a training loop in PyTorch agree for twenty steps, from the same parameters and data."""
import subprocess
import sys
import unittest

import support

support.use_peers()

STEPS, BATCH, SEQ_LEN, HOLDOUT, SEED, LR = 20, 4, 32, 0.05, 7, 1e-3
# Bounds of the relative difference of each step: (loss, gradient norm). fp64 tests the logic; fp32 is a sanity check.
BOUNDS = {"fp64": (1e-12, 1e-10), "fp32": (2e-6, 4e-4)}


class PyTorch(support.OracleTest):
    def peer(self, dtype, optimizer):
        out = self.folder / f"{dtype}-{optimizer}.jsonl"
        subprocess.run(
            [sys.executable, support.REPOSITORY / "bench/peers/train.py", "--strategy", "single", "--data", self.text,
             "--out", out, "--dtype", dtype, "--steps", str(STEPS), "--seq-len", str(SEQ_LEN), "--global-batch", str(BATCH),
             "--holdout", str(HOLDOUT), "--seed", str(SEED), "--lr", str(LR), "--optimizer", optimizer],
            check=True, timeout=support.HANG)
        return support.read_lines(out)

    def check(self, dtype, ranks, optimizer="adamw", **layout):
        """optimizer: train.optimizer, followed by "-uncorrected" if train.bias_correction is false."""
        kind = optimizer.removesuffix("-uncorrected")
        if kind != optimizer:
            layout["train__bias_correction"] = "false"
        if kind == "muon":
            layout["train__momentum"] = 0.95
        run = self.train(ranks, seed=SEED, model__preset="tiny", data__seq_len=SEQ_LEN, data__holdout=HOLDOUT,
                         train__steps=STEPS, train__global_batch=BATCH, train__lr=LR, train__optimizer=kind,
                         precision__param=dtype, precision__reduce=dtype, **layout)
        ours, theirs = support.read_lines(run / "metrics.jsonl"), self.peer(dtype, optimizer)
        self.assertEqual([m["step"] for m in ours], list(range(1, STEPS + 1)))
        self.assertLess(ours[-1]["loss"], 0.9 * ours[0]["loss"])
        for key, bound in zip(("loss", "grad_norm"), BOUNDS[dtype]):
            worst = max(abs(a[key] - b[key]) / b[key] for a, b in zip(ours, theirs, strict=True))
            print(f"{optimizer}, {dtype}, {ranks} rank(s), {key}: {worst:.2g} (bound {bound:g})", flush=True)
            self.assertLess(worst, bound, key)

    def test_single_rank_in_fp64(self):
        self.check("fp64", 1)

    def test_two_shards_in_fp64(self):
        self.check("fp64", 2, dp_shards=2)

    def test_two_replicas_in_fp64(self):
        self.check("fp64", 2, dp_degree=2, dp_shards=1)

    def test_two_shards_in_fp32(self):
        self.check("fp32", 2, dp_shards=2)

    def test_other_optimizers_in_fp64(self):
        """Each optimizer in one of the backends. tests/ranks/parity_optimizers_test compares the backends."""
        ptd = {"dp_shards": 2}
        deepspeed = {"parallel_backend": "deepspeed_stub", "deepspeed_stub__zero_stage": 2}
        for optimizer, layout in (("adam", ptd), ("adamw-uncorrected", deepspeed), ("adam-uncorrected", ptd),
                                  ("lion", deepspeed), ("muon", ptd)):
            with self.subTest(optimizer):
                self.check("fp64", 2, optimizer, **layout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
