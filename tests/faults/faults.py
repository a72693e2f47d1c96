#!/usr/bin/env python3
"""Attacks the files of small runs and checks that no checkpoint that was reported as saved is lost.

  power    a power cut at any moment, which loses, partly loses or zeroes all that was not synced
  kill     SIGKILL before any file operation
  fail     any file operation fails, with any of several errors
  signals  the same signal twice, 2 to 50 ms apart

A case passes if the newest checkpoint that verifies is not older than the last one reported as saved, and a run that
resumes automatically ends with the losses of an undisturbed run, bit for bit. Prints one line for each failure and one
summary line for each attack; exits with 1 if anything failed.

Variables: YOKE_BIN (folder of yoke), YOKE_FAULT_RECORDER (the library made of fault_recorder.c and file_calls.c)."""
import argparse
import concurrent.futures
import errno
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import crash_states

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("YOKE_BIN", REPOSITORY / "build/release/bin")).resolve()
RECORDER = pathlib.Path(os.environ.get("YOKE_FAULT_RECORDER", BIN.parent / "lib/libyoke_fault_recorder.so")).resolve()
STEPS = 4
HANG_SECONDS = 300
RUN = f"""parallel_backend = "BACKEND"
device = "cpu"
seed = 1
run.dir = "runs/attacked"
model.preset = "tiny"
model.layers = 1
data.path = "TEXT"
data.seq_len = 16
train.steps = {STEPS}
train.global_batch = 2
eval.every = 0
metrics.every = 1
checkpoint.every = 1
checkpoint.keep = 2
"""
# Errors that a disk or a kernel may report, by kind of operation.
ERRORS = {"o": [errno.EACCES, errno.EMFILE, errno.EINTR], "c": [errno.ENOSPC, errno.EACCES, errno.EINTR],
          "m": [errno.ENOSPC, errno.EACCES], "r": [errno.EIO, errno.ENOSPC, errno.EINTR], "x": [errno.EIO],
          "u": [errno.EIO, errno.EINTR], "w": [errno.EIO, errno.ENOSPC, errno.EINTR], "t": [errno.EIO],
          "a": [errno.ENOSPC, errno.EINTR], "s": [errno.EIO, errno.EINTR], "g": [errno.EIO, errno.EINTR],
          "l": [errno.EINTR, errno.ENOLCK], "e": [errno.EIO, errno.EINTR]}


class Bench:
    """The folder of the attacked runs, and the losses of an undisturbed run."""

    def __init__(self, folder, ranks, backend):
        self.folder = pathlib.Path(folder)
        self.ranks = ranks
        self.config = self.folder / "run.toml"
        text = self.folder / "text"
        text.write_bytes(bytes(97 + i * i % 26 for i in range(4000)))
        self.config.write_text(RUN.replace("TEXT", str(text)).replace("BACKEND", backend))
        self.lock = threading.Lock()
        self.resumed = {}  # contents of checkpoints/ -> what is wrong after a resume, or None
        self.number = 0
        undisturbed = self.new_root()
        done = self.train(undisturbed, "checkpoint.resume=never")
        if done.returncode != 0:
            sys.exit(f"faults.py: the undisturbed run failed: {done.stdout}{done.stderr}")
        self.losses = losses_of(undisturbed)
        assert sorted(self.losses) == list(range(1, STEPS + 1)), self.losses

    def new_root(self):
        with self.lock:
            self.number += 1
            root = self.folder / f"root-{self.number}"
        root.mkdir()
        return root

    def command(self, *overrides):
        ranks = ["--nproc", str(self.ranks)] if self.ranks > 1 else []
        return [BIN / "yoke", "train", self.config, *ranks, *overrides]

    def train(self, root, *overrides, faults=None):
        """Runs yoke train in `root`. faults: variables of the recorder, without the prefix YOKE_FAULTS_."""
        environment = dict(os.environ, OMP_NUM_THREADS="1", HOME=str(self.folder))
        if faults is not None:
            shared = root.with_suffix(".shared")
            shared.write_bytes(bytes(4096))
            environment |= {"LD_PRELOAD": str(RECORDER), "YOKE_FAULTS_ROOT": str(root),
                            "YOKE_FAULTS_SHARED": str(shared)}
            environment |= {"YOKE_FAULTS_" + name: str(value) for name, value in faults.items()}
        return subprocess.run(self.command(*overrides), cwd=root, env=environment, timeout=HANG_SECONDS,
                              capture_output=True, text=True)

    def record(self):
        """Runs in a fresh folder to the end, and returns the folder and the records."""
        root = self.new_root()
        log = root.with_suffix(".records")
        log.touch()
        done = self.train(root, faults={"RECORD": log})
        if done.returncode != 0:
            sys.exit(f"faults.py: the recorded run failed: {done.stdout}{done.stderr}")
        return root, crash_states.read_records(log)

    def wrong_after(self, root, reported):
        """Returns what is wrong with the run folder below `root`. reported: last step reported as saved, 0 = none."""
        checkpoints = root / "runs/attacked/checkpoints"
        steps = {}
        for entry in sorted(checkpoints.glob("step-*")):
            verify = subprocess.run([BIN / "yoke", "checkpoint", "verify", entry], capture_output=True, text=True,
                                    timeout=HANG_SECONDS)
            steps[int(entry.name[5:])] = verify.returncode == 0
        newest = max((step for step, whole in steps.items() if whole), default=0)
        if newest < reported:
            return f"step {reported} was reported as saved, the newest that verifies is {newest} of {sorted(steps)}"
        if newest == STEPS:
            return None
        digest = digest_of(root)
        with self.lock:
            if digest in self.resumed:
                return self.resumed[digest]
        wrong = self._wrong_after_resume(root, newest)
        with self.lock:
            self.resumed[digest] = wrong
        return wrong

    def _wrong_after_resume(self, root, newest):
        done = self.train(root, "checkpoint.resume=auto")
        if done.returncode != 0:
            return f"resume from step {newest}: exit {done.returncode}: {done.stderr.strip()[-300:]}"
        folders = sorted((root / "runs").glob("attacked*"), key=lambda p: p.stat().st_mtime)
        for folder in reversed(folders):
            losses = losses_in(folder)
            if losses.get(STEPS) is not None:
                expected = {s: self.losses[s] for s in range(newest + 1, STEPS + 1)}
                found = {s: losses.get(s) for s in expected}
                return None if found == expected else f"resume from {newest}: losses {found}, expected {expected}"
        return f"resume from step {newest}: no losses of step {STEPS}"


def losses_of(root):
    return losses_in(root / "runs/attacked")


def losses_in(folder):
    losses = {}
    try:
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a truncated last line
            if "loss" in row:
                losses[row["step"]] = row["loss"]
    except OSError:
        pass
    return losses


def digest_of(root):
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "/logs/" not in str(path):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
        elif path.is_dir():
            digest.update(str(path.relative_to(root)).encode() + b"/\0")
    return digest.hexdigest()


def reported_step(text):
    return max((int(n) for n in re.findall(r"saved \S*/step-(\d+)", text)), default=0)


class Tally:
    """Counts the cases of one attack and prints its failures."""

    def __init__(self, name):
        self.name, self.cases, self.failed, self.lock = name, 0, 0, threading.Lock()
        self.begin = time.monotonic()

    def add(self, case, wrong):
        with self.lock:
            self.cases += 1
            if wrong is not None:
                self.failed += 1
                print(f"FAILED {self.name}, {case}: {wrong}", flush=True)

    def close(self, extra=""):
        seconds = time.monotonic() - self.begin
        print(f"{self.name}: {self.cases} cases, {self.cases - self.failed} pass, {self.failed} fail{extra}; "
              f"{seconds:.0f} s", flush=True)
        return self.failed == 0


def sample(cases, fraction, rng):
    cases = list(cases)
    if fraction >= 1:
        return cases
    return [cases[i] for i in sorted(rng.sample(range(len(cases)), max(1, round(len(cases) * fraction))))]


def each(jobs, cases, run):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(run, cases):
            pass


def attack_power(bench, options, rng):
    """Cuts the power between any two operations, and loses what was not synced in the three ways of Loss."""
    root, records = bench.record()
    tally = Tally(f"power cut, fresh run folder, {bench.ranks} rank(s)")
    states = {}  # (last step reported as saved, hash of the files) -> the cases with this state
    disk, reported, cases = crash_states.Disk(root), 0, 0
    for moment in range(len(records) + 1):
        for loss in crash_states.Loss:
            for repetition in range(options.repetitions if loss is crash_states.Loss.PART else 1):
                found = disk.after_power_cut(loss, rng)
                key = (reported, hash(tuple(sorted((p, d) for p, d in found.items()
                                                   if "/checkpoints" in p or d is None))))
                states.setdefault(key, ([], found, reported))[0].append(f"moment {moment}, {loss.value} lost")
        if moment < len(records):
            disk.replay(records[moment])
            if records[moment].kind == "p":
                reported = max(reported, reported_step(records[moment].data.decode(errors="replace")))
    chosen = sample(states.values(), options.sample, rng)

    def check(state):
        names, found, promised = state
        at = bench.new_root()
        at.rmdir()
        crash_states.write_state(found, at)
        wrong = bench.wrong_after(at, promised)
        for name in names:
            tally.add(name, wrong)
        shutil.rmtree(at)

    each(options.jobs, chosen, check)
    return tally.close(f", {len(chosen)} different states of {len(records)} operations")


def attack_kill(bench, options, rng):
    _, records = bench.record()
    numbers = [r.number for r in records if r.number > 0]
    tally = Tally(f"SIGKILL before a file operation, {bench.ranks} rank(s)")

    def check(number):
        root = bench.new_root()
        done = bench.train(root, faults={"KILL": number})
        wrong = bench.wrong_after(root, reported_step(done.stdout))
        tally.add(f"operation {number}", wrong)
        shutil.rmtree(root)

    each(options.jobs, sample(numbers, options.sample, rng), check)
    return tally.close()


def attack_fail(bench, options, rng):
    """A failing operation may end a run with a message and a documented exit code; EINTR must not end it."""
    _, records = bench.record()
    # A sample takes one error for each operation, all cases take each.
    errors = (lambda kind: ERRORS[kind]) if options.sample >= 1 else (lambda kind: [rng.choice(ERRORS[kind])])
    cases = [(r.number, r.kind, error) for r in records if r.number > 0 for error in errors(r.kind)]
    tally = Tally(f"a file operation fails, {bench.ranks} rank(s)")

    def check(case):
        number, kind, error = case
        root = bench.new_root()
        name = f"operation {number} ({kind}) {errno.errorcode[error]}"
        try:
            done = bench.train(root, faults={"FAIL": f"{number}:{error}"})
        except subprocess.TimeoutExpired:
            tally.add(name, "a hang")
            return
        wrong = None
        if error == errno.EINTR and done.returncode != 0:
            wrong = f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
        elif done.returncode not in (0, 1, 2, 3, 5) or (done.returncode != 0 and not done.stderr.strip()):
            wrong = f"exit {done.returncode} with '{done.stderr.strip()[-300:]}'"
        tally.add(name, wrong or bench.wrong_after(root, reported_step(done.stdout)))
        shutil.rmtree(root)

    each(options.jobs, sample(cases, options.sample, rng), check)
    return tally.close()


def attack_signals(bench, options, rng):
    """Ctrl-C, a batch system and `timeout` may each send the same signal twice."""
    tally = Tally("the same signal twice")
    ways = {"--nproc 2": ["--nproc", "2"], "--virtual 2": ["--virtual", "2"], "timeout, --nproc 2": ["--nproc", "2"]}
    cases = [(way, rng.uniform(0.002, 0.050)) for way in ways for _ in range(max(1, round(50 * options.sample)))]

    def check(case):
        way, pause = case
        root = bench.new_root()
        command = [BIN / "yoke", "train", bench.config, *ways[way], "train.steps=100000", "checkpoint.every=100000",
                   "metrics.every=1"]
        if way.startswith("timeout"):
            command = ["timeout", "--preserve-status", "600", *command]
        run = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        for line in run.stdout:
            if line.startswith("step"):
                break
        run.send_signal(signal.SIGTERM)
        time.sleep(pause)
        run.send_signal(signal.SIGTERM)
        rest = run.stdout.read()
        code = run.wait(HANG_SECONDS)
        name = f"{way}, {pause * 1000:.0f} ms apart"
        folder = root / "runs/attacked"
        saved = list((folder / "checkpoints").glob("step-*"))
        exit_file = folder / "exit.json"
        wrong = None
        if not saved:
            wrong = f"nothing saved; exit {code}: {rest.strip()[-300:]}"
        elif not exit_file.exists() or json.loads(exit_file.read_text())["code"] != 75:
            wrong = f"exit.json: {exit_file.read_text() if exit_file.exists() else 'missing'}"
        elif code not in (75, -signal.SIGTERM):
            wrong = f"exit {code}: {rest.strip()[-300:]}"
        tally.add(name, wrong)
        shutil.rmtree(root)

    each(1, cases, check)
    return tally.close()


ATTACKS = {"power": attack_power, "kill": attack_kill, "fail": attack_fail, "signals": attack_signals}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[*ATTACKS, []], help="default: all")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--sample", type=float, default=1.0, help="fraction of the cases, 0 to 1")
    parser.add_argument("--repetitions", type=int, default=1, help="random losses at each moment of a power cut")
    parser.add_argument("--backend", default="ptd")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="yoke-faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        bench = Bench(pathlib.Path(folder).resolve(), options.ranks, options.backend)
        for name in options.attacks or ATTACKS:
            good &= ATTACKS[name](bench, options, random.Random(options.seed))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
