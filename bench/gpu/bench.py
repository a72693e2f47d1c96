#!/usr/bin/env python3
"""Measures Yoke on one GPU: llama-150m with 8192 tokens a step against eager PyTorch, and a stack of Llama-8B-shaped
blocks.

    bench/gpu/bench.py [--part rate --part gaps --part stack] [--rounds 3] [-o bench.json]
    bench/gpu/bench.py --device cpu --tiny     toy sizes on a CPU: only tests this program

rate   yoke train without and with ptd.cuda_graph, and eager.py, interleaved (A B C A B C): step time, memory
gaps   a trace of three steps of each: whether the host waits inside a step, and how long the device is idle
stack  as many blocks as fit: MFU, relative to the rate of a large matrix product on this device in this run

Prints a Markdown table. Needs torch in this Python. A part that fails becomes a row of the table, and the exit code
is 1. The exit code is 4 if the losses of Yoke and PyTorch differ by more than 1e-2 (relative), the tolerance for
bf16.
"""
import argparse
import array
import dataclasses
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent)]
import report  # noqa: E402
import step_trace  # noqa: E402
from harness import DEFAULT_YOKE, require_yoke, run_program  # noqa: E402

PARTS = ("rate", "gaps", "stack")
SMALL, STACK = HERE / "llama_150m.toml", HERE / "llama_8b_blocks.toml"
EXIT_GATE = 4
LOSS_BOUND = 1e-2       # level L2 of `yoke compare`
WARMUP_LINES = 2        # first logged intervals, which are left out: kernels are loaded and chosen, graphs captured
MEMORY_SHARE = 0.85     # largest share of the device's memory that the stack may need, as predicted
TOKENS = 1 << 20
CAPTURED = {"ptd.cuda_graph": "true"}
# The overrides that --tiny adds.
TINY = {SMALL: {"model.preset": "tiny", "data.seq_len": 64, "train.global_batch": 2, "train.steps": 8, "metrics.every": 2},
        STACK: {"model.dim": 64, "model.heads": 4, "model.kv_heads": 2, "model.ffn_dim": 128, "data.seq_len": 64,
                "train.steps": 6, "metrics.every": 1}}


def pair(word):
    if "=" not in word:
        raise argparse.ArgumentTypeError(f"{word}: expected KEY=VALUE")
    return tuple(word.split("=", 1))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of interleaved runs")
    parser.add_argument("--blocks", type=int, help="blocks of the stack; default: as many as fit")
    parser.add_argument("--stack-args", nargs="*", type=pair, default=[], metavar="KEY=VALUE",
                        help="more overrides for the stack, like ptd.activation_checkpoint=full")
    parser.add_argument("-o", "--json-file", type=pathlib.Path)
    options = parser.parse_args()
    options.parts = options.part or PARTS
    return options


@dataclasses.dataclass
class Run:
    """The figures that one run logged, without its first lines."""

    losses: dict   # loss by step
    seconds: list  # seconds of a step, as the mean of each logged interval
    peak: int | None  # peak bytes of the device
    flops_per_token: float | None = None
    tokens_per_step: int | None = None


def read_run(path, device):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "loss" in row]
    if len(rows) <= WARMUP_LINES:
        raise SystemExit(f"{path} has {len(rows)} lines; more than {WARMUP_LINES} are needed")
    last = rows[-1]
    run = Run({row["step"]: row["loss"] for row in rows}, [row["step_seconds"] for row in rows[WARMUP_LINES:]],
              last["memory"] if device == "cuda" else None)
    if "tflops" in last:
        run.flops_per_token = last["tflops"] * 1e12 / last["tps"]
        run.tokens_per_step = last["tokens"] // last["step"]
    return run


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(folder)
        self.count = 0
        self.threads = os.cpu_count()
        version = subprocess.run([options.yoke, "--version"], check=True, capture_output=True, text=True).stdout.strip()
        self.results = {"date": str(datetime.date.today()), "yoke": version, "tiny": options.tiny, "failed": {}}

    def overrides(self, run_file, more):
        tiny = TINY[run_file] if self.options.tiny else {}
        return {"device": self.options.device, "data.path": self.data(run_file), **tiny, **more}

    def config(self, run_file, more):
        """Returns the keys of the run file and the overrides as one flat dict."""
        tables = tomllib.loads(run_file.read_text(encoding="utf-8"))
        values = {f"{table}.{key}": value for table, entries in tables.items() if isinstance(entries, dict)
                  for key, value in entries.items()}
        return {**values, **self.overrides(run_file, more)}

    def data(self, run_file):
        """Writes a file of token ids, the same on every machine; smaller ids are more frequent, as in a text."""
        vocab = 256 if run_file == STACK else 1024 if self.options.tiny else 32000
        path = self.folder / f"tokens_{vocab}.bin"
        if not path.exists():
            rng = random.Random(1)
            with open(path, "wb") as file:
                array.array("H", (int(vocab ** rng.random()) - 1 for _ in range(TOKENS))).tofile(file)
        return path

    def train(self, run_file, more):
        """Runs `yoke train` and returns its run folder."""
        self.count += 1
        run = self.folder / f"run{self.count}"
        words = [f"{key}={value}" for key, value in self.overrides(run_file, more).items()]
        command = [self.options.yoke, "train", run_file, f"run.dir={run}", *words]
        run_program(f"yoke train {run_file.name}", command, run.with_suffix(".log"), threads=self.threads)
        return run

    def logged(self, run_file, more):
        return read_run(self.train(run_file, more) / "metrics.jsonl", self.options.device)

    def eager(self):
        config = self.config(SMALL, {})
        self.count += 1
        out = self.folder / f"eager{self.count}.jsonl"
        flags = {"--model": config["model.preset"], "--data": config["data.path"], "--out": out, "--device": self.options.device,
                 "--steps": config["train.steps"], "--every": config["metrics.every"],
                 "--seq-len": config["data.seq_len"], "--global-batch": config["train.global_batch"]}
        command = [sys.executable, HERE / "eager.py", *(word for pair in flags.items() for word in pair)]
        run_program("eager.py", command, out.with_suffix(".log"), threads=self.threads)
        return read_run(out, self.options.device)

    def predicted(self, run_file, more):
        """Returns the memory of a rank in bytes, as predicted by the backend before the first step."""
        folder = self.train(run_file, {**more, "train.steps": 1, "metrics.every": 1, "record.facts": "true"})
        with open(folder / "facts.jsonl", encoding="utf-8") as lines:
            costs = json.loads(next(lines))["run"]["costs"]
        return sum(costs[part] for part in ("param", "grad", "optimizer", "unsharded", "activation"))

    def variants(self):
        """Returns {name: overrides} of the variants of Yoke."""
        captured = {} if self.options.device == "cpu" else {"yoke, captured": CAPTURED}
        return {"yoke": {}, **captured}

    # ---- The parts; each returns its figures ----

    def card(self):
        command = [sys.executable, HERE / "card.py", "--device", self.options.device]
        size = ["--size", "256"] if self.options.tiny else []
        return json.loads(subprocess.run(command + size, check=True, capture_output=True, text=True, timeout=300).stdout)

    def rate(self):
        runs = {name: [] for name in (*self.variants(), "PyTorch")}
        for _ in range(self.options.rounds):
            for name, more in self.variants().items():
                runs[name].append(self.logged(SMALL, more))
            runs["PyTorch"].append(self.eager())
        tokens = runs["yoke"][0].tokens_per_step
        figures = {"tokens_per_step": tokens, "predicted_bytes": self.predicted(SMALL, {}), "programs": {}}
        medians = {name: [statistics.median(run.seconds) for run in of_name] for name, of_name in runs.items()}
        for name, of_name in runs.items():
            step = statistics.median(second for run in of_name for second in run.seconds)
            figures["programs"][name] = {
                "step_ms": [1e3 * second for run in of_name for second in run.seconds], "tokens_per_second": tokens / step,
                "ratio": [peer / own for own, peer in zip(medians[name], medians["PyTorch"], strict=True)],
                "peak_bytes": of_name[0].peak, "loss_difference": largest_difference(of_name[0], runs["PyTorch"][0])}
        return figures

    def gaps(self):
        figures = {}
        for name, more in self.variants().items():
            steps = self.config(SMALL, more)["train.steps"]
            folder = self.train(SMALL, {**more, "profile.steps": f"{steps - 3},{steps - 1}"})
            figures[name] = step_trace.summary(folder / "profile/rank_000.json")
        return figures

    def stack(self):
        """Runs as many blocks as should fit according to the prediction, and fewer if they do not fit."""
        arguments = dict(self.options.stack_args)
        one, two = (self.predicted(STACK, {**arguments, "model.layers": n}) for n in (1, 2))
        memory = self.results["card"]["memory"]
        fitting = max(2, 1 + int((MEMORY_SHARE * memory - one) // (two - one))) if memory else 2
        tries = [self.options.blocks] if self.options.blocks else sorted({fitting, fitting * 3 // 4, fitting // 2})
        failures = {}
        while tries:
            blocks = tries.pop()
            try:
                figures = self.run_stack({**arguments, "model.layers": blocks})
                return {**figures, "failed": failures, "predicted_bytes": one + (blocks - 1) * (two - one)}  # all blocks are alike
            except SystemExit as e:
                failures[blocks] = str(e)
        raise SystemExit("; ".join(f"{blocks} blocks: {text}" for blocks, text in failures.items()))

    def run_stack(self, more):
        run = self.logged(STACK, more)
        config = self.config(STACK, more)
        causal = 6.0 * config["model.layers"] * config["model.dim"] * config["data.seq_len"]  # half of full attention
        return {"blocks": config["model.layers"], "arguments": more, "seq_len": config["data.seq_len"],
                "step_ms": [1e3 * second for second in run.seconds],
                "tokens_per_second": run.tokens_per_step / statistics.median(run.seconds),
                "flops_per_token": {"full": run.flops_per_token, "causal": run.flops_per_token - causal},
                "peak_bytes": run.peak}

    # ---- All parts ----

    def measure(self):
        """Fills the results part by part, so earlier results are kept if a later part fails."""
        self.results["card"] = self.card()
        for part in self.options.parts:
            print(f"{part} ...", file=sys.stderr, flush=True)
            try:
                self.results[part] = getattr(self, part)()
            except SystemExit as e:
                self.results["failed"][part] = str(e)
            self.results["table"] = report.table(self.results, LOSS_BOUND)
            if self.options.json_file:
                self.options.json_file.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        return self.results


def largest_difference(left, right):
    return max(abs(loss - right.losses[step]) / abs(right.losses[step]) for step, loss in left.losses.items())


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    options.yoke = options.yoke.resolve()
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as folder:
        results = Bench(options, folder).measure()
    print("\n".join(results["table"]))
    if results["failed"]:
        return 1
    programs = results.get("rate", {}).get("programs", {}).values()
    return EXIT_GATE if any(own["loss_difference"] > LOSS_BOUND for own in programs) else 0


if __name__ == "__main__":
    sys.exit(main())
