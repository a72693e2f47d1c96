#!/usr/bin/env python3
"""Starts and ends runs of two ranks repeatedly, and kills some of them on the way. No run may crash, leave a process
or a rendezvous folder behind, or end with an exit code that is not documented.
Usage: starts.py [COUNT]   (YOKE_BIN: folder of yoke; default build/release/bin)"""
import collections
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
YOKE = pathlib.Path(os.environ.get("YOKE_BIN", REPOSITORY / "build/release/bin")) / "yoke"
RUN = """parallel_backend = "serial"
model.preset = "tiny"
model.layers = 1
data.path = "text"
data.seq_len = 8
train.steps = 2
train.global_batch = 2
metrics.every = 1
"""
# Maps what is done to a run to the exit codes that are then allowed. 0: the run had already ended. -signal: the signal
# killed the launcher, which may not have started its ranks yet.
CASES = {
    "nothing": {0},
    "kill a rank": {5, 0},
    "kill the launcher": {-signal.SIGKILL, 0},
    "interrupt": {130, -signal.SIGINT, 0},
    "terminate twice": {75, 143, -signal.SIGTERM, 0},
}


def processes_in(folder):
    """Returns the live processes whose working directory is the folder."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder) and "Z" not in (entry / "stat").read_text().split()[2]:
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def children(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def strike(case, run, rng):
    """Applies a case to a run that has just started."""
    if case == "nothing":
        return
    if case == "kill a rank":
        while len(ranks := children(run.pid)) < 2 and run.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.8))
        if ranks:
            try:
                os.kill(rng.choice(ranks), signal.SIGKILL)
            except ProcessLookupError:
                pass
        return
    time.sleep(rng.uniform(0.3, 1.2))
    signals = {"kill the launcher": [signal.SIGKILL], "interrupt": [signal.SIGINT],
               "terminate twice": [signal.SIGTERM, signal.SIGTERM]}[case]
    for number in signals:
        run.send_signal(number)


def one_start(folder, case, rng):
    """Starts one run and returns what went wrong, or None."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    run = subprocess.Popen([YOKE, "train", "run.toml", "--nproc", "2"], cwd=folder, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True,
                           env={**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"})
    strike(case, run, rng)
    try:
        text, _ = run.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        run.kill()
        return f"it did not end within 300 s; processes: {processes_in(folder)}"
    for _ in range(6000):
        if not (left := processes_in(folder)):
            break
        time.sleep(0.01)
    if left:
        return f"processes {left} were left"
    if run.returncode not in CASES[case]:
        return f"exit code {run.returncode}, not one of {sorted(CASES[case])}:\n{text}"
    if case != "kill the launcher" and list((folder / "tmp").iterdir()):
        return f"a rendezvous folder was left: {list((folder / 'tmp').iterdir())}"
    return None


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    folder = pathlib.Path(tempfile.mkdtemp(prefix="yoke-starts-")).resolve()
    (folder / "tmp").mkdir()
    (folder / "run.toml").write_text(RUN)
    (folder / "text").write_text("the ox pulls the cart; " * 40)
    rng = random.Random(1)
    outcomes, faults = collections.Counter(), 0
    begin = time.monotonic()
    for i in range(count):
        # Every second run is left undisturbed.
        case = list(CASES)[1 + i // 2 % (len(CASES) - 1)] if i % 2 else "nothing"
        fault = one_start(folder, case, rng)
        outcomes[case] += 1
        if fault:
            faults += 1
            print(f"start {i} ({case}): {fault}")
    if faults == 0:
        shutil.rmtree(folder)
    print(f"{count} starts in {time.monotonic() - begin:.0f} s: {dict(outcomes)}; {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
