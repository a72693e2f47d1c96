#!/usr/bin/env python3
"""Measures the training of Yoke on one GPU: eight Llama-8B-shaped blocks, a Llama of 1 billion parameters, and
llama-150m with 1k, 8k and 64k tokens a step.

    bench/gpu/bench.py [--part mfu --part kernels --part peer] [--budget 540] [-o bench.json]
    bench/gpu/bench.py --device cpu --tiny     toy sizes on a CPU: only tests this program

mfu      every workload eager, captured (ptd.cuda_graph), captured with the fastest algorithm for each product
         (train.tune_products), and with recomputation: step time, MFU relative to the data sheet and to the rate of a
         large matrix product in this run, memory beside its prediction
kernels  traces of three steps: the kernels that take the most time, how long the device is idle, waits of the host
peer     llama-150m with 1k and 64k tokens against eager PyTorch (eager.py), interleaved (A B C A B C); then with 1k tokens
         against torch.compile(mode="max-autotune"), which takes minutes to compile

Prints Markdown tables. The most valuable rows come first, and rows that do not fit into the budget are left out and
listed. Needs torch in this Python. A row that fails is listed, and the exit code is 1. The exit code is 4 if the losses
of Yoke and PyTorch differ by more than 1e-2 (relative) within 50 steps, the tolerance for bf16.
"""
import argparse
import datetime
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent)]
import report  # noqa: E402
import step_trace  # noqa: E402
from harness import DEFAULT_YOKE, require_yoke, write_json  # noqa: E402
from runs import Runner  # noqa: E402
from workloads import COMPILED, EAGER, PEERS, TRACED, VARIANTS, WORKLOADS, causal_saving, variants  # noqa: E402

PARTS = ("mfu", "kernels", "peer")
EXIT_GATE = 4
LOSS_BOUND = 1e-2  # level L2 of `yoke compare`
COMPARED_STEPS = 50  # later losses are not compared: rounding errors of bf16 grow from step to step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of interleaved runs of the part peer")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="default: no limit")
    parser.add_argument("--card", type=pathlib.Path, metavar="FILE", help="output of card.py; default: runs it")
    parser.add_argument("-o", dest="json_file", type=pathlib.Path, metavar="FILE", help="figures as JSON")
    options = parser.parse_args()
    options.parts = options.part or PARTS
    return options


class Bench:
    def __init__(self, options, runner):
        self.options = options
        self.runner = runner
        self.end = time.monotonic() + options.budget
        self.took = {}  # seconds of the latest run of a workload
        self.results = {"date": str(datetime.date.today()), "yoke": runner.version(), "tiny": options.tiny, "failed": {},
                        "left_out": []}

    def row(self, name, workload, measure, runs=1, more=0):
        """Returns the figures of a row, None if it fails or does not fit into the budget. `runs` is the number of runs
        that it needs, `more` the seconds that it needs beside them."""
        expected = more + runs * self.took.get(workload.name, workload.expected(self.options.tiny))
        begin = time.monotonic()
        if begin + expected > self.end:
            self.results["left_out"].append(name)
            return None
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            figures = measure()
        except (SystemExit, subprocess.TimeoutExpired) as e:
            self.results["failed"][name] = str(e)
            return None
        self.took[workload.name] = max(0, time.monotonic() - begin - more) / runs
        return figures

    # ---- The parts; each yields its figures after every row ----

    def mfu(self):
        rows = []
        for variant in variants(self.options.device):
            for workload in WORKLOADS.values():
                figures = self.row(f"{workload.name}, {variant}", workload, lambda: self.mfu_row(workload, variant))
                rows += [figures] if figures else []
                yield rows

    def mfu_row(self, workload, variant):
        keys = VARIANTS[variant]
        run = self.runner.logged(workload, keys)
        rate = run.tokens_per_step / statistics.median(run.seconds)
        saving = causal_saving(self.runner.config(workload, keys))
        flops = {"full": run.flops_per_token, "causal": run.flops_per_token - saving}
        target = None if "recompute" in variant else workload.mfu
        return {"workload": workload.name, "variant": variant, "limited_by": workload.limited_by, "target": target,
                "tokens_per_step": run.tokens_per_step, "step_ms": [1e3 * second for second in run.seconds],
                "tokens_per_second": rate, "tflops": {name: of_token * rate / 1e12 for name, of_token in flops.items()},
                "peak_bytes": run.peak, "predicted_bytes": self.runner.predicted(workload, keys)}

    def kernels(self):
        tables = {}
        for name, variant in TRACED:
            if variant not in variants(self.options.device):
                continue
            row = f"{name}, {variant}"
            figures = self.row(row, WORKLOADS[name], lambda: self.trace(WORKLOADS[name], variant))
            tables |= {row: figures} if figures else {}
            yield tables

    def trace(self, workload, variant):
        keys = VARIANTS[variant]
        steps = min(self.runner.config(workload, keys)["train.steps"], 12)
        folder = self.runner.train(workload, {**keys, "train.steps": steps, "profile.steps": f"{steps - 3},{steps - 1}"})
        return step_trace.summary(folder / "profile/rank_000.json")

    def peer(self):
        compared = {}
        for name, peer in PEERS.items():
            workload = WORKLOADS[peer.workload]
            programs = (peer.program, *(own for own in variants(self.options.device) if "recompute" not in own))
            runs = {program: [] for program in programs}
            for number in range(self.options.rounds):
                of_round = self.row(f"{peer.workload} against {peer.program}, round {number + 1}", workload,
                                    lambda: self.round(workload, programs), len(programs), peer.compiling)
                for program, run in (of_round or {}).items():
                    runs[program].append(run)
            if runs[peer.program]:
                compared[name] = compare(runs, peer)
            yield compared

    def round(self, workload, programs):
        return {program: self.runner.eager(workload, program == COMPILED) if program in (EAGER, COMPILED)
                else self.runner.logged(workload, VARIANTS[program]) for program in programs}

    # ---- All parts ----

    def card(self):
        if self.options.card:
            return json.loads(self.options.card.read_text(encoding="utf-8"))
        toy = ["--tiny"] if self.options.tiny else []
        command = [sys.executable, HERE / "card.py", "--device", self.options.device, *toy]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)

    def measure(self):
        """Fills the results row by row, so that all earlier results are kept if a later row fails or is ended."""
        self.results["card"] = self.card()
        for part in self.options.parts:
            for self.results[part] in getattr(self, part)():
                self.results["table"] = report.tables(self.results, LOSS_BOUND)
                if self.options.json_file:
                    write_json(self.options.json_file, self.results)
        return self.results


def compare(runs, peer):
    """Returns the figures of interleaved runs {program: [Logged]}; the ratios are those of the single rounds."""
    medians = {program: [statistics.median(run.seconds) for run in of_program] for program, of_program in runs.items()}
    other = runs[peer.program][0]
    return {program: {
        "step_ms": [1e3 * second for run in of_program for second in run.seconds], "peak_bytes": of_program[0].peak,
        "ratio": [theirs / own for own, theirs in zip(medians[program], medians[peer.program], strict=True)],
        "target": peer.targets.get(program), "loss_difference": largest_difference(of_program[0], other)}
        for program, of_program in runs.items()}


def largest_difference(left, right):
    """Returns the largest relative difference of the losses that both have logged in the compared steps."""
    return max(abs(loss - right.losses[step]) / abs(right.losses[step])
               for step, loss in left.losses.items() if step <= COMPARED_STEPS)


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    options.yoke = options.yoke.resolve()
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as folder:
        results = Bench(options, Runner(options.yoke, options.device, options.tiny, folder)).measure()
    print("\n".join(results["table"]))
    if results["failed"]:
        return 1
    differences = [own["loss_difference"] for programs in results.get("peer", {}).values() for own in programs.values()]
    return EXIT_GATE if any(difference > LOSS_BOUND for difference in differences) else 0


if __name__ == "__main__":
    sys.exit(main())
