#!/usr/bin/env python3
"""Yoke on one GPU: llama-150m at 8192 tokens a step beside eager PyTorch, and a stack of Llama-8B-shaped blocks.

    bench/gpu/bench.py [--part rate --part gaps --part stack] [--rounds 3] [-o bench.json]
    bench/gpu/bench.py --device cpu --tiny     the same with toy sizes on a CPU: tries the program, measures nothing

rate   yoke train without and with ptd.cuda_graph and eager.py, interleaved A B C A B C: step time, memory
gaps   a trace of three steps of each: does the host wait inside a step, and how long is the device idle
stack  as many blocks as fit: MFU, against the rate of a large matrix product on this device in this run

Prints a Markdown table. The Python that runs this must have torch. Ends with 1 if a program fails, with 4 if the
losses of Yoke and PyTorch differ by more than 1e-2 (relative), what bf16 allows.
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
import step_trace  # noqa: E402
from harness import DEFAULT_YOKE, require_yoke, run_program, spread  # noqa: E402

PARTS = ("rate", "gaps", "stack")
SMALL, STACK = HERE / "llama_150m.toml", HERE / "llama_8b_blocks.toml"
EXIT_GATE = 4
LOSS_BOUND = 1e-2       # L2 of `yoke compare`
WARMUP_LINES = 2        # logged intervals left out: kernels are loaded and chosen, graphs captured
MEMORY_SHARE = 0.85     # of the device, for the predicted bytes of the stack
TOKENS = 1 << 20
CAPTURED = {"ptd.cuda_graph": "true"}
# Overrides of --tiny.
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
    parser.add_argument("--rounds", type=int, default=3, help="of the interleaved runs")
    parser.add_argument("--blocks", type=int, help="of the stack; default: as many as fit")
    parser.add_argument("--stack-args", nargs="*", type=pair, default=[], metavar="KEY=VALUE",
                        help="more overrides for the stack, like ptd.activation_checkpoint=full")
    parser.add_argument("-o", "--json-file", type=pathlib.Path)
    options = parser.parse_args()
    options.parts = options.part or PARTS
    return options


@dataclasses.dataclass
class Run:
    """What one run logged, without its first lines."""

    losses: dict   # by step
    seconds: list  # of a step, mean of every logged interval
    peak: int | None  # bytes of the device
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

    def overrides(self, run_file, more):
        tiny = TINY[run_file] if self.options.tiny else {}
        return {"device": self.options.device, "data.path": self.data(run_file), **tiny, **more}

    def config(self, run_file, more):
        """Flat: what the run file and the overrides say."""
        tables = tomllib.loads(run_file.read_text(encoding="utf-8"))
        values = {f"{table}.{key}": value for table, entries in tables.items() if isinstance(entries, dict)
                  for key, value in entries.items()}
        return {**values, **self.overrides(run_file, more)}

    def data(self, run_file):
        """Token ids drawn as words are, the smaller the likelier; the same on every machine."""
        vocab = 256 if run_file == STACK else 1024 if self.options.tiny else 32000
        path = self.folder / f"tokens_{vocab}.bin"
        if not path.exists():
            rng = random.Random(1)
            with open(path, "wb") as file:
                array.array("H", (int(vocab ** rng.random()) - 1 for _ in range(TOKENS))).tofile(file)
        return path

    def train(self, run_file, more):
        """The run folder of `yoke train`."""
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
        """Bytes of a rank as the backend tells them before the first step."""
        folder = self.train(run_file, {**more, "train.steps": 1, "metrics.every": 1, "record.facts": "true"})
        with open(folder / "facts.jsonl", encoding="utf-8") as lines:
            costs = json.loads(next(lines))["run"]["costs"]
        return sum(costs[part] for part in ("param", "grad", "optimizer", "unsharded", "activation"))

    def variants(self):
        """{name: overrides} of Yoke."""
        captured = {} if self.options.device == "cpu" else {"yoke, captured": CAPTURED}
        return {"yoke": {}, **captured}

    # ---- the parts: each returns its figures

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

    def stack(self, memory):
        arguments = dict(self.options.stack_args)
        one, two = (self.predicted(STACK, {**arguments, "model.layers": n}) for n in (1, 2))
        fitting = 1 + int((MEMORY_SHARE * memory - one) // (two - one)) if memory else 2
        blocks = self.options.blocks or max(1, fitting)
        more = {**arguments, "model.layers": blocks}
        run = self.logged(STACK, more)
        config = self.config(STACK, more)
        causal = 6.0 * blocks * config["model.dim"] * config["data.seq_len"]  # half of what full attention takes
        return {"blocks": blocks, "arguments": arguments, "seq_len": config["data.seq_len"],
                "step_ms": [1e3 * second for second in run.seconds],
                "tokens_per_second": run.tokens_per_step / statistics.median(run.seconds),
                "flops_per_token": {"full": run.flops_per_token, "causal": run.flops_per_token - causal},
                "peak_bytes": run.peak, "predicted_bytes": one + (blocks - 1) * (two - one)}  # blocks cost the same


def largest_difference(left, right):
    return max(abs(loss - right.losses[step]) / abs(right.losses[step]) for step, loss in left.losses.items())


# ---- the table

def gib(count):
    return "not known" if count is None else f"{count / 2**30:.2f} GiB"


def memory_row(name, figures, peak):
    share = f"{peak / figures['predicted_bytes']:.3f}" if peak else "not known"
    return [f"peak memory, {name}", f"{gib(peak)}, predicted {gib(figures['predicted_bytes'])}: {share}", "0.97 to 1.03"]


def rate_rows(figures):
    for name, own in figures["programs"].items():
        yield [f"llama-150m, {figures['tokens_per_step']} tokens a step, {name}",
               f"{spread(own['step_ms'])} ms, {own['tokens_per_second']:,.0f} tokens/s", ""]
    for name, own in figures["programs"].items():
        if name == "PyTorch":
            continue
        yield [f"step rate of {name} over eager PyTorch's", f"{spread(own['ratio'])}x", "1.3" if "captured" in name else ""]
        yield [f"largest relative difference of the losses, {name}", f"{own['loss_difference']:.1e}", f"{LOSS_BOUND:g}"]
        yield memory_row(f"llama-150m, {name}", figures, own["peak_bytes"])
    yield ["peak memory, llama-150m, eager PyTorch", gib(figures["programs"]["PyTorch"]["peak_bytes"]), ""]


def gaps_rows(figures):
    for name, own in figures.items():
        if own["idle_share"] is None:
            yield [f"traced steps, {name}", "no work of a device in the trace", ""]
            continue
        idle = f"{100 * own['idle_share']:.1f} %, launches a step {own['launches']}"
        yield [f"device idle in a traced step, {name}", idle, ""]
        waits = "; ".join(own["waits_inside"][:3]) or "none"
        yield [f"waits for the device inside a step, {name}", waits, "none"]


def stack_rows(figures, card):
    what = f"{figures['blocks']} Llama-8B-shaped blocks, sequence {figures['seq_len']}"
    yield [what, f"{spread(figures['step_ms'], '.1f')} ms, {figures['tokens_per_second']:,.0f} tokens/s", ""]
    for convention, bar in (("full", "50 %"), ("causal", "")):
        reached = figures["flops_per_token"][convention] * figures["tokens_per_second"] / 1e12
        sheet = card["data_sheet_tflops"]
        of_sheet = f", {100 * reached / sheet:.1f} % of the data sheet's {sheet}" if sheet else ""
        yield [f"MFU, 6N + {convention} attention",
               f"{reached:.1f} TFLOP/s: {100 * reached / card['gemm_tflops']:.1f} % of the matrix product's{of_sheet}", bar]
    yield memory_row("stack", figures, figures["peak_bytes"])


def table(results):
    card = results["card"]
    product = f"{card['gemm_tflops']:.1f} ({card['gemm_range'][0]:.1f} .. {card['gemm_range'][1]:.1f}) TFLOP/s"
    rows = [["what", "figure", "bar"], ["---"] * 3, [f"bf16 product of {card['gemm_size']}^3", product, ""]]
    rows += rate_rows(results["rate"]) if "rate" in results else []
    rows += gaps_rows(results["gaps"]) if "gaps" in results else []
    rows += stack_rows(results["stack"], card) if "stack" in results else []
    driver = f", driver {card['driver']}" if card["driver"] else ""
    toy = ", TOY SIZES" if results["tiny"] else ""
    return [f"{results['date']}, {card['name']}{driver}, torch {card['torch']}, {results['yoke']}{toy}", "",
            *("| " + " | ".join(row) + " |" for row in rows)]


def measure(options, folder):
    bench = Bench(options, folder)
    version = subprocess.run([options.yoke, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    results = {"date": str(datetime.date.today()), "yoke": version, "tiny": options.tiny, "card": bench.card()}
    for part in options.parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        results[part] = bench.stack(results["card"]["memory"]) if part == "stack" else getattr(bench, part)()
    return results


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    options.yoke = options.yoke.resolve()
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as folder:
        results = measure(options, folder)
    results["table"] = table(results)
    print("\n".join(results["table"]))
    if options.json_file:
        options.json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    programs = results.get("rate", {}).get("programs", {}).values()
    return EXIT_GATE if any(own["loss_difference"] > LOSS_BOUND for own in programs) else 0


if __name__ == "__main__":
    sys.exit(main())
