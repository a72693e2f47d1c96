#!/usr/bin/env python3
"""Checks that TensorBoard reads Yoke's event files, even those of a run that was killed and resumed."""
import json
import os
import signal
import subprocess
import time
import unittest

import support

support.use_peers()

import numpy as np  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

LOSS = "loss_metrics/global_avg_loss"


def scalars(run):
    """Returns for each tag the list of (step, value) in all event files of a run."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class TensorBoard(support.OracleTest):
    KEYS = {"train__global_batch": 4, "data__seq_len": 32, "model__preset": "tiny", "model__layers": 1}

    def test_shows_the_values_of_metrics_jsonl(self):
        run = self.train(1, train__steps=4, eval__every=2, eval__batches=1, **self.KEYS)
        lines = support.read_lines(run / "metrics.jsonl")
        read = scalars(run)
        for tag, key in [(LOSS, "loss"), ("grad_norm", "grad_norm"), ("lr", "lr"), ("throughput(tps)", "tps"),
                         ("validation_metrics/loss", "eval_loss")]:
            expected = [(line["step"], float(np.float32(line[key]))) for line in lines if key in line]
            self.assertEqual(read[tag], expected, tag)

    def test_a_killed_run_that_is_resumed_is_one_curve(self):
        steps = 500  # long enough for the run to be alive when the kill arrives, even on a busy machine
        run = self.folder / "killed"
        keys = {"parallel_backend": "ptd", "run__dir": run, "data__path": self.text, "metrics__every": 1,
                "train__steps": steps, "checkpoint__every": 10, "checkpoint__resume": "auto", **self.KEYS}
        run_file = self.folder / "killed.toml"
        run_file.write_text("")
        command = [os.environ["YOKE_BIN"] + "/yoke", "train", str(run_file)]
        command += [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (run / "metrics.jsonl").exists() or len(support.read_lines(run / "metrics.jsonl")) < 13:
            self.assertIsNone(first.poll(), "the run ended before it could be killed")
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = subprocess.run(command, capture_output=True, text=True, timeout=support.HANG, check=True)
        self.assertIn("resumed from", second.stdout)
        self.assertEqual([step for step, _ in scalars(run)[LOSS]], list(range(1, steps + 1)))
        self.assertEqual(json.loads((run / "exit.json").read_text())["code"], 0)


if __name__ == "__main__":
    unittest.main()
