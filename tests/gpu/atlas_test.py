#!/usr/bin/env python3
"""Tests what bench/gpu/atlas.py measures, with toy sizes on the CPU. Skipped without the Python of `scripts/setup
--peers`, which has torch."""
import argparse
import importlib.util
import os
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/gpu"), str(ROOT / "bench")]
from harness import find_peers_python  # noqa: E402

EXIT_SKIPPED = 77


class Atlas(unittest.TestCase):
    def rows(self, **wanted):
        return [row for row, _, _ in atlas.all_measurements(tiny=False) if wanted.items() <= row.items()]

    def test_has_the_weights_that_training_multiplies_as_one_matrix(self):
        for model, shapes in {"8b": {"q k": 5120, "q k v": 6144, "gate up": 28672, "head": 128256},
                              "1b": {"q k": 2560, "q k v": 3072, "gate up": 16384, "head": 128256},
                              "150m": {"q k": 2048, "q k v": 3072, "gate up": 5376, "head": 32000}}.items():
            found = {row["what"]: int(row["size"].split(" x ")[2])
                     for row in self.rows(group="product", model=model, direction="forward", kind="bf16")}
            self.assertEqual({what: found.get(what) for what in shapes}, shapes, model)

    def test_has_the_small_model_with_few_and_many_tokens(self):
        for model, tokens in {"150m, 1k tokens": 1024, "150m, 64k tokens": 65536}.items():
            row, = self.rows(group="product", model=model, what="q k", direction="forward", kind="bf16")
            self.assertEqual(row["size"], f"{tokens} x 1024 x 2048")
            self.assertTrue(self.rows(group="elementwise", model=model))
            self.assertTrue(self.rows(group="attention", model=model))

    def test_adds_gradients_of_weights_in_fp32(self):
        kinds = [(row["direction"], row["size"]) for row in self.rows(model="8b", what="q k", kind="bf16, fp32 added")]
        self.assertEqual(kinds, [("wgrad", "5120 x 8192 x 4096")])

    def test_measures_or_explains_every_row(self):
        options = argparse.Namespace(device="cpu", tiny=True, budget=1e9)
        results = atlas.measure(options, lambda results: None)
        self.assertEqual(len(results["rows"]), len(list(atlas.all_measurements(tiny=True))))
        failed = {row["kind"] or row["what"] for row in results["rows"] if "error" in row and "fp8" not in row["kind"]}
        self.assertLessEqual(failed, {"cuDNN", "efficient", "graph of 1000 kernels", "bf16, fp32 out", "bf16, fp32 added"})
        rotary = [row["size"] for row in results["rows"] if row["what"] == "rotary q k"]
        self.assertEqual(rotary, ["64 x 64"] * 2)
        self.assertIn("TFLOP/s", "\n".join(atlas.table(results)))

    def test_rotates_the_halves_of_each_head(self):
        x = torch.randn(4, 2, atlas_kernels.HEAD)
        cos, sin = (torch.randn(4, 1, atlas_kernels.HEAD // 2) for _ in range(2))
        expected = x * torch.cat((cos, cos), -1) + torch.cat((-x[..., 32:], x[..., :32]), -1) * torch.cat((sin, sin), -1)
        self.assertTrue(torch.allclose(atlas_kernels.rotate(x, cos, sin), expected))


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        if not find_peers_python().exists() or "--peers" in sys.argv:
            print("SKIPPED: scripts/setup --peers was not run")
            sys.exit(EXIT_SKIPPED)
        os.execv(find_peers_python(), [str(find_peers_python()), __file__, "--peers"])
    import torch

    import atlas
    import atlas_kernels

    torch.set_num_threads(1)
    unittest.main(argv=sys.argv[:1])
