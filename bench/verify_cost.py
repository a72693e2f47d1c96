#!/usr/bin/env python3
"""Measures the cost of the checks of a run (verify.every), as a share of the run time with the default of 100 steps.

    bench/verify_cost.py [--yoke build/release/bin/yoke] [--nproc 2] [--steps 400] [key=value ...]

One run checks every fourth step. A check affects the intervals of two steps. Its cost is the time of these two
intervals minus that of the next two, so a busy machine slows both about equally. With dp_degree every rank holds, and
hashes, all parameters; with dp_shards no parameter is held twice.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from harness import DEFAULT_YOKE, REPOSITORY, machine, make_text, require_yoke, run_program, spread

PERIOD, DEFAULT_EVERY = 4, 100
WARMUP = 5  # periods


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("yoke_args", nargs="*", help="further key=value for yoke train")
    return parser.parse_args()


def step_seconds(options, folder, layout):
    """Runs the job and returns {step: seconds}, from step 1."""
    run = folder / layout.partition("=")[0]
    command = [options.yoke, "train", REPOSITORY / "configs/parity.toml", "--nproc", options.nproc, layout,
               f"data.path={folder / 'text.txt'}", f"run.dir={run}", f"train.steps={options.steps}", "metrics.every=1",
               "metrics.tensorboard=false", f"verify.every={PERIOD}", *options.yoke_args]
    run_program("yoke", command, folder / "yoke.log")
    with open(run / "metrics.jsonl", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["step"]: record["step_seconds"] for record in records}


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as name:
        folder = pathlib.Path(name)
        make_text(folder / "text.txt")
        for layout in (f"dp_degree={options.nproc}", f"dp_shards={options.nproc}"):
            seconds = step_seconds(options, folder, layout)
            costs, plain = [], []
            # The first half of a check is in the interval of the checked step, the exchange in the next one.
            for step in range(PERIOD * WARMUP, options.steps - 2, PERIOD):
                costs.append(seconds[step] + seconds[step + 1] - seconds[step + 2] - seconds[step + 3])
                plain += [seconds[step + 2], seconds[step + 3]]
            share = statistics.median(costs) / (DEFAULT_EVERY * statistics.median(plain))
            print(f"{layout}: a check {1e3 * statistics.median(costs):.2f} ms, median of {len(costs)}; a step "
                  f"{spread([1e3 * s for s in plain])} ms; share at verify.every={DEFAULT_EVERY}: {share:.3%}")
    print("target: 0.5%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
