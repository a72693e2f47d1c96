#!/usr/bin/env python3
"""Counts false alarms of `yoke compare`: correct cases are compared once for each of many seeds.

    bench/clean_repeats.py [--yoke build/release/bin/yoke] [--repeats 20] [key=value ...]

The seeds differ because two equal runs are bit-identical. Every case must reach its level: L1 in fp32, L2 in bf16.
Exits with 1 after a false alarm.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from harness import DEFAULT_YOKE, machine, make_text, require_yoke

RUN_FILE = """\
parallel_backend = "ptd"
device = "cpu"
[model]
preset = "tiny"
layers = 2
[data]
seq_len = 32
[train]
steps = 10
global_batch = 4
lr = 3e-4
warmup = 2
"""

CASES = {
    "fsdp": "dp_shards=2", "ddp": "dp_degree=2", "tp": "tp_degree=2", "cp": "cp_degree=2",
    "zero2": "parallel_backend=deepspeed_stub,deepspeed_stub.zero_stage=2",
    "accelerate": "parallel_backend=accelerate_compat", "serial": "parallel_backend=serial",
    "fsdp-bf16": "dp_shards=2,precision.param=bf16", "ddp-bf16": "dp_degree=2,precision.param=bf16",
    "tp-bf16": "tp_degree=2,precision.param=bf16",
    "zero3-bf16": "parallel_backend=deepspeed_stub,deepspeed_stub.zero_stage=3,precision.param=bf16",
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("yoke_args", nargs="*", help="further key=value for yoke compare")
    return parser.parse_args()


def compare(options, folder, seed):
    """Returns (exit code, cases, stderr) of one comparison."""
    out = folder / f"seed-{seed}.json"
    command = [options.yoke, "compare", folder / "run.toml", f"seed={seed}", f"data.path={folder / 'text.txt'}",
               f"run.dir={folder / f'seed-{seed}'}", *options.yoke_args, "--nproc", 2, "--repeats", 1, "--json-file", out]
    for name, overrides in CASES.items():
        command += ["--case", f"{name}:{overrides}"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if not out.exists():
        raise SystemExit(f"yoke compare ended with {result.returncode}:\n{result.stderr}")
    return result.returncode, json.loads(out.read_text())["cases"], result.stderr


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    print(machine())
    alarms = 0
    worst = collections.defaultdict(float)
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as name:
        folder = pathlib.Path(name)
        make_text(folder / "text.txt")
        (folder / "run.toml").write_text(RUN_FILE, encoding="utf-8")
        for seed in range(1, options.repeats + 1):
            code, cases, said = compare(options, folder, seed)
            alarms += code != 0
            if code != 0:
                print(f"seed {seed}: exit code {code}\n{said}")
            for case in cases:
                if case["passed"]:
                    worst[case["name"], case["due"]] = max(worst[case["name"], case["due"]], case["verdict"]["loss"])
    for (case, level), loss in worst.items():
        print(f"{case}: {level}, largest relative difference of a loss {loss:.1e}")
    print(f"{options.repeats} comparisons of {len(CASES)} cases, {alarms} with a false alarm")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
