"""Checks the copies of runs in W&B's and MLflow's formats, read without the code that writes them."""
import json
import struct
import subprocess
import sys
import unittest

import support
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7  # W&B's file is a log of LevelDB's format: blocks of records, each with a header


def wandb_records(path):
    """Yields the records of a .wandb file."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", path
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block that is too small for a header
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + HEADER])
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def steps_of(run):
    """Returns the numbers of each step in metrics.jsonl, with inner names joined by dots."""
    def numbers(prefix, tree):
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from numbers(f"{prefix}{name}.", value)
            else:
                yield prefix + name, value

    steps = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = dict(numbers("", json.loads(line)))
        steps.setdefault(row.pop("step"), {}).update(row)
    return steps


def track(*words, before="pass"):
    """Runs the module, after the statement `before`, and returns code and output."""
    code = f"import runpy, sys; {before}; runpy.run_module('yoke_trainer.track', run_name='__main__', alter_sys=True)"
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False,
                          timeout=support.HANG)


class TrackerTest(support.WheelTest):
    """A run of 4 steps for each test, with evaluations after steps 2 and 4."""
    KEYS = ("eval.every=2", "eval.batches=1", "checkpoint.every=2")

    def setUp(self):
        self.name = self._testMethodName
        self.run_ = self.train(self.name, "train.steps=4", *self.KEYS)
        self.out = self.folder / f"{self.name}-out"

    def resume(self):
        """Continues the run until step 6."""
        self.train(self.name, "train.steps=6", "checkpoint.resume=auto", *self.KEYS)
        self.assertEqual(list(steps_of(self.run_)), [1, 2, 3, 4, 5, 6])


class Wandb(TrackerTest):
    def copy(self):
        done = track(self.run_, "--wandb", self.out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        folders = list(self.out.glob("wandb/offline-run-*"))
        self.assertEqual([str(folder) for folder in folders], [done.stdout.strip().removeprefix("wandb sync ")])
        return list(wandb_records(next(folders[0].glob("*.wandb"))))

    def history(self):
        """Returns the rows by step, without W&B's own values."""
        rows = {}
        for record in self.copy():
            if record.HasField("history"):
                values = {"".join(item.nested_key) or item.key: json.loads(item.value_json)
                          for item in record.history.item}
                self.assertNotIn(values["_step"], rows)
                rows[values["_step"]] = {name: value for name, value in values.items() if not name.startswith("_")}
        return rows

    def test_the_history_is_that_of_metrics_jsonl(self):
        self.assertEqual(self.history(), steps_of(self.run_))
        self.assertIn("eval_loss", self.history()[4])

    def test_after_a_resumed_run_there_is_one_history(self):
        self.history()
        self.resume()
        self.assertEqual(self.history(), steps_of(self.run_))

    def test_the_configuration_is_that_of_the_run(self):
        config = {update.key: json.loads(update.value_json)
                  for record in self.copy() if record.HasField("run") for update in record.run.config.update}
        self.assertEqual(config["train"]["steps"], 4)


class MLflow(TrackerTest):
    def copy(self):
        done = track(self.run_, "--mlflow", self.out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.store()

    def store(self):
        """Returns the numbers of the one run in the store by step, and its parameters."""
        runs = [path.parent for path in self.out.glob("*/*/meta.yaml") if path.parts[-3] != ".trash"
                and "lifecycle_stage: active" in path.read_text()]
        self.assertEqual(len(runs), 1)
        steps = {}
        for metric in (runs[0] / "metrics").iterdir():
            for line in metric.read_text().splitlines():
                _, value, step = line.split()
                row = steps.setdefault(int(step), {})
                self.assertNotIn(metric.name, row)
                row[metric.name] = float(value)
        return dict(sorted(steps.items())), {path.name: path.read_text() for path in (runs[0] / "params").iterdir()}

    def test_repeated_calls_write_each_value_once(self):
        self.assertEqual(self.copy()[0], steps_of(self.run_))
        self.assertEqual(self.copy()[0], steps_of(self.run_))

    def test_a_value_that_is_missing_is_added(self):
        self.copy()
        metric = next(self.out.glob("*/*/metrics/grad_norm"))
        metric.write_text("".join(metric.read_text().splitlines(keepends=True)[:2]))
        self.assertEqual(self.copy()[0], steps_of(self.run_))

    def test_a_run_that_continues_with_the_same_settings_is_extended(self):
        whole = (self.run_ / "metrics.jsonl").read_text()
        (self.run_ / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[:3]))
        self.copy()
        (self.run_ / "metrics.jsonl").write_text(whole)
        self.assertEqual(self.copy()[0], steps_of(self.run_))
        self.assertEqual(len(list(self.out.glob("*/*/meta.yaml"))), 1)

    def test_a_run_with_other_settings_replaces_the_copy(self):
        self.copy()
        self.resume()
        steps, params = self.copy()
        self.assertEqual(steps, steps_of(self.run_))
        self.assertEqual(params["train.steps"], "6")

    def test_a_run_with_other_values_replaces_the_copy(self):
        self.copy()
        text = (self.run_ / "metrics.jsonl").read_text()
        loss = json.loads(text.splitlines()[0])["loss"]
        (self.run_ / "metrics.jsonl").write_text(text.replace(f'"loss":{loss}', '"loss":1.5'))
        steps, _ = self.copy()
        self.assertEqual(steps[1]["loss"], 1.5)
        self.assertEqual(steps, steps_of(self.run_))

    def test_names_that_mlflow_refuses_are_changed(self):
        with (self.run_ / "metrics.jsonl").open("a") as lines:
            lines.write('{"step":5,"comm":{"dp_replicate+dp_shard":{"bytes":7}}}\n')
        self.assertEqual(self.copy()[0][5], {"comm.dp_replicate_dp_shard.bytes": 7})


    def test_a_text_that_is_longer_than_mlflow_allows_is_cut(self):
        with (self.run_ / "config.resolved.toml").open("a") as file:
            file.write(f'\n[long]\ntext = "{"a" * 7000}"\n')
        self.assertEqual(self.copy()[1]["long.text"], "a" * 6000)
        self.assertEqual(self.copy()[1]["long.text"], "a" * 6000)


class Messages(support.WheelTest):
    def refused(self, words, text, before="pass"):
        done = track(*words, before=before)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(text, done.stderr.splitlines()[-1])

    def test_another_folder_is_refused(self):
        self.refused([self.folder, "--mlflow", self.folder / "none"], "is not the folder of a run")
        self.assertFalse((self.folder / "none").exists())

    def test_what_mlflow_refuses_is_reported_in_a_line(self):
        run = self.train("refused", "train.steps=1")
        done = track(run, "--mlflow", self.folder / "store", "--project", "a" * 600)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^yoke_trainer.track: 'name' exceeds the maximum length")
        self.assertNotIn("Traceback", done.stderr)

    def test_a_target_is_required(self):
        self.refused([self.folder], "one of the arguments --wandb --mlflow is required")

    def test_a_missing_package_is_named_with_the_command_that_installs_it(self):
        run = self.train("run", "train.steps=1")
        for name, package in (("wandb", "wandb"), ("mlflow", "mlflow-skinny")):
            self.refused([run, f"--{name}", self.folder / "out"], f"): pip install {package}",
                         before=f"sys.modules[{name!r}] = None")

    def test_nothing_is_looked_up_in_a_network(self):
        run = self.train("silent", "train.steps=1")
        spy = self.folder / "spy.py"
        spy.write_text(f"""
import socket
def look_up(host, *more, **named):
    open({str(self.folder / 'hosts')!r}, "a").write(f"{{host}} ")
    raise OSError("no network")
socket.getaddrinfo = look_up
""")
        for name in ("wandb", "mlflow"):
            done = track(run, f"--{name}", self.folder / "silent-out", before=f"exec(open({str(spy)!r}).read())")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.folder / "hosts").exists())

    def test_a_damaged_line_ends_the_copy(self):
        run = self.train("damaged", "train.steps=1")
        (run / "metrics.jsonl").write_text("nonsense\n")
        for name in ("wandb", "mlflow"):
            done = track(run, f"--{name}", self.folder / "nothing")
            self.assertEqual(done.returncode, 1)
            self.assertIn("metrics.jsonl:1 is not a line of JSON", done.stderr)
        self.assertFalse((self.folder / "nothing").exists())


if __name__ == "__main__":
    unittest.main()
