#!/usr/bin/env python3
"""Submits configs/slurm/train.sbatch to a real Slurm on two or four machines made of namespaces (see slurm_here).

    slurm_test.py [CASE ...]     default: all cases

  preempted-1, preempted-2   a job of a higher partition takes both machines, with 1 or 2 ranks on each: the job saves,
                             is queued again, continues and completes
  preempted-4-machines       the same on four machines
  cancelled                  scancel: the job saves and is not queued again
  interrupted                scancel --signal=INT: the same, without a time limit for the save
  time-limit                 the time limit is near: the job saves, is queued again and continues
  crashed                    a machine crashes: the other rank names it, and the job continues from its last checkpoint
  without-slurmd             the slurmd of a machine is killed: Slurm takes the machine for lost, and the job continues
  refused                    a wrong key: the job fails and is not queued again
  requeue-exit               the site has RequeueExit=75, and the job script only runs srun

A case passes if the losses of all its parts together are those of an undisturbed run, bit for bit, and no process and
no secret is left. Exits with 1 if a case failed, with 77 if Slurm or namespaces are not available.

Variable: YOKE_BIN (folder of yoke)."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from node_job import BIN, HERE, REPOSITORY, Skipped, Wrong, require, rows_of

SCRIPT = REPOSITORY / "configs/slurm/train.sbatch"
HANG_SECONDS = 240  # for everything that is not a fault, on a busy machine
RUN_SECONDS = 30    # duration of an undisturbed run; a fault must fit into it
SAMPLE_STEPS = 500  # from which the speed is estimated
ENDLESS = 1000000   # steps of a run that a fault or this program ends
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
RUN = """parallel_backend = "ptd"
device = "cpu"
seed = 1
model.preset = "tiny"
model.layers = 1
data.path = "TEXT"
data.seq_len = 32
train.global_batch = 8
train.warmup = 2
train.schedule = "constant"
eval.every = 0
metrics.every = 1
metrics.tensorboard = false
checkpoint.every = 1000000
"""


def until(condition, what, seconds=HANG_SECONDS):
    """Waits until condition() is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        require(time.monotonic() < deadline, f"{what}: not after {seconds} s")
        time.sleep(0.1)


class Slurm:
    """A Slurm that runs until stop()."""

    def __init__(self, folder, machines=2, **settings):
        self.folder, self.machines = folder, machines
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        self.environment |= {"SLURM_DIR": str(folder), "NODES_OWNER": str(os.getpid()), "OMP_NUM_THREADS": "1",
                             "PATH": f"{BIN}:{os.environ['PATH']}", **settings}
        started = self.call("start", machines, check=False)
        if started.returncode == 77:
            raise Skipped(started.stderr.strip())
        require(started.returncode == 0, started.stderr.strip())

    def call(self, *arguments, check=True, cwd=None):
        words = list(map(str, arguments))
        try:
            done = subprocess.run([HERE / "slurm_here", *words], env=self.environment, cwd=cwd, capture_output=True,
                                  text=True, timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired as expired:
            raise Wrong(f"slurm_here {' '.join(words)}: no end within {HANG_SECONDS} s") from expired
        require(not check or done.returncode == 0, f"slurm_here {' '.join(words)}: {done.stderr.strip()}")
        return done

    def run(self, *command, cwd=None):
        return self.call("run", *command, cwd=cwd).stdout.strip()

    def idle(self):
        names = self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split()
        return names == [f"node{number}" for number in range(self.machines)]

    def stop(self):
        self.call("stop", check=False)


class Job:
    """A batch job, and the run that it trains."""

    def __init__(self, bench, *sbatch, steps=ENDLESS, overrides=(), script=SCRIPT, ranks=1):
        self.slurm = bench.slurm
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=bench.folder))
        self.run_folder = self.folder / "runs/r"
        self.id = self.slurm.run("sbatch", "--parsable", f"--nodes={self.slurm.machines}",
                                 f"--ntasks-per-node={ranks}", "--time=30",
                                 *sbatch, script, bench.run_file, f"run.dir={self.run_folder}",
                                 f"train.steps={steps}", f"dp_shards={self.slurm.machines * ranks}", *overrides,
                                 cwd=self.folder)

    def facts(self):
        """Returns what Slurm knows about the job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.slurm.run("scontrol", "-o", "show", "job", self.id)))

    def output(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"*-{self.id}.out")))

    def step(self):
        return max((row["step"] for row in rows_of(self.run_folder)), default=0)

    def wait_for_step(self, step):
        def reached():
            require(self.facts()["JobState"] in UNFINISHED, f"the job has ended before step {step}")
            return self.step() >= step
        until(reached, f"step {step}")
        return self

    def wait_for_end(self, state, restarts):
        """Waits until the job has ended, and requires how."""
        def ended():
            facts = self.facts()
            return facts if facts["JobState"] not in UNFINISHED else None
        facts = until(ended, f"the job is {state}")
        end = (facts["JobState"], int(facts["Restarts"]))
        require(end == (state, restarts), f"state and restarts are {end} instead of {state}, {restarts}")

    def wait_for_restart(self):
        until(lambda: self.facts()["Restarts"] == "1", "the job is queued again")
        return self

    def checkpoints(self):
        return sorted(int(path.name[5:]) for path in (self.run_folder / "checkpoints").glob("step-*"))

    def exit_record(self):
        return json.loads((self.run_folder / "exit.json").read_text())

    def require_said(self, text):
        require(re.search(text, self.output()), f"the output does not have '{text}'")

    def require_saved(self, code):
        """Requires that the run has stopped with `code` and has saved its last step."""
        require(self.checkpoints() == [self.step()], f"checkpoints {self.checkpoints()} at step {self.step()}")
        record = self.exit_record()
        require((record["code"], record["step"]) == (code, self.step()), f"exit.json: {record}")

    def report(self):
        lines = self.output().splitlines()[-25:]
        return "\n".join(["", f"  | {self.facts()}", *(f"  | {line[:300]}" for line in lines)])


class Bench:
    """The run file, Slurm, and the losses of undisturbed runs."""

    def __init__(self, folder):
        self.folder = folder
        text = folder / "text"
        text.write_bytes(bytes(97 + i * i % 26 for i in range(200000)))
        self.run_file = folder / "run.toml"
        self.run_file.write_text(RUN.replace("TEXT", str(text)))
        self.undisturbed = {}  # ranks -> losses by step
        self.steps = {}        # ranks -> steps of about RUN_SECONDS
        self.jobs = []
        self.start()

    def start(self, **settings):
        self.slurm = Slurm(self.folder / "slurm", **settings)

    def train(self, ranks, steps):
        run_folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "r"
        started = time.monotonic()
        done = subprocess.run([BIN / "yoke", "train", self.run_file, "--nproc", str(ranks), f"run.dir={run_folder}",
                               f"train.steps={steps}", f"dp_shards={ranks}"], capture_output=True, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1"), timeout=5 * HANG_SECONDS)
        require(done.returncode == 0, f"the undisturbed run failed: {done.stdout}{done.stderr}")
        return {row["step"]: row["loss"] for row in rows_of(run_folder)}, time.monotonic() - started

    def losses(self, ranks):
        """Returns the losses of an undisturbed run of about RUN_SECONDS."""
        if ranks not in self.undisturbed:
            seconds = self.train(ranks, SAMPLE_STEPS)[1]
            self.steps[ranks] = int(min(max(2, RUN_SECONDS / seconds), 10) * SAMPLE_STEPS)
            self.undisturbed[ranks] = self.train(ranks, self.steps[ranks])[0]
        return self.undisturbed[ranks]

    def job(self, *sbatch, **options):
        self.jobs.append(Job(self, *sbatch, **options))
        return self.jobs[-1]

    def require_undisturbed(self, job, ranks=1):
        """Requires that the job has made each step once, or again after a crash, with the undisturbed run's losses."""
        expected = self.losses(self.slurm.machines * ranks)
        steps = [row["step"] for row in rows_of(job.run_folder)]
        require(sorted(set(steps)) == list(range(1, max(steps) + 1)), f"{len(set(steps))} of {max(steps)} steps")
        for row in rows_of(job.run_folder):
            loss = expected.get(row["step"], row["loss"])  # the job may have made more steps
            require(row["loss"] == loss, f"step {row['step']}: loss {row['loss']}, undisturbed {loss}")

    def require_clean(self):
        """Requires that no process and no secret is left."""
        left = list(self.folder.glob("*/.yoke-secret*"))
        require(not left, f"secrets are left: {left}")
        until(lambda: not processes_of(self.folder), "the processes of the ranks have ended", 30)

    def end_jobs(self):
        jobs, self.jobs = self.jobs, []
        self.slurm.call("run", "scancel", "--full", "--user=root", check=False)
        for job in jobs:
            until(lambda: job.facts()["JobState"] not in UNFINISHED, "the job has ended")


def processes_of(folder):
    """Returns the ranks that train in a folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "yoke" in words.split("\0")[0] and f"={folder}" in words:
            found.append(int(path.parts[2]))
    return found


# ---- Cases ----


def preempted(bench, ranks, machines=2):
    if machines != bench.slurm.machines:
        bench.slurm.stop()
        bench.start(machines=machines)
        until(bench.slurm.idle, "all machines are idle")
    losses = bench.losses(machines * ranks)
    job = bench.job("--partition=low", ranks=ranks, steps=bench.steps[machines * ranks]).wait_for_step(20)
    bench.slurm.run("sbatch", "--partition=high", f"--nodes={machines}", "--ntasks-per-node=2", "--wrap=sleep 3",
                    cwd=job.folder)
    job.wait_for_restart().require_said(r"exit code 75, job \d+ is RUNNING")
    stopped = job.step()
    require(stopped < len(losses), "the run was too short")
    job.require_saved(75)
    job.wait_for_end("COMPLETED", restarts=1)
    job.require_said(f"resumed .*{stopped}")
    require("anyone who reaches" not in job.output(), "the run had no secret")
    steps = [row["step"] for row in rows_of(job.run_folder)]
    require(steps == list(range(1, len(losses) + 1)), f"steps were made again: {len(steps)} of {len(losses)}")
    bench.require_undisturbed(job, ranks)


def cancelled(bench):
    job = bench.job().wait_for_step(20)
    bench.slurm.run("scancel", job.id)
    job.wait_for_end("CANCELLED", restarts=0)
    until(lambda: "train.sbatch: exit code 75" in job.output(), "the script has ended", 30)
    job.require_saved(75)
    time.sleep(3)
    job.wait_for_end("CANCELLED", restarts=0)
    bench.require_undisturbed(job)


def interrupted(bench):
    job = bench.job().wait_for_step(20)
    bench.slurm.run("scancel", "--signal=INT", job.id)
    job.wait_for_end("FAILED", restarts=0)
    job.require_said("exit code 130, job")
    job.require_saved(130)
    bench.require_undisturbed(job)


def time_limit(bench):
    job = bench.job("--time=2", "--signal=TERM@30").wait_for_restart()
    job.require_said(r"exit code 75, job \d+ is RUNNING")
    job.require_saved(75)
    job.wait_for_step(job.step() + 20)
    bench.require_undisturbed(job)


def crashed(bench):
    job = bench.job(overrides=["checkpoint.every=20", "checkpoint.keep=1000"]).wait_for_step(50)
    bench.slurm.call("nodes", "crash", "node1")
    job.wait_for_restart()
    job.require_said(r"rank 1 \(node1, process \d+\) has not answered for \d")
    require(job.exit_record()["code"] == 5, f"exit.json: {job.exit_record()}")
    newest = job.checkpoints()[-1]
    bench.slurm.call("nodes", "heal", "node1")
    bench.slurm.call("daemon", "node1")
    job.wait_for_step(job.step() + 20)
    job.require_said(f"resumed .*{newest}")
    bench.require_undisturbed(job)


def without_slurmd(bench):
    job = bench.job(overrides=["checkpoint.every=20", "checkpoint.keep=1000"]).wait_for_step(50)
    pid = int((bench.slurm.folder / "run/slurmd.node1.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    job.wait_for_restart()
    until(lambda: not processes_of(bench.folder), "the ranks have ended", 30)
    bench.slurm.call("daemon", "node1")
    job.wait_for_step(job.step() + 20)
    bench.require_undisturbed(job)


def refused(bench):
    job = bench.job(overrides=["train.steps=many"])
    job.wait_for_end("FAILED", restarts=0)
    job.require_said("exit code 2, job")


def requeue_exit(bench):
    bench.slurm.stop()
    bench.start(REQUEUE_EXIT="75")
    script = bench.folder / "plain.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --requeue --open-mode=append --output=%x-%j.out\ntrap '' TERM\n"
                      'srun --kill-on-bad-exit=0 --wait=60 yoke train "$@" checkpoint.resume=auto\n')
    job = bench.job("--partition=low", script=script).wait_for_step(20)
    bench.slurm.run("sbatch", "--partition=high", "--nodes=2", "--ntasks-per-node=2", "--wrap=sleep 3", cwd=job.folder)
    job.wait_for_restart().require_saved(75)
    job.wait_for_step(job.step() + 20)
    bench.require_undisturbed(job)


CASES = {"preempted-1": lambda bench: preempted(bench, 1), "preempted-2": lambda bench: preempted(bench, 2),
         "cancelled": cancelled, "interrupted": interrupted, "time-limit": time_limit, "crashed": crashed,
         "without-slurmd": without_slurmd, "refused": refused, "requeue-exit": requeue_exit,
         "preempted-4-machines": lambda bench: preempted(bench, 1, machines=4)}


def run_case(bench, name):
    """Returns what is wrong; "" = nothing."""
    fault = ""
    try:
        until(bench.slurm.idle, "all machines are idle")
        bench.losses(2)  # while nothing else runs
        CASES[name](bench)
    except Wrong as wrong:
        fault = str(wrong) + "".join(job.report() for job in bench.jobs)
    try:
        bench.end_jobs()
        bench.require_clean()
    except Wrong as wrong:
        fault = fault or str(wrong)
    return fault


def main():
    names = sys.argv[1:] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        print(f"slurm_test.py: unknown cases {unknown}\n\n{__doc__}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="yoke-slurm-test-"))
    folder.chmod(0o755)
    bench, failed = None, 0
    try:
        bench = Bench(folder)
        for name in names:
            started = time.monotonic()
            fault = run_case(bench, name)
            failed += bool(fault)
            print(f"{'FAILED' if fault else 'ok'} {name} ({time.monotonic() - started:.0f} s) {fault}", flush=True)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 77
    except Wrong as wrong:  # Slurm does not start or stop
        print(f"FAILED: {wrong}")
        return 1
    finally:
        if bench:
            bench.slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(names) - failed} of {len(names)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
