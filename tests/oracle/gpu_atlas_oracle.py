#!/usr/bin/env python3
"""Runs bench/gpu/atlas.py with toy sizes on a CPU, and checks the operations of its full size on tensors that have
shapes and dtypes of a GPU but no data."""
import json
import subprocess
import sys
import unittest

import support

support.use_peers()
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

GPU = support.REPOSITORY / "bench/gpu"
sys.path.insert(0, str(GPU))
import atlas  # noqa: E402
import atlas_kernels  # noqa: E402
import atlas_products  # noqa: E402

# What a CPU lacks.
GPU_KINDS = {"bf16, fp32 out", "bf16, fp32 added", "fp8 rowwise, fast", "fp8 rowwise", "cuDNN", "efficient"}
GPU_GROUPS = {"graph of 1000 kernels"}
# Two weights have five kinds of products in three directions, and two kinds of the weight gradient only.
ROWS = 8 + 6 + 2 + 2 + 2 * (5 * 3 + 2)


class Toy(support.OracleTest):
    def run_atlas(self, *words):
        out = self.folder / "atlas.json"
        done = subprocess.run([sys.executable, GPU / "atlas.py", "--device", "cpu", "--tiny", "-o", out, *words],
                              capture_output=True, text=True, timeout=support.HANG)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text())

    def test_measures_everything_that_a_cpu_can_do(self):
        rows = self.run_atlas()["rows"]
        for row in rows:
            self.assertEqual("error" in row, row["kind"] in GPU_KINDS or row["what"] in GPU_GROUPS, row)
        self.assertEqual(len(rows), ROWS)

    def test_leaves_out_what_does_not_fit_into_the_budget(self):
        results = self.run_atlas("--budget", "-1")
        self.assertEqual((results["rows"], len(results["left_out"])), ([], ROWS))


class FullSize(unittest.TestCase):
    def test_products_have_the_operands_that_cuda_demands(self):
        with FakeTensorMode():
            for row, make, work in atlas_products.measurements(False):
                if row["kind"] == "bf16, fp32 added":
                    continue  # PyTorch 2.11 has no such product of tensors without data; "fp32 out" has its operands
                m, k, n = map(int, row["size"].split(" x "))
                out = make("cuda")()
                self.assertEqual((tuple(out.shape), work["flops"]), ((m, n), 2 * m * k * n), row)
                self.assertIs(out.dtype, torch.float32 if row["kind"] == "bf16, fp32 out" else torch.bfloat16, row)

    def test_products_of_fp8_have_sizes_that_the_tensor_cores_accept(self):
        for row, _, _ in atlas_products.measurements(False):
            self.assertTrue(all(int(size) % 16 == 0 for size in row["size"].split(" x ")[1:]), row)

    def test_products_multiply_the_right_sides(self):
        sizes = {row["direction"]: row["size"] for row, _, _ in atlas_products.measurements(False)
                 if (row["model"], row["what"]) == ("8b", "down")}
        self.assertEqual(sizes, {"forward": "8192 x 14336 x 4096", "dgrad": "8192 x 4096 x 14336",
                                 "wgrad": "4096 x 8192 x 14336"})

    def test_measurements_have_different_names(self):
        names = [tuple(row.values()) for row, _, _ in atlas.all_measurements(False)]
        self.assertEqual(len(names), len(set(names)))


class Rates(unittest.TestCase):
    def test_follow_from_time_and_work(self):
        self.assertAlmostEqual(atlas.rates(2e-3, {"flops": 4e12})["tflops"], 2000)
        self.assertAlmostEqual(atlas.rates(2e-3, {"bytes": 4e9})["gbps"], 2000)
        self.assertAlmostEqual(atlas.rates(2e-3, {"launches": 1000})["us_per_launch"], 2)

    def test_attention_counts_half_of_the_scores(self):
        work = next(work for row, _, work in atlas_kernels.attention_rows(False) if row["model"] == "8b, s 8192")
        self.assertEqual(work["flops"], 4 * 32 * 8192**2 * 128 / 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
