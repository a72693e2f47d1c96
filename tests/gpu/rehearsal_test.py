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


class Rehearsal(unittest.TestCase):
    def test_every_step_runs_or_is_left_out_and_none_fails(self):
        with tempfile.TemporaryDirectory(prefix="yoke-rehearsal-") as folder:
            out = pathlib.Path(folder) / "results.json"
            # The time limit is the budget: the call must end by itself before it.
            done = subprocess.run([sys.executable, ROOT / "scripts/gpu_test", "--rehearse", "--budget", str(BUDGET),
                                   "--prefix", BUILD, "-o", out], capture_output=True, text=True, timeout=BUDGET, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = json.loads(out.read_text())
        ran = {row["step"]: row["verdict"] for row in results["steps"]}
        left_out = {row["step"] for row in results["left_out"]}
        self.assertEqual(ran.keys() | left_out, {step.name for step in steps.STEPS})
        self.assertEqual(ran["doctor"], "ok")
        for name, verdict in ran.items():
            self.assertIn(verdict, {"not possible here" if name in NEED_A_GPU else "ok", "cut off"}, name)
        print(done.stdout)


if __name__ == "__main__":
    if not find_peers_python().exists():
        print("SKIPPED: scripts/setup --peers was not run")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
