#!/usr/bin/env python3
"""Starts a run of several ranks many times, kills a random rank at a random moment, and checks what is left.

usage: killed_ranks.py [--starts N] [--ranks N] [--seed S]
The moments are spread over the whole life of a run: start, rendezvous, steps, checkpoints and end. Prints how often each
exit code came, and exits with 1 if a start leaves an object in /dev/shm or a process, or ends with another code than 0
(it was over before) or 5 (a rank was lost).
"""
import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(os.environ["YOKE_BIN"])
RUN_FILE = """
parallel_backend = "ptd"
device = "cpu"
model.preset = "tiny"
model.layers = 1
data.path = "text.txt"
data.seq_len = 32
train.steps = 40
train.global_batch = 12
checkpoint.every = 20
metrics.tensorboard = false
comm.transport = "shm"
"""
HANG_SECONDS = 600
EXPECTED = (0, 5)


def shared_objects():
    """Returns the names of the objects of shared memory, which are files. Other tests make folders there."""
    return {entry.name for entry in os.scandir("/dev/shm") if not entry.is_dir()}


def processes_of(root):
    """Returns {pid: command} of the processes that name a path below the folder."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if entry.name.isdigit() and str(root) in command:
            found[int(entry.name)] = command
    return found


def ranks_of(root):
    """Returns the ranks of a run. Its launcher is none of them, also as a fork that has not started another program yet,
    nor is the process that plans the run before there are ranks."""
    return [pid for pid, words in processes_of(root).items() if "yoke-worker" in words and "--plan" not in words]


def run(root, ranks, number, delay):
    """Runs the program, and kills a random rank `delay` seconds after the first one has started; None = never.

    Returns the exit code, the output, and the seconds from the start of the first rank to the end.
    """
    command = [BIN / "yoke", "train", root / "run.toml", "--nproc", str(ranks), f"run.dir={root}/run{number}"]
    with open(root / "output.txt", "w+") as output:
        program = subprocess.Popen(command, cwd=root, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        while program.poll() is None and not ranks_of(root):
            time.sleep(0.005)
        begin = time.monotonic()
        if delay is not None:
            time.sleep(delay)
            alive = ranks_of(root)
            try:
                if alive:
                    os.kill(random.choice(alive), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended
        code = program.wait(HANG_SECONDS)
        output.seek(0)
        return code, output.read(), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    before, codes, faults = shared_objects(), collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="yoke-killed-") as folder:
        root = pathlib.Path(folder)
        (root / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
        (root / "run.toml").write_text(RUN_FILE)
        code, output, length = run(root, options.ranks, 0, None)
        if code != 0:
            sys.exit(f"an undisturbed run ends with {code}:\n{output}")
        for number in range(1, options.starts + 1):
            delay = random.uniform(0, length)
            code, output, _ = run(root, options.ranks, number, delay)
            codes[code] += 1
            left = processes_of(root)
            new = shared_objects() - before
            if code not in EXPECTED or left or new:
                faults += 1
                print(f"start {number}, killed after {delay:.3f} s of {length:.3f} s: exit code {code}, "
                      f"left processes {left}, objects {new}\n{output}", flush=True)
            before |= new
    print(f"{options.starts} starts of {options.ranks} ranks, exit codes {dict(codes)}, {faults} faults")
    return 1 if faults or set(codes) == {0} else 0


if __name__ == "__main__":
    sys.exit(main())
