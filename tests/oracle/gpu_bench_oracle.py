#!/usr/bin/env python3
"""Runs bench/gpu with toy sizes on a CPU: eager PyTorch has the same losses as Yoke, and every figure is in its row."""
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
        self.assertEqual(len(self.results["rate"]["programs"]["yoke"]["step_ms"]), 2)
        self.assertEqual(self.results["gaps"]["yoke"]["steps"], 3)
        flops = self.results["stack"]["flops_per_token"]
        self.assertEqual(flops["full"] - flops["causal"], 6 * 2 * 64 * 64)  # blocks x width x sequence
        for words in ("TOY SIZES", "| bf16 product of 256^3 |", "MFU, 6N + causal attention", "predicted"):
            self.assertIn(words, self.done.stdout)

    def test_eager_pytorch_does_the_same(self):
        difference = self.results["rate"]["programs"]["yoke"]["loss_difference"]
        print(f"losses in bf16: {difference:.2g} (bound {LOSS_BOUND:g})", flush=True)
        self.assertLess(difference, LOSS_BOUND)


if __name__ == "__main__":
    unittest.main(verbosity=2)
