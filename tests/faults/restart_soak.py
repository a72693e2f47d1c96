#!/usr/bin/env python3
"""Kills random ranks of a run that `yoke train --restarts` starts again, and compares its losses with those of an
undisturbed run.

usage: restart_soak.py [--kills N] [--seed S]
Prints the times from a kill to the next step that is trained, and exits with 1 if a loss differs in any bit.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["YOKE_BIN"])
RUN_FILE = """
parallel_backend = "serial"
run.dir = "{run_dir}"
model.family = "llama"
model.preset = "tiny"
model.layers = 1
data.path = "text.txt"
data.seq_len = 32
train.steps = {steps}
train.global_batch = 4
checkpoint.every = 5
checkpoint.keep = 2
metrics.every = 1
metrics.tensorboard = false
"""
HANG_SECONDS = 600


def losses(run_dir):
    """Returns the loss of each step as it is written, bit for bit."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def last_step(run_dir):
    """Returns the last step in metrics.jsonl, or 0."""
    try:
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        found = re.match(r'{"step":(\d+),', line)
        if found:
            return int(found[1])
    return 0


def start(root, run_dir, steps, *flags):
    config = root / f"{run_dir.name}.toml"
    config.write_text(RUN_FILE.format(run_dir=run_dir, steps=steps))
    return subprocess.Popen([BIN / "yoke", "train", config, "--nproc", "2", *flags], cwd=root, start_new_session=True,
                            stdout=subprocess.DEVNULL, stderr=(root / f"{run_dir.name}.err").open("w"), text=True,
                            env=dict(os.environ, OMP_NUM_THREADS="1"))


def ranks_of(run_dir):
    """Returns the process numbers of the ranks of a run."""
    found = subprocess.run(["pgrep", "-f", f"yoke-worker [-]-rank .*{run_dir}"], stdout=subprocess.PIPE, text=True)
    return [int(pid) for pid in found.stdout.split()]


def wait_for_new_step(run, run_dir, old_ranks, since):
    """Waits until new ranks have written a step; returns the time from `since`, or None if the run has ended."""
    metrics = run_dir / "metrics.jsonl"
    until = time.monotonic() + HANG_SECONDS
    started, size = False, 0
    while run.poll() is None:
        if not started:
            ranks = ranks_of(run_dir)
            started = len(ranks) == 2 and not set(ranks) & set(old_ranks)
            size = metrics.stat().st_size if metrics.exists() else 0
            continue
        now = metrics.stat().st_size if metrics.exists() else 0
        if now > size:
            return time.monotonic() - since
        size = min(size, now)  # a resumed run first removes the steps after its checkpoint
        if time.monotonic() > until:
            os.killpg(run.pid, signal.SIGKILL)
            sys.exit("the run hangs")
        time.sleep(0.005)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    steps = max(100, 10 * options.kills)
    with tempfile.TemporaryDirectory(prefix="yoke-soak-") as name:
        root = pathlib.Path(name)
        words = "".join(f"the cat {i * i % 97} sat; " for i in range(1500))
        (root / "text.txt").write_text(words)
        calm = start(root, root / "calm", steps)
        if calm.wait(HANG_SECONDS) != 0:
            sys.exit("the undisturbed run failed: " + (root / "calm.err").read_text())

        run_dir = root / "killed"
        run = start(root, run_dir, steps, "--restarts", "100000")
        times, kills = [], 0
        while run.poll() is None and kills < options.kills:
            # Ten steps for each kill on average, so that kills are spread over the whole run.
            goal = min(steps - 5, kills * steps // options.kills + rng.randrange(5, 15))
            while run.poll() is None and last_step(run_dir) < goal:
                time.sleep(0.005)
            pids = ranks_of(run_dir)
            if len(pids) < 2:
                continue
            os.kill(rng.choice(pids), signal.SIGKILL)
            kills += 1
            again = wait_for_new_step(run, run_dir, pids, time.monotonic())
            if again is not None:
                times.append(again)
        code = run.wait(HANG_SECONDS)
        text = (root / "killed.err").read_text()
        wrong = [f"exit code {code}: {text[-500:]}"] if code != 0 else []
        wrong += [f"step {s}" for s, loss in losses(root / "calm").items() if losses(run_dir).get(s) != loss][:5]
        times.sort()
        print(f"{kills} kills over {steps} steps; from a kill to the next trained step: median "
              f"{statistics.median(times):.2f} s, largest {times[-1]:.2f} s; "
              f"{'losses are equal bit for bit' if not wrong else 'WRONG: ' + '; '.join(wrong)}")
        return 1 if wrong or kills < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
