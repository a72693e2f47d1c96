#!/usr/bin/env python3
"""Measures the overhead of the host per step: `yoke train` with a backend that does nothing.

    bench/host_overhead.py build/release/bench/nothing.so [--yoke build/release/bin/yoke]

Runs the same job with few and with many steps, in turn. The difference, divided by the extra steps, is the cost of a
step that is neither logged, evaluated nor saved: choosing and reading the batch, the call, bookkeeping, and the
agreement on stopping. Start and end of the program cancel out. The batch has 8 sequences of 64 tokens.
"""
import argparse
import pathlib
import sys
import tempfile
import time

from harness import DEFAULT_YOKE, machine, make_text, require_yoke, run_program, spread

NEVER = 10**9

RUN_FILE = """\
device = "cpu"
[model]
preset = "tiny"
[data]
seq_len = 64
order = "{order}"
[train]
global_batch = 8
[verify]
every = 0  # there is no model to check
[metrics]
every = {never}
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", type=pathlib.Path, help="nothing.so of the build")
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, nargs=2, default=[1000, 31000], metavar=("SHORT", "LONG"))
    parser.add_argument("--order", choices=("shuffled", "sequential"), default="shuffled")
    return parser.parse_args()


def seconds_of(options, folder, ranks, steps):
    run_dir = folder / f"run-{ranks}-{steps}-{time.monotonic_ns()}"
    command = [
        options.yoke, "train", folder / "run.toml", "--nproc", ranks, f"dp_degree={ranks}", f"run.dir={run_dir}",
        f"parallel_backend={options.backend.resolve()}", f"data.path={folder / 'text.txt'}", f"train.steps={steps}"]
    begin = time.perf_counter()
    run_program("yoke", command, folder / "yoke.log")
    return time.perf_counter() - begin


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    if not options.backend.exists():
        raise SystemExit(f"{options.backend} does not exist; build it: cmake --build --preset release --target nothing")
    print(machine())
    with tempfile.TemporaryDirectory(prefix="yoke-bench-") as name:
        folder = pathlib.Path(name)
        make_text(folder / "text.txt")
        (folder / "run.toml").write_text(RUN_FILE.format(order=options.order, never=NEVER), encoding="utf-8")
        short, long = options.steps
        for ranks in (1, 2):
            costs = []
            for _ in range(options.pairs):
                of_short = seconds_of(options, folder, ranks, short)
                costs.append(1e6 * (seconds_of(options, folder, ranks, long) - of_short) / (long - short))
            print(f"{ranks} rank(s): {spread(costs)} us per step, {options.order} order")
    print("target: 20 us per step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
