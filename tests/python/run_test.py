"""Checks what yoke_trainer reads of a run, a checkpoint and a comparison against the files themselves."""
import json
import math
import re
import shutil
import sys
import unittest

import numpy as np
import support
from safetensors.numpy import load_file
from yoke_trainer import Checkpoint, Comparison, Run


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class RunFolder(support.WheelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = cls.train("run", "train.steps=4", "train.lr=0.002", "eval.every=2", "eval.batches=1",
                             "checkpoint.every=2")
        cls.run_ = Run(cls.path)

    def test_the_configuration_is_complete_and_resolved(self):
        self.assertEqual(self.run_.config["train"]["lr"], 0.002)
        self.assertEqual(self.run_.config["train"]["steps"], 4)
        self.assertEqual(self.run_.config["train"]["clip"], 1.0)  # a default

    def test_environment_backends_and_ending(self):
        self.assertEqual(self.run_.environment["versions"]["torch"], "2.11.0")
        self.assertEqual([backend["name"] for backend in self.run_.backends], ["ptd"])
        self.assertEqual(self.run_.ending["code"], 0)
        (self.path / "exit.json").rename(self.path / "hidden")
        self.addCleanup((self.path / "hidden").rename, self.path / "exit.json")
        self.assertIsNone(self.run_.ending)

    def test_metrics_are_columns_of_the_steps(self):
        steps = [line for line in lines_of(self.path) if "loss" in line]
        self.assertEqual(len(steps), 4)
        metrics = self.run_.metrics
        for name in ("step", "loss", "grad_norm", "lr", "tokens", "tps"):
            np.testing.assert_array_equal(metrics[name], [line[name] for line in steps])
        np.testing.assert_array_equal(metrics["comm.dp_shard.bytes"],
                                      [line["comm"]["dp_shard"]["bytes"] for line in steps])
        self.assertNotIn("eval_loss", metrics)

    def test_evaluations_are_columns_of_their_own(self):
        expected = [line["eval_loss"] for line in lines_of(self.path) if "eval_loss" in line]
        self.assertEqual(len(expected), 2)
        np.testing.assert_array_equal(self.run_.evaluations["eval_loss"], expected)
        np.testing.assert_array_equal(self.run_.evaluations["step"], [2, 4])

    def test_checkpoints_are_in_order_and_hold_the_tensors_of_their_files(self):
        self.assertEqual([checkpoint.step for checkpoint in self.run_.checkpoints], [2, 4])
        self.assertEqual([checkpoint.finished for checkpoint in self.run_.checkpoints], [False, True])
        last = self.run_.checkpoints[-1]
        self.assertEqual(last.kinds, ["exp_avg", "exp_avg_sq", "param", "step"])
        model, optimizer = load_file(last.path / "model.safetensors"), load_file(last.path / "optimizer.safetensors")
        self.assertEqual(last.names(), sorted(model))
        for name in last.names():
            np.testing.assert_array_equal(last.tensor(name), model[name])
            np.testing.assert_array_equal(last.tensor(name, "exp_avg"), optimizer[f"{name}.exp_avg"])
        self.assertEqual(last.tensor("optimizer", "step"), 4)

    def test_an_unknown_tensor_is_reported_with_what_there_is(self):
        with self.assertRaisesRegex(KeyError, "no tensor 'nothing' of kind 'param'; names.. lists all"):
            self.run_.checkpoints[0].tensor("nothing")
        with self.assertRaisesRegex(KeyError, "it has the kinds exp_avg, exp_avg_sq, param"):
            self.run_.checkpoints[0].tensor("lm_head.weight", "momentum")

    def test_verify_finds_a_damaged_byte(self):
        self.run_.checkpoints[0].verify()
        copy = self.folder / "copy/step-00000002"
        shutil.copytree(self.run_.checkpoints[0].path, copy)
        weights = bytearray((copy / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        with self.assertRaisesRegex(ValueError, "model.safetensors"):
            Checkpoint(copy).verify()


class Lines(support.WheelTest):
    """metrics.jsonl while a run writes it, and with values that not every line has."""

    def run_with(self, text):
        folder = self.folder / self._testMethodName
        folder.mkdir()
        (folder / "config.resolved.toml").write_text("seed = 1\n")
        if text is not None:
            (folder / "metrics.jsonl").write_text(text)
        return Run(folder)

    def test_before_the_first_step_there_are_no_columns(self):
        self.assertEqual(self.run_with(None).metrics, {})

    def test_an_incomplete_last_line_is_left_out(self):
        run = self.run_with('{"step":1,"loss":2.5}\n{"step":2,"lo')
        np.testing.assert_array_equal(run.metrics["loss"], [2.5])

    def test_null_and_missing_values_are_nan(self):
        columns = self.run_with('{"step":1,"loss":null,"host":"a"}\n{"step":2,"loss":2,"mfu_percent":30}\n').metrics
        self.assertEqual(sorted(columns), ["loss", "mfu_percent", "step"])
        self.assertTrue(math.isnan(columns["loss"][0]) and math.isnan(columns["mfu_percent"][0]))
        self.assertEqual(columns["mfu_percent"][1], 30)

    def test_a_damaged_line_is_reported_with_its_number(self):
        with self.assertRaisesRegex(ValueError, r"metrics\.jsonl:2 is not a line of JSON"):
            list(self.run_with('{"step":1}\nnonsense\n').rows())

    def test_another_folder_is_refused(self):
        with self.assertRaisesRegex(FileNotFoundError, "not the folder of a run: it contains no config.resolved.toml"):
            Run(self.folder)
        with self.assertRaisesRegex(FileNotFoundError, "is not a checkpoint: it contains no manifest.json"):
            Checkpoint(self.folder)


class Report(support.WheelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train_words("unused")
        done = cls.yoke("compare", "run.toml", "train.steps=3", "--backends", "serial,replicas", "--nproc", "2",
                        "--repeats", "1", "--external", "broken=false", "--json-file", "report.json")
        assert done.returncode == 1, done.stderr
        cls.report = Comparison(cls.folder / "report.json")

    def test_cases_have_their_verdicts(self):
        self.assertEqual({name: case.passed for name, case in self.report.cases.items()},
                         {"serial": True, "replicas": True, "broken": False})
        self.assertFalse(self.report.passed)
        self.assertEqual(self.report.cases["serial"].failure, "")

    def test_steps_are_columns(self):
        serial, replicas = (self.report.cases[name].steps("loss") for name in ("serial", "replicas"))
        self.assertEqual(len(serial), 3)
        np.testing.assert_allclose(serial, replicas, rtol=2e-6)
        np.testing.assert_allclose(self.report.reference.steps("loss"), serial, rtol=2e-6)
        np.testing.assert_array_equal(self.report.cases["serial"].steps("step"), [1, 2, 3])

    def test_a_case_that_failed_has_no_steps(self):
        with self.assertRaisesRegex(ValueError, "case 'broken' has no steps: "):
            self.report.cases["broken"].steps("loss")

    def test_recommendations_name_cases_by_their_ranks(self):
        self.assertEqual(self.report.recommended, {})  # one repeat is too few
        fields = {**self.report.fields, "recommendations": [{"ranks": 1, "take": "serial"}, {"ranks": 2, "take": "replicas"}]}
        (self.folder / "more.json").write_text(json.dumps(fields))
        found = Comparison(self.folder / "more.json").recommended
        self.assertEqual({ranks: case.name for ranks, case in found.items()}, {1: "serial", 2: "replicas"})

    def test_another_file_is_refused(self):
        (self.folder / "other.json").write_text("{}")
        with self.assertRaisesRegex(ValueError, "was not written by yoke compare --json-file"):
            Comparison(self.folder / "other.json")


class Documentation(support.WheelTest):
    def test_the_examples_of_the_guide_run(self):
        self.train("runs/novels", "train.steps=2", "eval.every=2", "eval.batches=1", "checkpoint.every=2")
        done = self.yoke("compare", "run.toml", "train.steps=2", "--backends", "serial,replicas", "--repeats", "1",
                         "--json-file", "report.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (support.SOURCE / "docs/python.md").read_text()
        examples = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
        done = self.yoke("-c", examples, program=sys.executable)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"2 \['exp_avg', 'exp_avg_sq', 'param', 'step'\]")
        self.assertRegex(done.stdout, r"serial True \d+\.\d+")


if __name__ == "__main__":
    unittest.main()
