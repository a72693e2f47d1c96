#!/usr/bin/env python3
"""Runs bench/gpu/bench.py with toy sizes on a CPU: every part has its figures, and eager PyTorch has the same losses as
Yoke."""
import json
import os
import subprocess
import sys
import unittest

import support

support.use_peers()

# Both compute in bf16 with fp32 master copies; a wrong token or learning rate shows at 1e-2.
LOSS_BOUND = 3e-4


class GpuBench(support.OracleTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        out = cls.folder / "bench.json"
        cls.done = subprocess.run(
            [sys.executable, support.REPOSITORY / "bench/gpu/bench.py", "--yoke", os.environ["YOKE_BIN"] + "/yoke", "--device",
             "cpu", "--tiny", "--rounds", "1", "-o", out], capture_output=True, text=True, timeout=support.HANG)
        cls.results = json.loads(out.read_text()) if out.exists() else None

    def test_measures_all_parts(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        self.assertEqual((self.results["failed"], self.results["left_out"]), ({}, []))
        self.assertEqual(len(self.results["mfu"]), 14)
        self.assertEqual(len(self.results["mfu"][0]["step_ms"]), 4)
        self.assertEqual([trace["steps"] for trace in self.results["kernels"].values()], [3] * 5)
        self.assertEqual(self.results["card"]["attention"], {"tiny": "flash"})
        for words in ("TOY SIZES", "bf16 product of 256^3", "| 8b blocks, 4 micro-batches | eager, recompute | kernels |",
                      "no work of a device"):
            self.assertIn(words, self.done.stdout)

    def test_recomputation_and_more_tokens_change_the_prediction_of_the_memory(self):
        predicted = {(row["workload"], row["variant"]): row["predicted_bytes"] for row in self.results["mfu"]}
        self.assertLess(predicted["150m, 8k tokens", "eager, recompute"], predicted["150m, 8k tokens", "eager"])
        self.assertLess(predicted["150m, 1k tokens", "eager"], predicted["150m, 8k tokens", "eager"])

    def test_eager_pytorch_does_the_same(self):
        difference = max(programs["eager"]["loss_difference"] for programs in self.results["peer"].values())
        print(f"losses in bf16: {difference:.2g} (bound {LOSS_BOUND:g})", flush=True)
        self.assertLess(difference, LOSS_BOUND)


if __name__ == "__main__":
    unittest.main(verbosity=2)
