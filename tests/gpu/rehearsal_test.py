#!/usr/bin/env python3
"""Rehearses the whole of scripts/gpu_test on the CPU within a budget. Skipped without the Python of
`scripts/setup --peers`, in which the programs of bench/gpu run. Usage: rehearsal_test.py BUILD"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import steps  # noqa: E402
from harness import find_peers_python  # noqa: E402

BUILD, BUDGET = sys.argv[1], 480
NEED_A_GPU = {"nccl", "tests", "trace", "sanitizer"}
# Steps that must have run to their end. The others may be cut off or left out on a busy machine.
NEEDED = {"doctor", "card", "parity", "losses", "two_ranks", "atlas", "mfu", "kernels"}


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="yoke-rehearsal-") as folder:
            out = pathlib.Path(folder) / "results.json"
            # The time limit is the budget: the call must end by itself before it.
            cls.done = subprocess.run([sys.executable, ROOT / "scripts/gpu_test", "--rehearse", "--budget", str(BUDGET),
                                       "--prefix", BUILD, "-o", out], capture_output=True, text=True, timeout=BUDGET,
                                      check=False)
            cls.results = json.loads(out.read_text())
        print(cls.done.stdout)

    def figures(self, step):
        return next(row["figures"] for row in self.results["steps"] if row["step"] == step)

    def test_no_step_fails(self):
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)

    def test_every_step_runs_or_is_left_out_and_the_most_valuable_ones_end(self):
        ran = {row["step"]: row["verdict"] for row in self.results["steps"]}
        left_out = {row["step"] for row in self.results["left_out"]}
        self.assertEqual(ran.keys() | left_out, {step.name for step in steps.STEPS})
        self.assertEqual({name: ran.get(name) for name in NEEDED}, dict.fromkeys(NEEDED, "ok"))
        for name, verdict in ran.items():
            self.assertIn(verdict, {"not possible here" if name in NEED_A_GPU else "ok", "cut off"}, name)

    def test_the_results_have_the_versions_and_the_kernel_of_attention(self):
        found = self.figures("card")
        self.assertRegex(found["torch"], r"^2\.11\.0")
        self.assertTrue(found["cudnn"])
        self.assertEqual(found["attention"], {"tiny": "flash"})
        self.assertIn("2.11.0", self.figures("doctor")["LibTorch"])

    def test_the_results_have_rates_ceilings_and_traces(self):
        self.assertTrue(self.figures("mfu")["mfu"])
        self.assertTrue(all(trace["steps"] == 3 for trace in self.figures("kernels")["kernels"].values()))
        self.assertTrue(self.figures("kernels")["kernels"])
        self.assertFalse(self.figures("atlas")["left_out"])
        self.assertEqual(set(self.figures("losses")), {"fp32", "bf16"})


if __name__ == "__main__":
    if not find_peers_python().exists():
        print("SKIPPED: scripts/setup --peers was not run")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
