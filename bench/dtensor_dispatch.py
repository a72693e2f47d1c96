#!/usr/bin/env python3
"""Compares the overhead of operators on distributed tensors, relative to local ones, with that of Python's DTensor.

    bench/dtensor_dispatch.py --pairs 5

Runs build/release/bench/dtensor_dispatch and bench/peers/dtensor_dispatch.py in turn (A B A B ...). Prints, for each
operator, the medians (ranges) of both and of the ratio of the pairs.
"""
import argparse
import pathlib
import subprocess

from harness import REPOSITORY, machine, peers_python, spread

PROGRAM = REPOSITORY / "build/release/bench/dtensor_dispatch"


def overheads(command):
    """Returns {(operator, "grad" or "nograd"): extra ns relative to the local operator}, in the order of the output."""
    lines = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = (line.split() for line in lines)
    return {(name, mode): float(distributed) - float(local) for name, mode, local, distributed in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    options = parser.parse_args()
    peer = [peers_python(), REPOSITORY / "bench/peers/dtensor_dispatch.py"]
    print(machine(), flush=True)
    pairs = [(overheads([options.program]), overheads(peer)) for _ in range(options.pairs)]
    print("| operator | | ours, ns over local | Python's, ns over local | ratio |\n|---|---|---|---|---|")
    for key in pairs[0][0]:
        ours, theirs = zip(*((a[key], b[key]) for a, b in pairs))
        ratios = [b / a for a, b in zip(ours, theirs)]
        print(f"| {key[0]} | {key[1]} | {spread(ours, '.0f')} | {spread(theirs, '.0f')} | {spread(ratios, '.1f')} |")


if __name__ == "__main__":
    main()
