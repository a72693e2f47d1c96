#!/usr/bin/env python3
"""Measures what the optimizer state in files costs in time and saves in memory, with deepspeed_stub.

    bench/offload.py [--yoke build/release/bin/yoke] [--folder /tmp] [--nproc 2] [--pairs 3] [--steps 6]

Runs the same job with and without `offload_optimizer_device=nvme`, in turns, and requires equal losses. The files are
read and written through the page cache, which is warm after the first step. Two jobs are measured: steps of few tokens,
in which the update takes much of the time, and steps of as many tokens as a rank of a real run computes. The memory is
the peak of the rank that needs the most.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from harness import DEFAULT_YOKE, REPOSITORY, machine, make_text, require_yoke, run_program, spread

# 28 million parameters, so that the state is large beside everything else in the process.
MODEL = ["model.preset=", "model.dim=512", "model.layers=8", "model.heads=8", "model.ffn_dim=1536", "model.vocab=1024"]
JOBS = {"2 x 64 tokens for each rank": (2, 64), "8 x 256 tokens for each rank": (8, 256)}
BYTES_OF_MOMENTS = 2 * 4  # for each element, in fp32
WARMUP = 2  # steps


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()),
                        help="where the files are; not in memory (default: %(default)s)")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("yoke_args", nargs="*", help="further key=value for yoke train")
    return parser.parse_args()


def run(options, folder, name, more):
    """Runs a job and returns its records."""
    directory = folder / name
    command = [options.yoke, "train", REPOSITORY / "configs/parity.toml", "--nproc", options.nproc, *MODEL,
               "parallel_backend=deepspeed_stub", "deepspeed_stub.zero_stage=1", f"data.path={folder / 'text.txt'}",
               f"run.dir={directory}", f"train.steps={options.steps}", "metrics.every=1", "metrics.tensorboard=false",
               "verify.every=0", *more, *options.yoke_args]
    run_program("yoke", command, folder / f"{name}.log")
    with open(directory / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def compare(options, folder, job, sequences, tokens):
    batch = [f"train.global_batch={sequences * options.nproc}", f"data.seq_len={tokens}"]
    files = ["deepspeed_stub.offload_optimizer_device=nvme", f"deepspeed_stub.offload_optimizer_nvme_path={folder}"]
    seconds, peaks = {"memory": [], "files": []}, {"memory": [], "files": []}
    for pair in range(options.pairs):
        losses = {}
        for where, more in (("memory", []), ("files", files)):
            records = run(options, folder, f"{where}-{sequences}-{pair}", batch + more)
            seconds[where] += [record["step_seconds"] for record in records[WARMUP:]]
            peaks[where].append(records[-1]["memory"])
            losses[where] = [record["loss"] for record in records]
        if losses["memory"] != losses["files"]:
            raise SystemExit(f"{job}: the losses differ: {losses}")
    ratio = statistics.median(seconds["files"]) / statistics.median(seconds["memory"])
    saved = statistics.median(peaks["memory"]) - statistics.median(peaks["files"])
    print(f"{job}, {options.nproc} ranks: state in memory {spread(seconds['memory'], '.3f')} s a step, in files "
          f"{spread(seconds['files'], '.3f')} s, ratio {ratio:.2f}; losses are equal bit for bit")
    return saved


def main():
    options = parse_arguments()
    require_yoke(options.yoke)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="yoke-bench-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        make_text(folder / "text.txt")
        for job, (sequences, tokens) in JOBS.items():
            saved = compare(options, folder, job, sequences, tokens)
            log = (folder / f"memory-{sequences}-0.log").read_text(encoding="utf-8")
            elements = int(log.split(" gradients in ")[0].rpartition(" ")[2])
            state = BYTES_OF_MOMENTS * elements / options.nproc
            print(f"  the peak of a rank is {saved / 2**20:.0f} MiB lower, its moments are {state / 2**20:.0f} MiB: "
                  f"{saved / state:.1%}")


if __name__ == "__main__":
    sys.exit(main())
