#!/usr/bin/env python3
"""Runs one step on a sequence of 131072 tokens that two ranks share (cp_degree = 2), and prints its time and the memory
of a rank. There is no target value: the program shows that such a step runs, and its cost."""
import argparse
import json
import pathlib
import sys
import tempfile

import harness


def last_step(args, folder):
    """Runs the job and returns the metrics of its last step."""
    run = pathlib.Path(folder) / "run"
    command = [args.yoke, "train", harness.REPOSITORY / "configs/novels.toml", f"run.dir={run}", "--nproc", 2,
               "cp_degree=2", f"data.seq_len={args.seq_len}", "data.order=sequential", "train.global_batch=1",
               f"train.steps={args.steps}", "train.warmup=0", "eval.every=0", "checkpoint.every=0", "metrics.every=1",
               f"model.dim={args.dim}", "model.layers=2", f"model.heads={args.heads}", f"model.kv_heads={args.heads}",
               f"model.ffn_dim={2 * args.dim}", "precision.param=fp32", "precision.reduce=fp32", "comm.timeout=3600",
               f"ptd.cp_attention={args.attention}", *args.yoke_args]
    harness.run_program("yoke", command, run.with_suffix(".log"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "grad_norm" in line][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yoke", default=harness.DEFAULT_YOKE, type=pathlib.Path)
    parser.add_argument("--seq-len", default=131072, type=int)
    parser.add_argument("--dim", default=32, type=int)
    parser.add_argument("--heads", default=1, type=int)
    parser.add_argument("--steps", default=1, type=int)
    parser.add_argument("--attention", default="ring", choices=["ring", "all_gather"])
    parser.add_argument("yoke_args", nargs="*", help="further key=value for yoke train")
    args = parser.parse_args()
    harness.require_yoke(args.yoke)
    with tempfile.TemporaryDirectory() as folder:
        got = last_step(args, folder)
    moved = got["comm"].get("cp", {}).get("bytes", 0)
    print(f"{args.seq_len} tokens, 2 layers of {args.dim}, cp 2, {args.attention}: {got['step_seconds']:.1f} s a step, "
          f"{got['memory'] / 2**20:.0f} MiB a rank, {moved / 2**20:.0f} MiB over cp, loss {got['loss']:.4f}")


if __name__ == "__main__":
    sys.exit(main())
