#!/usr/bin/env python3
"""Tests that carried losses are used only for the run they were computed from, and that they are still right.
Usage: references_test.py [--long]     --long: also trains llama-150m, which takes a minute or more"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import references  # noqa: E402

YOKE = os.environ["YOKE_BIN"] + "/yoke"
LONG = "--long" in sys.argv
# Level L1 of `yoke compare` after step 20: machines differ in the order of summation.
LOSS_BOUND = 1e-4
HANG = 1800


class References(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="yoke-references-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.text = cls.folder / "text.txt"
        subprocess.run([references.ROOT / "scripts/generate_text", cls.text], check=True, stdout=subprocess.DEVNULL)
        cls.carried = references.read()

    def config(self, model):
        words = references.words_of(model, self.text)
        shown = subprocess.run([YOKE, "config", "show", "--json", *words], check=True, capture_output=True, text=True).stdout
        return references.config_of(json.loads(shown), self.text)

    def test_fit_the_runs_for_which_they_are_carried(self):
        for model in references.MODELS:
            steps = references.find(self.carried, self.config(model))
            self.assertEqual([step["step"] for step in steps], list(range(1, references.STEPS + 1)))

    def test_do_not_fit_if_any_value_differs_which_the_error_names(self):
        config = self.config("tiny")
        for key in config:
            with self.assertRaisesRegex(references.Unfit, f"{key} is 'other', and "):
                references.find(self.carried, {**config, key: "other"})

    def test_do_not_fit_if_their_configuration_was_edited(self):
        config = self.config("tiny")
        edited = {references.hash_of(config): {"config": {**config, "train.lr": 1.0}, "steps": []}}
        with self.assertRaisesRegex(references.Unfit, "train.lr is 0.0001, and 1.0 in the nearest one"):
            references.find(edited, config)

    def test_do_not_fit_another_text(self):
        other = self.folder / "other.txt"
        other.write_bytes(self.text.read_bytes()[:-1] + b"?")
        shown = {key: {"value": value} for key, value in self.config("tiny").items()}
        with self.assertRaisesRegex(references.Unfit, "data.sha256"):
            references.find(self.carried, references.config_of(shown, other))

    def expect_the_first_steps(self, model, steps):
        run = self.folder / model
        words = [word for word in references.words_of(model, self.text) if not str(word).startswith("train.steps=")]
        words = [YOKE, "train", *words, "device=cpu", "precision.param=fp32", f"train.steps={steps}", f"run.dir={run}"]
        subprocess.run([str(word) for word in words], check=True, timeout=HANG, stdout=subprocess.DEVNULL,
                       env={**os.environ, "OMP_NUM_THREADS": "1"})
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(rows), steps)
        for row, carried in zip(rows, references.find(self.carried, self.config(model))):
            self.assertAlmostEqual(row["loss"] / carried["loss"], 1, delta=LOSS_BOUND, msg=f"step {row['step']}")

    def test_are_what_tiny_computes_today(self):
        self.expect_the_first_steps("tiny", 10)

    @unittest.skipUnless(LONG, "needs --long")
    def test_are_what_the_model_computes_today(self):
        self.expect_the_first_steps("llama-150m", 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
