#!/usr/bin/env python3
"""Tests how scripts/gpu_test divides its time and ends its processes, with steps that are made for these tests."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/gpu_test"
HANG = 300  # seconds after which something counts as hung


def load_script():
    loader = importlib.machinery.SourceFileLoader("gpu_test", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_test", loader))
    loader.exec_module(module)
    return module


gpu_test = load_script()
import budget  # noqa: E402
import context  # noqa: E402

DEAF = 'trap "" INT TERM; echo $$ > deaf; while :; do sleep 1; done'  # a shell that ignores interrupts


def step(name, expected, run=lambda own: {}, limit=100, elastic=False):
    def named(own):
        return run(own)
    named.__name__ = name
    return budget.Step(named, on_card=10 * expected, on_cpu=expected, limit=limit, elastic=elastic)


def is_running(pid):
    return pid in context.running_processes()


class BudgetOfSteps(unittest.TestCase):
    def setUp(self):
        self.now = 1000.0
        self.budget = budget.Budget(100, clock=lambda: self.now)

    def test_leaves_the_reserve_at_its_end(self):
        self.assertTrue(self.budget.fits(step("a", 100 - budget.RESERVE), "cpu"))
        self.assertFalse(self.budget.fits(step("a", 101 - budget.RESERVE), "cpu"))
        self.assertFalse(self.budget.fits(step("a", 100 - budget.RESERVE), "cuda"))

    def test_counts_what_has_passed(self):
        self.now += 60
        self.assertFalse(self.budget.fits(step("a", 41 - budget.RESERVE), "cpu"))

    def test_ends_a_step_at_its_limit_or_at_the_end_of_the_budget(self):
        self.assertEqual(self.budget.deadline(step("a", 1, limit=5), "cuda"), 1005)
        self.assertEqual(self.budget.deadline(step("a", 1, limit=5), "cpu"), 1000 + 5 * budget.REHEARSAL_FACTOR)
        self.assertEqual(self.budget.deadline(step("a", 1, limit=500), "cuda"), 1100 - budget.RESERVE)
        self.assertEqual(budget.Budget(None, clock=lambda: self.now).deadline(step("a", 1, limit=500), "cuda"), 1500)

    def test_an_elastic_step_leaves_the_later_ones_their_time_if_it_is_worth_a_start(self):
        later = [step("b", 20), step("c", 10)]
        self.assertEqual(self.budget.deadline(step("a", 1, elastic=True), "cpu", later), 1100 - budget.RESERVE - 30)
        self.assertEqual(self.budget.deadline(step("a", 60, elastic=True), "cpu", later), 1060)
        self.assertEqual(self.budget.deadline(step("a", 1), "cpu", later), 1100 - budget.RESERVE)

    def test_is_refused_below_the_shortest_step(self):
        steps = [step("long", 30), step("short", 7), step("middle", 9)]
        self.assertEqual(budget.refusal(7 + budget.RESERVE, steps, "cpu"), "")
        self.assertEqual(budget.refusal(None, steps, "cpu"), "")
        self.assertIn(f"short, needs {7 + budget.RESERVE} seconds", budget.refusal(6 + budget.RESERVE, steps, "cpu"))
        self.assertIn("short", budget.refusal(69 + budget.RESERVE, steps, "cuda"))


class Examine(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="yoke-budget-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.own = context.Context(self.folder / "yoke", [], "", "", self.folder / "text", self.folder, "cpu")
        (self.folder / "deaf.sh").write_text(DEAF)
        context.adopt_orphans()

    def examine(self, steps, seconds):
        options = types.SimpleNamespace(only=None, rehearse=True, budget=seconds, results=self.folder / "r.json")
        saved = gpu_test.steps.STEPS, gpu_test.make_context, context.GRACE
        gpu_test.steps.STEPS, gpu_test.make_context, context.GRACE = steps, lambda options, folder: self.own, 1
        try:
            code = gpu_test.examine(options, self.folder, budget.Budget(seconds))
        finally:
            gpu_test.steps.STEPS, gpu_test.make_context, context.GRACE = saved
        return code, self.results()

    def results(self):
        return json.loads((self.folder / "r.json").read_text())

    def deaf_process(self):
        while not (text := (self.folder / "deaf").read_text() if (self.folder / "deaf").exists() else ""):
            time.sleep(0.05)
        return int(text)

    def test_runs_what_fits_and_says_what_it_left_out(self):
        seen = []
        steps = [step("first", 10, seen.append), step("too_long", 500, seen.append), step("last", 10, seen.append)]
        code, results = self.examine(steps, 100)
        self.assertEqual((code, len(seen), results["budget"]), (0, 2, 100))
        self.assertEqual([row["step"] for row in results["steps"]], ["first", "last"])
        self.assertEqual(results["left_out"], [{"step": "too_long", "expected_seconds": 500}])

    def test_gives_an_elastic_step_what_the_later_ones_do_not_need(self):
        ends = {}
        steps = [step(name, 100, lambda own, name=name: ends.update({name: own.deadline}), limit=10000, elastic=name == "b")
                 for name in "abc"]
        self.examine(steps, 1000)
        self.assertAlmostEqual(ends["a"] - ends["b"], 100)
        self.assertAlmostEqual(ends["c"] - ends["b"], 100)

    def test_writes_the_results_after_every_step(self):
        before = []
        look = step("second", 1, lambda own: before.append(self.results()))
        self.examine([step("first", 1, lambda own: {"a": 1}), look], 100)
        self.assertEqual([(row["step"], row["figures"]) for row in before[0]["steps"]], [("first", {"a": 1})])

    def test_marks_the_results_if_other_processes_use_the_device(self):
        others = [{"pid": 7, "name": "python3", "bytes": 1}]
        own = [step("card", 1, lambda own: {"other_processes": []}), step("busy", 1, lambda own: {"other_processes": others})]
        self.assertNotIn("other_processes", self.examine(own[:1], 100)[1])
        self.assertEqual(self.examine(own, 100)[1]["other_processes"], others)

    def test_cuts_a_step_off_at_the_end_of_the_budget(self):
        hanging = step("hanging", 1, lambda own: own.run(["sleep", "1000"]))
        code, results = self.examine([hanging, step("after", 1)], budget.RESERVE + 3)
        self.assertEqual((code, results["steps"][0]["verdict"]), (0, "cut off"))
        self.assertEqual([row["step"] for row in results["left_out"]], ["after"])

    def test_a_step_that_exceeds_its_own_limit_has_failed(self):
        hanging = step("hanging", 1, lambda own: own.run(["sleep", "1000"]), limit=0.2)
        code, results = self.examine([hanging, step("after", 1)], 1000)
        self.assertEqual((code, [row["verdict"] for row in results["steps"]]), (1, ["failed", "ok"]))
        self.assertIn("not finished in time", results["steps"][0]["reason"])

    def test_kills_processes_in_sessions_of_their_own_that_ignore_interrupts(self):
        def hang(own):
            process = own.start(["sh", "-c", "setsid sh deaf.sh & wait"])
            self.deaf_process()
            own.deadline = 0
            own.finish(process)
        self.assertEqual(self.examine([step("hanging", 1, hang)], 1000)[1]["steps"][0]["verdict"], "cut off")
        self.assertFalse(is_running(self.deaf_process()))

    def test_kills_the_children_of_children(self):
        process = self.own.start(["sh", "-c", "sh -c 'sh deaf.sh & wait' & wait"])
        deaf = self.deaf_process()
        self.assertGreaterEqual(context.kill_descendants(), 3)
        process.communicate()
        self.assertFalse(is_running(deaf))

    def test_kills_what_a_step_leaves_behind(self):
        def leave(own):
            own.run(["sh", "-c", "setsid sh deaf.sh > /dev/null 2>&1 &"])
            return {"process": self.deaf_process()}
        row = self.examine([step("leaving", 1, leave)], 1000)[1]["steps"][0]
        self.assertGreaterEqual(row["killed_processes"], 1)
        self.assertFalse(is_running(row["figures"]["process"]))


class Program(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="yoke-budget-")
        self.addCleanup(temporary.cleanup)
        self.prefix = pathlib.Path(temporary.name)
        (self.prefix / "bin").mkdir()
        (self.prefix / "bin/yoke").write_text(f"#!/bin/sh\ncd '{self.prefix}'\n{DEAF}\n")
        (self.prefix / "bin/yoke").chmod(0o755)
        self.command = [sys.executable, SCRIPT, "--rehearse", "--prefix", self.prefix]
        self.environment = {**os.environ, "YOKE_TORCH_LIB": str(self.prefix)}

    def test_refuses_a_budget_below_the_shortest_step(self):
        done = subprocess.run([*self.command, "--budget", "3"], capture_output=True, text=True, timeout=HANG, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"--budget 3 is too short .* the shortest, \w+, needs \d+ seconds")

    def refusal_of(self, **environment):
        done = subprocess.run([*self.command, "--only", "nccl"], env={**os.environ, **environment}, capture_output=True,
                              text=True, timeout=HANG, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        return done.stderr

    def test_refuses_another_version_of_torch(self):
        torch = self.prefix / "torch"
        torch.mkdir()
        (torch / "__init__.py").write_text("")
        (torch / "version.py").write_text("__version__ = '2.10.1+cu128'\n")
        self.assertIn(f"{sys.executable} has torch 2.10.1", refused := self.refusal_of(PYTHONPATH=str(self.prefix)))
        self.assertIn("use a Python that has torch 2.11.0, or set YOKE_TORCH_LIB", refused)
        self.assertIn("has LibTorch 2.10.1; Yoke needs the one of torch 2.11.0",
                      self.refusal_of(YOKE_TORCH_LIB=str(torch / "lib")))

    def test_ends_all_its_processes_at_the_signal_of_timeout(self):
        running = subprocess.Popen([*self.command, "--only", "doctor"], env=self.environment)
        deaf = self.prefix / "deaf"
        while not (deaf.exists() and deaf.read_text()):
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(HANG), 128 + signal.SIGTERM)
        self.assertFalse(is_running(int(deaf.read_text())))


class Steps(unittest.TestCase):
    def test_need_the_version_of_torch_that_is_set_up(self):
        self.assertIn(f"\ntorch_version={gpu_test.TORCH_VERSION}\n", (ROOT / "scripts/setup").read_text(encoding="utf-8"))

    def test_can_end_within_their_limits(self):
        for own in gpu_test.steps.STEPS:
            self.assertGreater(own.limit, own.on_card, own.name)
            self.assertGreater(own.limit, own.on_cpu, own.name)

    def test_all_fit_into_the_budget_of_a_rehearsal(self):
        self.assertLessEqual(sum(own.on_cpu for own in gpu_test.steps.STEPS), 480 - budget.RESERVE)


class Plan(unittest.TestCase):
    """The command lines of bench/README.md."""

    LOAN, START = 900, 160  # seconds of a loan, and those of them for starting the machine and for copying

    def setUp(self):
        text = (ROOT / "bench/README.md").read_text(encoding="utf-8").replace("\\\n", " ")
        self.calls = []
        for words in re.findall(r"^python3 \$P (.*)", text, re.MULTILINE):
            with unittest.mock.patch.object(sys, "argv", ["gpu_test", *shlex.split(words)]):
                self.calls.append(gpu_test.parse_arguments())

    def test_has_calls_whose_steps_fit_into_their_budgets(self):
        for call in self.calls:
            needed = sum(own.on_card for own in gpu_test.chosen(call)) + budget.RESERVE
            self.assertLessEqual(needed, call.budget, call.only)
            self.assertLessEqual(call.budget, 600)

    def test_has_two_calls_that_fit_into_one_loan(self):
        self.assertLessEqual(sum(call.budget for call in self.calls[:2]), self.LOAN - self.START)

    def test_contains_all_steps(self):
        self.assertEqual({name for call in self.calls for name in call.only}, set(gpu_test.NAMES))


if __name__ == "__main__":
    unittest.main()
