#!/usr/bin/env python3
"""Tests how the steps of scripts/gpu_test judge what their programs write, with programs made for these tests."""
import json
import pathlib
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
import context  # noqa: E402
import references  # noqa: E402
import steps  # noqa: E402
import two_ranks  # noqa: E402


def event(category, name, begin, length, correlation):
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, "args": {"correlation": correlation}}


def trace_of(waits, launches=1):
    """Returns a trace of one step that launches kernels and waits for the device before the last of them."""
    events = [event("user_annotation", "ProfilerStep#8", 0, 100, None)]
    for i in range(launches):
        events += [event("cuda_runtime", "cudaLaunchKernel", 50 + i, 1, i), event("kernel", "gemm", 60 + i, 1, i)]
    return {"traceEvents": events + [event("cuda_runtime", "cudaStreamSynchronize", 10, 1, 99)] * waits}


class Fake(context.Context):
    """A context whose runs of yoke train call `write`, a function of the run folder and the arguments."""

    def train(self, *words, more=None, prefix=()):
        folder = next(pathlib.Path(word.split("=", 1)[1]) for word in map(str, words) if word.startswith("run.dir="))
        (folder / "profile").mkdir(parents=True, exist_ok=True)
        self.write(folder, words)
        return ""


class StepTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="yoke-steps-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.own = Fake(self.folder / "yoke", [], "", sys.executable, self.folder / "text", self.folder, "cuda",
                        time.monotonic() + 60)


class Trace(StepTest):
    def run_trace(self, ptd=0, stub=0, launches=1):
        def write(folder, words):
            waits = stub if "parallel_backend=deepspeed_stub" in words else ptd
            (folder / "profile/rank_000.json").write_text(json.dumps(trace_of(waits, launches)))
        self.own.write = write
        return steps.trace(self.own)

    def test_counts_the_waits_of_deepspeed_stub_without_a_verdict(self):
        figures = self.run_trace(stub=2)
        self.assertEqual({name: len(own["waits_inside"]) for name, own in figures.items()},
                         {"ptd": 0, "deepspeed_stub": 2, "ptd, captured": 0})
        self.assertEqual(figures["ptd"]["kernels"]["top"], [{"name": "gemm", "count": 1, "total_us": 1}])

    def test_fails_if_ptd_waits_or_nothing_is_launched(self):
        with self.assertRaisesRegex(context.Failed, "2 waits, the first: ptd, step 8: cudaStreamSynchronize at 10 us"):
            self.run_trace(ptd=1)
        with self.assertRaisesRegex(context.Failed, "launches nothing"):
            self.run_trace(launches=0)


class TwoRanks(StepTest):
    """The ranks are shells that run `script`, in which $layout is the name of the layout and $run its folder."""

    def run_layouts(self, script):
        def start(words, more=None):
            run = next(word for word in words if str(word).startswith("run.dir=")).split("=", 1)[1]
            pathlib.Path(run).mkdir(exist_ok=True)
            names = {"run": run, "layout": run.rpartition("two_ranks_")[2]}
            return context.Context.start(self.own, ["sh", "-c", script], {**(more or {}), **names})
        self.own.start = start
        return two_ranks.two_ranks(self.own)

    def write(self, loss=2.5, norm=1.0):
        return f"echo '{{\"loss\": {loss}, \"grad_norm\": {norm}}}' > $run/metrics.jsonl"

    def losses(self, figures):
        return {name: own["loss"] for name, own in figures.items()}

    def test_returns_the_losses_of_all_layouts(self):
        self.assertEqual(self.losses(self.run_layouts(self.write())), dict.fromkeys(two_ranks.LAYOUTS, 2.5))

    def test_runs_all_layouts_and_reports_each_that_fails(self):
        other = f"[ $layout != pp ] || {self.write(3)}"
        script = f"[ $layout != tp ] || {{ echo no rule; exit 3; }}; {self.write()}; {other}"
        with self.assertRaisesRegex(context.Failed, "tp: rank 0 ended with 3: no rule.*; pp: loss 3, not 2.5") as failed:
            self.run_layouts(script)
        others = [name for name in two_ranks.LAYOUTS if name != "tp"]
        self.assertEqual(self.losses(failed.exception.figures), {**dict.fromkeys(others, 2.5), "pp": 3})

    def test_compares_the_norm_of_the_gradient_and_allows_more_in_bf16(self):
        other = "; ".join(f"[ $layout != {layout} ] || {self.write(loss, norm)}" for layout, loss, norm in
                          (("cp_bf16", 2.51, 1.05), ("zero3", 2.5, 1.001)))
        with self.assertRaisesRegex(context.Failed, "^zero3: grad_norm 1.001, not 1.0 as in fsdp$"):
            self.run_layouts(f"{self.write()}; {other}")
        with self.assertRaisesRegex(context.Failed, "^cp_bf16: grad_norm 1.2, not 1.0 as in fsdp$"):
            self.run_layouts(f"{self.write()}; [ $layout != cp_bf16 ] || {self.write(2.5, 1.2)}")
        with self.assertRaisesRegex(context.Failed, "^ddp: loss nan"):
            self.run_layouts(f"{self.write()}; [ $layout != ddp ] || {self.write('NaN')}")

    def test_ends_a_layout_that_hangs_in_time_for_the_others(self):
        saved, two_ranks.LAYOUT_SECONDS = two_ranks.LAYOUT_SECONDS, 59.5 / (len(two_ranks.LAYOUTS) - 1)
        self.addCleanup(setattr, two_ranks, "LAYOUT_SECONDS", saved)
        deadline = self.own.deadline
        with self.assertRaisesRegex(context.NotFinished, "fsdp: not finished in time") as cut_off:
            self.run_layouts(f"[ $layout != fsdp ] || exec sleep 1000; {self.write()}")
        others = [name for name in two_ranks.LAYOUTS if name != "fsdp"]
        self.assertEqual(self.losses(cut_off.exception.figures), dict.fromkeys(others, 2.5))
        self.assertEqual(self.own.deadline, deadline)

    def test_gives_the_first_layouts_their_time_if_it_is_short(self):
        own = two_ranks.LAYOUT_SECONDS
        self.assertEqual(two_ranks.deadline_of_layout(now=0, deadline=20 * own, after=10), 10 * own)
        self.assertEqual(two_ranks.deadline_of_layout(now=0, deadline=5 * own, after=10), own)
        self.assertEqual(two_ranks.deadline_of_layout(now=0, deadline=own / 2, after=10), own / 2)

    def test_starts_no_layout_when_the_time_is_over(self):
        self.own.deadline = 0
        with self.assertRaisesRegex(context.NotFinished, "fsdp: no time was left; .*zero3: no time was left"):
            self.run_layouts("exit 3")

    def test_is_not_possible_if_ranks_may_not_share_the_gpu(self):
        with self.assertRaisesRegex(context.NotHere, "fsdp: rank 0 ended with 1: Duplicate GPU"):
            self.run_layouts("echo Duplicate GPU; exit 1")

    def test_fails_if_the_first_layout_fails_for_another_reason(self):
        with self.assertRaisesRegex(context.Failed, "^fsdp: rank 0 ended with 1: out of memory; fsdp: rank 1") as failed:
            self.run_layouts(f"[ $layout != fsdp ] || {{ echo out of memory; exit 1; }}; {self.write()}")
        self.assertEqual(len(failed.exception.figures), len(two_ranks.LAYOUTS) - 1)


class Repeats(StepTest):
    FIRST = [3.0, 2.0, 1.0]

    def run_repeats(self, default, deterministic):
        """Runs the step with the losses of the second run in each setting."""
        runs = {False: iter((self.FIRST, default)), True: iter((self.FIRST, deterministic))}
        self.own.write = lambda folder, words: (folder / "metrics.jsonl").write_text(
            "".join(json.dumps({"loss": loss}) + "\n" for loss in next(runs["train.deterministic=true" in words])))
        return steps.repeats(self.own)

    def test_names_the_first_step_that_differs_by_default_without_a_verdict(self):
        figures = self.run_repeats(default=[3.0, 2.0000001, 1.1], deterministic=self.FIRST)
        self.assertEqual({setting: own["first different step"] for setting, own in figures.items()},
                         {"default": 2, "deterministic": None})

    def test_fails_if_deterministic_runs_differ(self):
        with self.assertRaisesRegex(context.Failed, "train.deterministic=true, two runs differ from step 3 on") as failed:
            self.run_repeats(default=self.FIRST, deterministic=[3.0, 2.0, 1.1])
        self.assertIsNone(failed.exception.figures["default"]["first different step"])


class Measure(StepTest):
    def program(self, text):
        path = self.folder / "program.py"
        path.write_text(f"import pathlib, sys, time\nout = pathlib.Path(sys.argv[sys.argv.index('-o') + 1])\n{text}\n")
        return path

    def test_returns_the_figures(self):
        self.assertEqual(steps.measure(self.own, self.program("out.write_text('[1]')")), [1])

    def test_keeps_the_figures_of_a_program_that_fails(self):
        with self.assertRaisesRegex(context.Failed, "ended with 3") as failed:
            steps.measure(self.own, self.program("out.write_text('[1]'); sys.exit(3)"))
        self.assertEqual(failed.exception.figures, [1])

    def test_keeps_the_figures_of_a_program_that_does_not_end(self):
        def soon_after_the_figures():
            while not list(self.folder.glob("program.json")):
                time.sleep(0.05)
            return 1
        self.own.seconds_left = soon_after_the_figures
        program = self.program("part = out.with_suffix('.part'); part.write_text('[2]'); part.replace(out); time.sleep(1000)")
        with self.assertRaises(context.NotFinished) as cut_off:
            steps.measure(self.own, program)
        self.assertEqual(cut_off.exception.figures, [2])

    def test_has_no_figures_of_an_earlier_program(self):
        program = self.program("out.write_text('[1]')")
        steps.measure(self.own, program)
        program.write_text("")
        self.assertIsNone(steps.measure(self.own, program))

    def test_is_not_possible_without_a_python_that_has_torch(self):
        self.own.python = ""
        with self.assertRaises(context.NotHere):
            steps.measure(self.own, self.program(""))


class Losses(StepTest):
    def test_fail_if_no_carried_reference_fits(self):
        self.own.text.write_text("another text")
        shown = {key: {"value": None} for key in references.KEYS}
        self.own.run = lambda words, more=None: (0, json.dumps(shown))
        with self.assertRaisesRegex(context.Failed, "no carried reference fits: .*data.sha256"):
            steps.losses(self.own)


class CarriedLosses(StepTest):
    """Each run of yoke writes the losses of `runs` for its precision; the carried losses are 4, 2 and 1."""

    def run_losses(self, fp32, bf16):
        saved = references.read, references.find
        references.read, references.find = dict, lambda *_: [{"loss": loss} for loss in (4.0, 2.0, 1.0)]
        self.addCleanup(lambda: setattr(references, "read", saved[0]) or setattr(references, "find", saved[1]))
        self.own.text.write_text("")
        self.own.run = lambda words, more=None: (0, json.dumps({key: {"value": None} for key in references.KEYS}))
        self.own.write = lambda folder, words: (folder / "metrics.jsonl").write_text(
            "".join(json.dumps({"step": step, "loss": loss}) + "\n"
                    for step, loss in enumerate(fp32 if "precision.param=fp32" in words else bf16, 1)))
        return steps.losses(self.own)

    def test_report_the_difference_in_bf16_without_a_verdict(self):
        figures = self.run_losses(fp32=[4.0, 2.00002, 1.0], bf16=[4.0, 2.0, 1.25])
        self.assertAlmostEqual(figures["fp32"]["largest difference"], 1e-5)
        self.assertEqual(figures["bf16"], {"largest difference": 0.25, "at step": 3})

    def test_fail_if_fp32_differs_or_is_not_a_number(self):
        for loss, difference in ((2.001, "5.0e-04"), (float("nan"), "inf")):
            with self.assertRaisesRegex(context.Failed, f"in fp32, the loss of step 2 differs by {difference} from") as failed:
                self.run_losses(fp32=[4.0, loss, 1.0], bf16=[4.0, 2.0, 1.0])
            self.assertEqual(failed.exception.figures["fp32"]["at step"], 2)


if __name__ == "__main__":
    unittest.main()
