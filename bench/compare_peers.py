#!/usr/bin/env python3
"""Compares Yoke with PyTorch's own strategies, Accelerate, DeepSpeed, Megatron Core and nanotron: same model, initial
bits and data, interleaved.

    bench/compare_peers.py --workload tiny --strategy fsdp --pairs 7
    bench/compare_peers.py --workload small400 --strategy zero3

Runs `yoke train` and bench/peers/train.py in turn (A B A B ...), with one thread per rank, over Gloo; DeepSpeed also
uses its own shared memory. Takes the median step time of each run after the warm-up steps, and prints the ratio of
every pair, their median and range. If the losses of a pair differ by more than 2e-6 (relative) in the first 20 steps,
both programs also run in fp64. If their losses agree there and differ by at most 1e-4 in fp32, the difference comes
from rounding in fp32. The distance of each program from its own fp64 run shows which one rounds more. With one rank,
the matrix products of a step also run alone in each turn (build/release/bench/products); their time divided by that of
a step is the share of the rate that the machine allows. With --one-rank, Yoke also runs with one rank in each turn.
Exits with 4 if the losses do not agree, and with 1 if a run
fails. Needs a release build and `scripts/setup --peers`.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from harness import DEFAULT_YOKE, REPOSITORY, machine, make_text, peers_python, require_yoke, run_program, spread

LOSS_BOUND, LOSS_STEPS = 2e-6, 20  # level L1 in fp32, as `yoke compare` requires for these steps
ROUNDING_BOUND = 1e-4  # no rounding in fp32 makes a larger difference in so few steps
FP64_BOUND, DEEPSPEED_FP64_BOUND = 1e-12, 1e-6  # DeepSpeed computes some numbers in fp32 even then
EXIT_GATE = 4

# Model, sequences per step over all ranks, tokens per sequence.
WORKLOADS = {"tiny": ("tiny", 8, 64), "tiny-s8": ("tiny", 2, 8), "small400": ("small400", 2, 16),
             "llama-14m": ("llama-14m", 8, 128)}
# The same shapes as in peers/llama.py.
MODELS = {
    "tiny": "dim = 64\nlayers = 12\nheads = 8\nkv_heads = 4\nffn_dim = 256\nvocab = 1024",
    "llama-14m": "dim = 128\nlayers = 6\nheads = 8\nkv_heads = 4\nffn_dim = 512\nvocab = 32000",
    "small400": "dim = 32\nlayers = 44\nheads = 4\nkv_heads = 2\nffn_dim = 64\nvocab = 256",
}
PIPELINE = ["dp_degree=1", "dp_shards=1", "pp_degree={ranks}", "train.micro_batch=1"]
# Overrides for Yoke, and the name of the program to compare with.
STRATEGIES = {
    "single": (["dp_degree=1", "dp_shards=1"], "PyTorch"),
    "compiled": (["dp_degree=1", "dp_shards=1"], "PyTorch with torch.compile"),
    "ddp": (["dp_degree={ranks}", "dp_shards=1"], "PyTorch"),
    "fsdp": (["dp_degree=1", "dp_shards={ranks}"], "PyTorch"),
    "tp": (["dp_degree=1", "dp_shards=1", "tp_degree={ranks}"], "PyTorch"),
    "pp-gpipe": ([*PIPELINE, "ptd.pp_schedule=gpipe"], "PyTorch"),
    "pp-1f1b": ([*PIPELINE, "ptd.pp_schedule=1f1b"], "PyTorch"),
    "pp-interleaved": ([*PIPELINE, "ptd.pp_schedule=interleaved"], "PyTorch"),
    "pp-looped_bfs": ([*PIPELINE, "ptd.pp_schedule=looped_bfs"], "PyTorch"),
    "pp-zb_interleaved": ([*PIPELINE, "ptd.pp_schedule=zb_interleaved"], "PyTorch"),
    "accelerate": (["dp_degree={ranks}"], "Accelerate"),
    "zero1": (["deepspeed_stub.zero_stage=1"], "DeepSpeed"),
    "zero2": (["deepspeed_stub.zero_stage=2"], "DeepSpeed"),
    "zero3": (["deepspeed_stub.zero_stage=3"], "DeepSpeed"),
    "megatron-ddp": (["train.decay=matrices"], "Megatron Core"),
    "megatron-distopt_overlap": (["train.decay=matrices", "megatron_compat.use_distributed_optimizer=true",
                                  "megatron_compat.overlap_grad_reduce=true",
                                  "megatron_compat.overlap_param_gather=true"], "Megatron Core"),
    "megatron-tp": (["train.decay=matrices", "tp_degree={ranks}", "megatron_compat.sequence_parallel=true"],
                    "Megatron Core"),
    "megatron-pp": (["train.decay=matrices", "pp_degree={ranks}", "train.micro_batch=2"], "Megatron Core"),
    "nanotron-zero0": ([], "nanotron"),
    "nanotron-zero1": (["nanotron_compat.zero_stage=1"], "nanotron"),
    "nanotron-tp": (["tp_degree={ranks}", "nanotron_compat.tp_mode=REDUCE_SCATTER"], "nanotron"),
    "nanotron-pp": (["pp_degree={ranks}", "nanotron_compat.pp_engine=1f1b", "train.micro_batch=2"], "nanotron"),
}
# Arguments for peers/train.py if they do not follow from the name of the strategy.
PEER_ARGUMENTS = {
    "megatron-tp": ["--schedule", "ddp", "--tp", "{ranks}", "--sequence-parallel"],
    "megatron-pp": ["--schedule", "ddp", "--pp", "{ranks}", "--accumulate", "4"],
    "nanotron-tp": ["--schedule", "zero0", "--tp", "{ranks}", "--sequence-parallel"],
    "nanotron-pp": ["--schedule", "zero0", "--pp", "{ranks}", "--pp-engine", "1f1b", "--accumulate", "4"],
}

RUN_FILE = """\
parallel_backend = "{backend}"
device = "cpu"
seed = 1
[run]
dir = "{run_dir}"
[model]
family = "llama"
{model}
rope_theta = 10000.0
norm_eps = 1e-5
tied = false
[data]
path = "{data}"
seq_len = {seq_len}
order = "sequential"
holdout = 0.05
[train]
steps = {steps}
global_batch = {global_batch}
optimizer = "adamw"
lr = 1e-3
schedule = "constant"
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
decay = "all"
clip = 1.0
[precision]
param = "fp32"
reduce = "fp32"
[metrics]
every = 1
"""


@dataclasses.dataclass
class Run:
    """The figures of one run, step by step."""

    losses: list
    norms: list
    seconds: list
    memory: int  # largest peak resident memory of any rank in bytes

    def median_ms(self, warmup):
        return 1e3 * statistics.median(self.seconds[warmup:])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="tiny")
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks, except for single and compiled")
    parser.add_argument("--one-rank", action="store_true", help="also compare yoke with its own step on one rank")
    parser.add_argument("--steps", type=int, default=45, help="steps of each run")
    parser.add_argument("--warmup", type=int, default=5, help="steps left out of the medians")
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--backend", help="default: the one that is named after the other program, else ptd")
    parser.add_argument("--yoke-args", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides for yoke train")
    parser.add_argument("--data", type=pathlib.Path, help="a text; default: one from scripts/generate_text")
    parser.add_argument("--json-file", type=pathlib.Path, help="also write every pair's figures here")
    options = parser.parse_args()
    if options.steps <= options.warmup:
        parser.error(f"--steps {options.steps} must be more than --warmup {options.warmup}")
    if options.strategy in ("single", "compiled"):
        options.ranks = 1
    if options.backend is None:
        backends = {"zero": "deepspeed_stub", "accelerate": "accelerate_compat", "megatron": "megatron_compat",
                    "nanotron": "nanotron_compat"}
        options.backend = next((b for s, b in backends.items() if options.strategy.startswith(s)), "ptd")
    return options


def read_run(path):
    with open(path, encoding="utf-8") as lines:
        records = [r for r in map(json.loads, lines) if "loss" in r and "step_seconds" in r]
    return Run([r["loss"] for r in records], [r["grad_norm"] for r in records], [r["step_seconds"] for r in records],
               max((r["memory"] for r in records), default=0))


def peer_strategy(options):
    name, _, schedule = options.strategy.partition("-")
    arguments = PEER_ARGUMENTS.get(options.strategy, ["--schedule", schedule] if schedule else [])
    return ["--strategy", name, *(a.format(ranks=options.ranks) for a in arguments)]


def run_peer(options, data, folder, dtype="fp32"):
    model, global_batch, seq_len = WORKLOADS[options.workload]
    metrics = folder / "peer.jsonl"
    run_program("the Python peer", [
        peers_python(), REPOSITORY / "bench/peers/train.py", *peer_strategy(options), "--model", model,
        "--ranks", options.ranks, "--data", data, "--out", metrics, "--steps", options.steps, "--seq-len", seq_len,
        "--global-batch", global_batch, "--dtype", dtype], folder / "peer.log",
        is_complete=lambda: metrics.exists() and len(metrics.read_text().splitlines()) == options.steps)
    return read_run(metrics)


def run_yoke(options, data, folder):
    model, global_batch, seq_len = WORKLOADS[options.workload]
    run_dir = folder / "run"
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE.format(
        backend=options.backend, model=MODELS[model], run_dir=run_dir, data=data, seq_len=seq_len, steps=options.steps,
        global_batch=global_batch), encoding="utf-8")
    degrees = [d.format(ranks=options.ranks) for d in STRATEGIES[options.strategy][0]]
    run_program("yoke", [
        options.yoke, "train", run_file, "--nproc", options.ranks, *degrees, *options.yoke_args], folder / "yoke.log")
    return read_run(run_dir / "metrics.jsonl")


def largest_difference(left, right, steps):
    """Returns the largest relative difference over the first `steps` steps, infinity if a number is not finite."""
    if not all(math.isfinite(number) for number in left[:steps] + right[:steps]):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(left[:steps], right[:steps], strict=True))


def compare_fp64(options, data, folder, yoke, peer):
    """Runs both programs in fp64. Returns how far they are apart there, and how far each is from its own fp64 run."""
    folder.mkdir()
    fp64 = ["precision.param=fp64", "precision.reduce=fp64"]
    # torch.compile's code for attention on the CPU fails in fp64. Without it the peer computes the same.
    strategy = "single" if options.strategy == "compiled" else options.strategy
    wide = argparse.Namespace(**{**vars(options), "yoke_args": [*options.yoke_args, *fp64], "strategy": strategy})
    yoke64 = run_yoke(wide, data, folder)
    peer64 = run_peer(wide, data, folder, dtype="fp64")
    return {"fp64_difference": largest_difference(yoke64.losses, peer64.losses, LOSS_STEPS),
            "yoke_from_fp64": largest_difference(yoke.losses, yoke64.losses, LOSS_STEPS),
            "peer_from_fp64": largest_difference(peer.losses, peer64.losses, LOSS_STEPS)}


def fp64_bound(options):
    return DEEPSPEED_FP64_BOUND if STRATEGIES[options.strategy][1] == "DeepSpeed" else FP64_BOUND


def is_equal(options, pair):
    """Returns whether the losses of a pair are equal, or differ by rounding."""
    if pair["loss_difference"] <= LOSS_BOUND:
        return True
    return pair["loss_difference"] <= ROUNDING_BOUND and pair["fp64_difference"] <= fp64_bound(options)


def run_pair(options, data, folder):
    folder.mkdir()
    load = os.getloadavg()[0]
    peer = run_peer(options, data, folder)
    yoke = run_yoke(options, data, folder)
    for name, run in (("the Python peer", peer), ("yoke", yoke)):
        if len(run.losses) != options.steps:
            raise SystemExit(f"{name} logged {len(run.losses)} steps, expected {options.steps}; see {folder}")
    peer_ms, yoke_ms = peer.median_ms(options.warmup), yoke.median_ms(options.warmup)
    pair = {
        "peer_ms": peer_ms, "yoke_ms": yoke_ms, "ratio": peer_ms / yoke_ms, "load": load,
        "peer_mib": peer.memory / 2**20, "yoke_mib": yoke.memory / 2**20,
        "loss_difference": largest_difference(yoke.losses, peer.losses, LOSS_STEPS),
        "norm_difference": largest_difference(yoke.norms, peer.norms, LOSS_STEPS),
    }
    if options.one_rank:
        alone = argparse.Namespace(**{**vars(options), "strategy": "single", "ranks": 1})
        (folder / "one").mkdir()
        pair["one_rank_ms"] = run_yoke(alone, data, folder / "one").median_ms(options.warmup)
        pair["one_rank_ratio"] = pair["one_rank_ms"] / yoke_ms
    if options.ranks == 1:
        pair["products_ms"] = products_ms(options)
        pair["libtorch_products_ms"] = products_ms(options, "--libtorch")
        pair["products_share"] = pair["products_ms"] / yoke_ms
    return pair, yoke, peer


def products_ms(options, *flags):
    """Returns how long the matrix products of a step take if nothing else is computed. flags: of bench/products."""
    model, global_batch, seq_len = WORKLOADS[options.workload]
    dims = dict(line.split(" = ") for line in MODELS[model].splitlines())
    program = options.yoke.resolve().parent.parent / "bench/products"
    command = [program, *flags, *(dims[key] for key in ("dim", "layers", "heads", "kv_heads", "ffn_dim", "vocab")),
               str(global_batch * seq_len)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def torch_version():
    command = [peers_python(), "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def report(options, pairs):
    column = {key: [pair[key] for pair in pairs if key in pair] for pair in pairs for key in pair}
    tokens = 1e3 * WORKLOADS[options.workload][1] * WORKLOADS[options.workload][2]
    other = STRATEGIES[options.strategy][1]
    print(f"\n{options.workload} {options.strategy}, {options.ranks} rank(s), {len(pairs)} pairs: median (range)")
    print("| program | step, ms | tokens/s | resident per rank, MiB |\n|---|---|---|---|")
    for name, key in ((f"{other} {options.strategy}", "peer"), (f"yoke {options.backend}", "yoke")):
        ms, mib = column[key + "_ms"], column[key + "_mib"]
        print(f"| {name} | {spread(ms)} | {tokens / statistics.median(ms):.0f} | {statistics.median(mib):.0f} |")
    print(f"ratio of step rates, yoke / {other}: {spread(column['ratio'])}")
    if options.one_rank:
        print(f"one rank of yoke takes {spread(column['one_rank_ms'])} ms, "
              f"{spread(column['one_rank_ratio'])} times as long as {options.ranks} ranks")
    if options.ranks == 1:
        print(f"the products alone take {spread(column['products_ms'])} ms, with LibTorch's kernels "
              f"{spread(column['libtorch_products_ms'])} ms: yoke reaches {spread(column['products_share'])} "
              "of the former rate")
    worst = max(column["loss_difference"])
    equal = all(is_equal(options, pair) for pair in pairs)
    verdict = "NOT EQUAL" if not equal else "equal" if worst <= LOSS_BOUND else "equal up to rounding"
    print(f"losses, {LOSS_STEPS} steps: {verdict}, largest relative difference {worst:.2g} (bound {LOSS_BOUND:g}); "
          f"gradient norms {max(column['norm_difference']):.2g}")
    if worst > LOSS_BOUND:
        print(f"in fp64: largest relative difference {max(column['fp64_difference']):.2g} (bound {fp64_bound(options):g}); "
              f"distance of fp32 from fp64: {max(column['yoke_from_fp64']):.2g} (yoke), "
              f"{max(column['peer_from_fp64']):.2g} ({other})")
    return equal


def compare(options, folder):
    data = options.data
    if data is None:
        data = folder / "text.txt"
        make_text(data)
    elif not data.exists():
        raise SystemExit(f"--data {data} does not exist; leave it out to use a made-up text")
    pairs, in_fp64 = [], {}
    for n in range(1, options.pairs + 1):
        pair, yoke, peer = run_pair(options, data.resolve(), folder / f"pair{n}")
        if pair["loss_difference"] > LOSS_BOUND and not in_fp64:
            # Runs repeat bit for bit, so one comparison serves all pairs.
            in_fp64 = compare_fp64(options, data.resolve(), folder / "fp64", yoke, peer)
        pair.update(in_fp64)
        pairs.append(pair)
        print("pair {}: peer {peer_ms:.2f} ms {peer_mib:.0f} MiB, yoke {yoke_ms:.2f} ms {yoke_mib:.0f} MiB, "
              "ratio {ratio:.2f}, loss difference {loss_difference:.2g}, load {load:.1f}".format(n, **pair), flush=True)
    return pairs


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    about = f"{machine()}, torch {torch_version()}"
    print(about, flush=True)
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as folder:
        pairs = compare(options, pathlib.Path(folder))
    equal = report(options, pairs)
    if options.json_file:
        choice = {"workload": options.workload, "strategy": options.strategy, "yoke_args": options.yoke_args}
        options.json_file.write_text(json.dumps({"machine": about, **choice, "pairs": pairs}, indent=1) + "\n")
    return 0 if equal else EXIT_GATE


if __name__ == "__main__":
    sys.exit(main())
