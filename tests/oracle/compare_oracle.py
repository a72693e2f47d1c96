#!/usr/bin/env python3
"""Runs PyTorch's programs as cases of `yoke compare`: they agree with Yoke, or report why they cannot run."""
import json
import os
import shlex
import subprocess
import sys
import unittest

import support

RUN = """\
[model]
preset = "tiny"
layers = 2
[data]
seq_len = 32
order = "sequential"
[train]
steps = 8
global_batch = 4
lr = 3e-4
warmup = 2
schedule = "constant"
weight_decay = 0.1
"""


class ExternalPeers(support.OracleTest):
    def compare(self, *words):
        """Compares ptd on two ranks with the cases in `words`. Returns the finished process and its cases by name."""
        (self.folder / "run.toml").write_text(RUN)
        out = self.folder / "out.json"
        command = [os.environ["YOKE_BIN"] + "/yoke", "compare", self.folder / "run.toml", f"data.path={self.text}",
                   f"run.dir={self.folder / 'run'}", "--backends", "ptd", "--nproc", "2", "--repeats", "1",
                   "--json-file", out, *words]
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                                timeout=2 * support.HANG, check=False)
        return result, {case["name"]: case for case in json.loads(out.read_text())["cases"]}

    @staticmethod
    def peer(name, strategy, launcher=None):
        program = shlex.quote(str(support.REPOSITORY / "bench/peers/train.py"))
        return f"{name}={launcher or shlex.quote(sys.executable)} {program} --compare --strategy {strategy}"

    def test_agree_with_a_backend_and_report_time_and_memory(self):
        torchrun = f"{shlex.quote(sys.executable)} -m torch.distributed.run --standalone --nproc-per-node 2"
        result, cases = self.compare("--external", self.peer("ddp", "ddp", torchrun),
                                     "--external", self.peer("fsdp", "fsdp"))
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in ("ptd", "ddp", "fsdp"):
            self.assertEqual(cases[name]["verdict"]["level"], "L1", cases[name])
            self.assertGreater(cases[name]["step_ms"][0], 0)
            self.assertGreater(cases[name]["memory"], 0)

    def test_that_starts_from_other_bits_differs_at_once(self):
        ddp = self.peer("ddp", "ddp").replace("=", "=sed -i 's/\"seed\": 1,/\"seed\": 2,/' $YOKE_COMPARE_RUN; ", 1)
        result, cases = self.compare("--external", ddp)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(cases["ddp"]["verdict"]["first_bad_step"], 1)

    def test_that_cannot_train_a_run_is_a_row_with_its_reason(self):
        result, cases = self.compare("--external", self.peer("ddp", "ddp"), "train.schedule=cosine")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("this peer cannot train this run: train.schedule = cosine", cases["ddp"]["failure"])


if __name__ == "__main__":
    support.use_peers()
    unittest.main()
