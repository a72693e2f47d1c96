#!/usr/bin/env python3
"""Runs small jobs on several machines, made of namespaces, and lets something go wrong.

  door      the machines do not run the same job: all ranks refuse before the first step
  death     processes are killed: the others end and name a process that was killed
  silence   processes or machines stop, or a cable is cut: the same
  calm      slow networks and busy machines: the run continues, with the losses of an undisturbed one
  signal    signals to some of the ranks: all ranks save and end with the same code
  meeting   what can be wrong with names, ports and secrets when the ranks meet, and strangers at the port
  launcher  the launcher of some ranks is killed

  node_faults.py list
  node_faults.py run [--only PATTERN,...] [--short] [--repeat N] [--seed S] [--minutes M] [--with KEY=VALUE]
  node_faults.py prove    runs the cases of silence without beats and without the kernel's own time limit for
                          connections, and requires that all of them fail

Prints one line for each case and a summary with times. They are measured with one monotonic clock, from the fault to
the end of the last process that must end. Exits with 1 if a case failed, and with 77 if namespaces are refused.

Variables: YOKE_BIN (folder of yoke)."""
import argparse
import fnmatch
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from node_job import (BIN, HANG_SECONDS, HERE, LIBC, PORT, PR_SET_CHILD_SUBREAPER, Job, Nodes, Skipped, Wrong,
                      process_state, require, resident_bytes)

SKIPPED = 77
NUM_NODES = 3
# No case asserts how fast a machine is. This limit is several times what detection may take, and well below
# comm.timeout, which ends a run as well.
DETECTION_SECONDS = 20
NO_USER_TIMEOUT = BIN.parent / "lib/libyoke_no_user_timeout.so"
CASES = {}


class Case:
    def __init__(self, function, arguments, short):
        self.function, self.arguments, self.short = function, arguments, short
        self.group = function.__name__.split("_")[0]


def case(name, *arguments, short=False):
    """Registers the decorated function as GROUP-NAME, called with the bench and the arguments."""
    def register(function):
        CASES[f"{function.__name__.replace('_', '-')}-{name}"] = Case(function, arguments, short)
        return function
    return register


class Bench:
    """The nodes, and the folder of all jobs."""

    def __init__(self, folder, options):
        self.folder, self.number = folder, 0
        self.overrides, self.minutes = options.overrides, options.minutes
        self.environment = {}  # of all ranks
        self.rng = random.Random(options.seed)
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "text").write_bytes(bytes(97 + i * i % 26 for i in range(4000)))
        self.nodes = Nodes(NUM_NODES)
        self.jobs = []

    def new_folder(self):
        self.number += 1
        folder = self.folder / f"job-{self.number}"
        folder.mkdir()
        return folder

    def job(self, **options):
        self.jobs.append(Job(self, **options))
        return self.jobs[-1]

    def start(self, *command, node="node2", **options):
        return self.nodes.start(node, command, stdin=subprocess.DEVNULL, **options)

    def strangers(self, *arguments, node="node2", **options):
        return self.start(sys.executable, HERE / "strangers.py", *arguments, node=node, **options)

    def clean_up(self):
        self.nodes.thaw_all()  # a frozen process does not end before
        for job in self.jobs:
            job.close()
        self.jobs.clear()
        self.nodes.heal()


# ---- The machines do not run the same job ----

# key: the values of rank 0 and rank 1, as messages show them
DIFFERENT_KEYS = {
    "train.lr": ("0.25", "0.01"),
    "train.warmup": ("2", "5"),
    "seed": ("1", "2"),
    "train.weight_decay": ("0.1", "0.2"),
    "train.steps": ("1000", "2000"),
    "checkpoint.every": ("5", "7"),
    "eval.every": ("0", "5"),
    "verify.every": ("0", "5"),
    "comm.check": ('"step"', '"full"'),
    "model.layers": ("1", "2"),
    "ptd.reshard_after_forward": ("true", "false"),
}


def expect_refusal(job, *words):
    job.wait(seconds=DETECTION_SECONDS)
    job.require_codes(2)
    job.require_text(*words)
    require(job.step() == 0, f"{job.step()} steps were done:{job.report()}")
    return job.seconds_after_arrival()


def door(bench, key):
    common, other = DIFFERENT_KEYS[key]
    job = bench.job()
    for rank, value in enumerate((common, other)):
        job.start_rank(rank, f"{key}={value.strip(chr(34))}")
    return expect_refusal(job, f"{key}: rank 0 (node0) has {common}", f"rank 1 (node1) has {other}")


for _key in DIFFERENT_KEYS:
    case(_key, _key, short=_key in ("train.lr", "model.layers"))(door)


@case("4")
def door_ranks(bench):
    job = bench.job(world=4)
    for rank in range(4):
        job.start_rank(rank, "train.lr=0.01" if rank >= 2 else "train.lr=0.25")
    return expect_refusal(job, "train.lr: rank 0 (node0) has 0.25", "ranks 2, 3 (node1) have 0.01")


@case("lr")
def door_run_file(bench):
    """The difference is in the run file of one node, which has the same path there."""
    job = bench.job()
    other = job.folder / "other.toml"
    other.write_text(job.file.read_text().replace("train.lr = 3e-4", "train.lr = 0.25"))
    bench.nodes.mount("node1", "--bind", other, job.file)
    return expect_refusal(job.start(), "train.lr: rank 0 (node0) has 3e-4", "rank 1 (node1) has 0.25")


def changed_copy(path, folder):
    copy = folder / ("changed-" + path.name)
    copy.write_bytes(path.read_bytes() + b"changed")
    copy.chmod(0o755)
    return copy


@case("data", "data", short=True)
@case("plugin", "plugin", short=True)
@case("worker", "worker")
@case("worker-library", "library")
def door_file(bench, kind):
    """A file of node1 has the same path and other contents."""
    job = bench.job()
    path, key = {"data": (bench.data / "text", "contents of data.path"),
                 "plugin": (BIN.parent / "lib/yoke/backends/ptd.so", "backend"),
                 "worker": (BIN / "yoke-worker", "worker"),
                 "library": (BIN.parent / "lib/libyoke_worker.so", "worker")}[kind]
    bench.nodes.mount("node1", "--bind", changed_copy(path, job.folder), path)
    return expect_refusal(job.start(), key, "rank 0 (node0) has", "rank 1 (node1) has")


@case("rank-0", 0)
@case("rank-1", 1, short=True)
def door_run_file_error(bench, rank):
    """The other rank gets the error of a rank that refuses its run file."""
    job = bench.job()
    bad = job.folder / "bad.toml"
    bad.write_text(job.file.read_text() + "train.lrr = 1\n")
    for number in range(2):
        job.start_rank(number, file=bad if number == rank else None)
    return expect_refusal(job, "train.lrr")


@case("rank-0", 0)
@case("rank-1", 1)
def door_no_data(bench, rank):
    """Data are missing on one node."""
    job = bench.job()
    bench.nodes.mount(job.node_of(rank), "-t", "tmpfs", "tmpfs", bench.data)
    return expect_refusal(job.start(), str(bench.data / "text"))


@case("folder", short=True)
def door_not_shared(bench):
    """Node1 has a file system of its own where the run folder is."""
    job = bench.job()
    bench.nodes.mount("node1", "-t", "tmpfs", "tmpfs", job.folder / "runs")
    return expect_refusal(job.start(), "run.dir", "do not share", "node1")


@case("timeouts")
def door_allowed(bench):
    """Some keys may differ."""
    job = bench.job()
    job.start_rank(0, "train.steps=2", "comm.timeout=50", "launch.join_timeout=100")
    job.start_rank(1, "train.steps=2", "comm.timeout=60", "launch.lost_after=5")
    job.wait().require_codes(0)


# ---- Processes are killed ----

def expect_loss(job, struck, seconds=DETECTION_SECONDS):
    """All ranks that are not struck end with 5 and name one that is."""
    survivors = [r for r in job.ranks if r not in struck]
    job.wait(survivors, seconds)
    job.require_codes(5, survivors)
    job.require_named(struck, survivors)
    reason = job.exit_record()
    require(reason["code"] == 5 and any(r.name in reason["reason"] for r in struck),
            f"exit.json does not name {[r.name for r in struck]}:{job.report()}")
    return job.seconds(survivors)


def death(bench, world, rank, number):
    job = bench.job(world=world).start().wait_for_step(bench.rng.randint(2, 20))
    job.inject(lambda: job.ranks[rank].signal(number))
    return expect_loss(job, [job.ranks[rank]])


for _world in (2, 4):
    for _rank in range(_world):
        for _signal in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
            _short = (_world, _rank, _signal) in ((2, 0, signal.SIGKILL), (2, 1, signal.SIGSEGV))
            case(f"{_signal.name}-rank-{_rank}-of-{_world}", _world, _rank, _signal, short=_short)(death)


@case("node0", "node0")
@case("node1", "node1", short=True)
def death_of_node(bench, node):
    job = bench.job(world=4).start().wait_for_step(bench.rng.randint(2, 20))
    struck = [r for r in job.ranks if r.node == node]
    job.inject(lambda: bench.nodes.fault("kill", node))
    return expect_loss(job, struck)


@case("save")
def death_by_error(bench):
    """Node1 cannot write a checkpoint."""
    job = bench.job(overrides=["checkpoint.every=100"]).start().wait_for_step(10)
    bench.nodes.mount("node1", "-t", "tmpfs", "-o", "ro", "tmpfs", job.run_folder / "checkpoints")
    job.wait()
    job.require_codes(1)
    job.require_text("optimizer.safetensors", "rank 1 (node1")


# ---- Processes and machines stop, cables are cut ----

@case("rank-0", 0, short=True)
@case("rank-1", 1, short=True)
def silence_stop(bench, rank):
    job = bench.job().start().wait_for_step(bench.rng.randint(2, 20))
    struck = job.ranks[rank]
    job.inject(lambda: struck.signal(signal.SIGSTOP))
    seconds = expect_loss(job, [struck])
    # A rank that continues after the others have ended must end, too.
    struck.signal(signal.SIGCONT)
    job.wait([struck], DETECTION_SECONDS)
    job.require_codes(5, [struck])
    return seconds


@case("node0", "node0")
@case("node1", "node1")
def silence_freeze(bench, node):
    job = bench.job(world=4).start().wait_for_step(bench.rng.randint(2, 20))
    struck = [r for r in job.ranks if r.node == node]
    job.inject(lambda: bench.nodes.fault("freeze", node))
    seconds = expect_loss(job, struck)
    bench.nodes.thaw(node)
    job.wait(struck, DETECTION_SECONDS)
    job.require_codes(5, struck)
    return seconds


@case("node0", "node0")
@case("node1", "node1")
def silence_crash(bench, node):
    job = bench.job(world=4).start().wait_for_step(bench.rng.randint(2, 20))
    struck = [r for r in job.ranks if r.node == node]
    job.inject(lambda: bench.nodes.fault("crash", node))
    return expect_loss(job, struck)


@case("cut-node0", "node0", ("cut",))
@case("cut-node1", "node1", ("cut",), short=True)
@case("in-node0", "node0", ("drop", "in"))
@case("out-node0", "node0", ("drop", "out"))
@case("in-node1", "node1", ("drop", "in"))
@case("out-node1", "node1", ("drop", "out"))
def silence_cut(bench, node, fault):
    """Both sides end: the ranks on each side name one of the other side."""
    job = bench.job(world=4).start().wait_for_step(bench.rng.randint(2, 20))
    job.inject(lambda: bench.nodes.fault(fault[0], node, *fault[1:]))
    job.wait(seconds=DETECTION_SECONDS)
    job.require_codes(5)
    for rank in job.ranks:
        job.require_named([r for r in job.ranks if r.node != rank.node], [rank])
    require(job.exit_record()["code"] == 5, f"exit.json:{job.report()}")
    return job.seconds()


@case("node1-of-3", "node1")
@case("node2-of-3", "node2")
def silence_cut_of_3(bench, node):
    """The other nodes name the right one."""
    job = bench.job(world=3, nodes=3, overrides=["train.global_batch=3"]).start().wait_for_step(5)
    cut_off = [r for r in job.ranks if r.node == node]
    others = [r for r in job.ranks if r.node != node]
    job.inject(lambda: bench.nodes.fault("cut", node))
    job.wait(seconds=DETECTION_SECONDS)
    job.require_codes(5)
    job.require_named(cut_off, others)
    return job.seconds()


# ---- Slow networks and busy machines ----

def disturb(bench, kind):
    if kind == "busy":
        for number in range(8):
            bench.start(sys.executable, "-c", "while True: pass", node=f"node{number % 2}")
    else:
        fault, value = kind
        bench.nodes.fault(fault, "node1", value)


@case("delay-100-ms", ("delay", "100"), 3, short=True)
@case("loss-5-percent", ("loss", "5"), 20)
@case("10-Mbit", ("rate", "10"), 10)
@case("busy", "busy", 50)
def calm(bench, kind, steps):
    """With --minutes, the run is stopped after that time instead of after `steps`."""
    limit = HANG_SECONDS * 2
    if bench.minutes:
        job = bench.job(overrides=["checkpoint.every=100000000"]).start().wait_for_step(1)
        disturb(bench, kind)
        time.sleep(bench.minutes * 60)
        require(not any(r.has_ended() for r in job.ranks), f"a false alarm:{job.report()}")
        job.ranks[1].signal(signal.SIGTERM)
        job.wait(seconds=limit).require_codes(75)
        steps = job.step()
    else:
        disturb(bench, kind)
        job = bench.job(overrides=[f"train.steps={steps}"]).start().wait(seconds=limit)
        job.require_codes(0)
    bench.nodes.heal()
    undisturbed = bench.job(overrides=[f"train.steps={steps}"]).start().wait(seconds=limit + bench.minutes * 60)
    undisturbed.require_codes(0)
    require(len(job.losses()) >= steps and job.losses() == undisturbed.losses(),
            f"the losses are {job.losses()} instead of {undisturbed.losses()}:{job.report()}")


# ---- Signals ----

def saved_step(job):
    """Returns the step of the newest checkpoint, which must be whole."""
    saved = job.checkpoints()
    require(saved, f"nothing was saved:{job.report()}")
    verified = subprocess.run([BIN / "yoke", "checkpoint", "verify", saved[-1]], capture_output=True, text=True,
                              timeout=HANG_SECONDS)
    require(verified.returncode == 0, f"{saved[-1]}: {verified.stdout}{verified.stderr}{job.report()}")
    return int(saved[-1].name[5:])


def stop_by(bench, number, ranks, world, every):
    job = bench.job(world=world, overrides=[f"checkpoint.every={every}"]).start()
    job.wait_for_step(bench.rng.randint(2, 20))
    before = job.step()
    job.inject(lambda: [job.ranks[rank].signal(number) for rank in ranks])
    job.wait(seconds=HANG_SECONDS)
    code = 130 if number == signal.SIGINT else 75 if every else 143
    job.require_codes(code)
    require(job.exit_record()["code"] == code, f"exit.json:{job.report()}")
    if every:
        step = saved_step(job)
        require(step == job.step() and step >= before, f"step {step} was saved, step {job.step()} done:{job.report()}")
    else:
        require(not job.checkpoints(), f"something was saved:{job.report()}")
    return job.seconds()


STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)


def signals(bench, number, ranks):
    return stop_by(bench, number, ranks, 2, 1000000)


for _number in STOP_SIGNALS:
    for _ranks in ((0,), (1,), (0, 1)):
        _short = (_number, _ranks) in ((signal.SIGTERM, (1,)), (signal.SIGUSR1, (0, 1)))
        case(f"{_number.name}-to-" + "-".join(map(str, _ranks)), _number, _ranks, short=_short)(signals)


@case("subset-of-4")
def signals_random(bench):
    ranks = [r for r in range(4) if bench.rng.random() < 0.5] or [bench.rng.randrange(4)]
    return stop_by(bench, bench.rng.choice(STOP_SIGNALS), ranks, 4, 1000000)


@case("nothing-to-save")
def signals_unsaved(bench):
    return stop_by(bench, signal.SIGTERM, (1,), 2, 0)


@case("SIGTERM")
def signals_while_waiting(bench):
    job = bench.job().start(only=[0])
    while job.arrivals.connections < 1:
        require(not job.ranks[0].has_ended(), job.report())
        time.sleep(0.02)
    job.inject(lambda: job.ranks[0].signal(signal.SIGTERM))
    job.wait(seconds=DETECTION_SECONDS).require_codes(143)
    return job.seconds()


# ---- How ranks meet ----

def seconds_to_train(bench, **options):
    begin = time.monotonic()
    job = bench.job(overrides=["train.steps=3"], **options).start().wait()
    job.require_codes(0)
    require(job.step() == 3, f"{job.step()} steps:{job.report()}")
    return time.monotonic() - begin


@case("name", "node0", short=True)
@case("address", "10.77.0.10")
def meeting_own_name_is_loopback(bench, address):
    """Debian and Ubuntu map a machine's own name to 127.0.1.1."""
    for node in bench.nodes.names:
        hosts = bench.nodes.hosts(node)
        hosts.write_text("".join(f"127.0.1.1 {node}\n" if line.endswith(" " + node + "\n") else line
                                 for line in hosts.read_text().splitlines(True)))
    return seconds_to_train(bench, address=address)


@case("name", "node0")
@case("address", "10.77.0.10")
def meeting_silent_name_server(bench, address):
    plain = seconds_to_train(bench, address=address)
    for node in bench.nodes.names:
        bench.nodes.resolver(node).write_text("nameserver 10.77.0.250\n")
    seconds = seconds_to_train(bench, address=address)
    # One question to a silent server takes at least five seconds.
    require(seconds < 2 * plain + 4, f"{seconds:.1f} s instead of {plain:.1f} s")
    return seconds - plain


@case("ipv6", short=True)
def meeting_ipv6(bench):
    try:
        bench.nodes.call("ipv6")
    except RuntimeError as error:
        raise Skipped(str(error)) from error
    try:
        return max(seconds_to_train(bench, address=address) for address in ("node0", "fd77::10"))
    finally:
        bench.clean_up()
        bench.nodes.stop()
        bench.nodes = Nodes(NUM_NODES)


@case("port")
def meeting_second_job(bench):
    """A second job at the same port does not disturb the first, and none of its ranks joins the first."""
    first = bench.job(world=2).start().wait_for_step(2)
    second = bench.job(world=4, overrides=["train.lr=0.5"]).start()
    second.wait(seconds=DETECTION_SECONDS).require_codes(2)
    second.require_text("another run", ranks=second.ranks[1:])
    second.require_text("MASTER_PORT", ranks=second.ranks[:1])
    first.wait_for_step(first.step() + 5)
    return second.seconds_after_arrival()


@case("rank")
def meeting_same_rank(bench):
    """Two processes have the same rank, so one of them is refused, and one rank is missing."""
    job = bench.job(world=3, nodes=3, overrides=["train.global_batch=3", "launch.join_timeout=8"])
    for number, node in ((0, "node0"), (1, "node1"), (1, "node2")):
        job.start_rank(number, node=node)
    job.wait()
    require(sorted(r.code for r in job.ranks) == [2, 5, 5], f"exit codes:{job.report()}")
    job.require_text("rank 1 is taken by node", ranks=[r for r in job.ranks if r.code == 2])
    job.require_text("rank 2 of 3 is missing", ranks=[r for r in job.ranks if r.code == 5])


@case("silent-program")
def meeting_port_taken(bench):
    with open(bench.folder / "silent", "wb") as output:
        bench.strangers("silent", PORT, node="node0", stdout=output)
    while not (bench.folder / "silent").read_text():
        time.sleep(0.02)
    job = bench.job().start()
    job.wait(seconds=2 * DETECTION_SECONDS).require_codes(2)
    job.require_text("MASTER_PORT")
    return max(r.ended - r.started for r in job.ranks)


@case("rank-1", 1, short=True)
@case("rank-0", 0)
def meeting_missing(bench, rank):
    job = bench.job(overrides=["launch.join_timeout=3"]).start(only=[1 - rank])
    job.wait(seconds=DETECTION_SECONDS).require_codes(5)
    job.require_text("launch.join_timeout", "rank 1 of 2 is missing" if rank == 1 else "rank 0 cannot be reached")
    return job.ranks[0].ended - job.ranks[0].started


@case("again")
def meeting_after_restart(bench):
    """A rank that ends while it waits for the others may come again."""
    job = bench.job(world=3, nodes=3, overrides=["train.global_batch=3", "train.steps=3"]).start(only=[0, 1])
    while job.arrivals.connections < 2:
        require(not any(r.has_ended() for r in job.ranks), job.report())
        time.sleep(0.02)
    killed = job.ranks.pop()
    killed.signal(signal.SIGKILL)
    job.start_rank(1)
    job.start_rank(2)
    job.wait().require_codes(0)


@case("rank-0")
def meeting_stopped(bench):
    """Rank 0 stops while others wait for the last rank."""
    job = bench.job(world=3, nodes=3, overrides=["train.global_batch=3"]).start(only=[0, 1])
    while job.arrivals.connections < 2:
        require(not any(r.has_ended() for r in job.ranks), job.report())
        time.sleep(0.02)
    time.sleep(0.5)
    job.inject(lambda: job.ranks[0].signal(signal.SIGSTOP))
    job.wait(job.ranks[1:], DETECTION_SECONDS).require_codes(5, job.ranks[1:])
    job.require_text("lost rank 0 before the start", ranks=job.ranks[1:])
    return job.seconds(job.ranks[1:])


@case("nobody", "10.77.0.99", 5)
@case("other-node", "node1", 5)
@case("unknown-name", "no-such-host", 2)
def meeting_wrong_address(bench, address, code):
    job = bench.job(address=address, overrides=["launch.join_timeout=3"]).start()
    job.wait(seconds=2 * DETECTION_SECONDS).require_codes(code)
    job.require_text("MASTER_ADDR", address)
    return max(r.ended - r.started for r in job.ranks)


@case("right", "a" * 32, "a" * 32, None, short=True)
@case("wrong", "a" * 32, "b" * 32, "has another secret")
@case("only-rank-0", "a" * 32, None, "requires the secret")
@case("only-rank-1", None, "a" * 32, "runs without a secret")
def meeting_secret(bench, secret_0, secret_1, refusal):
    """The rank that does not prove itself is refused. It cannot end the run, so rank 0 waits for the right one."""
    job = bench.job(overrides=["train.steps=3", "launch.join_timeout=6"])
    for rank, secret in enumerate((secret_0, secret_1)):
        file = job.folder / f"secret-{rank}"
        file.write_text(secret or "")
        file.chmod(0o600)
        job.start_rank(rank, environment={"YOKE_SECRET_FILE": str(file)} if secret else {})
    job.wait()
    if refusal is None:
        return job.require_codes(0)
    job.require_codes(2, job.ranks[1:])
    job.require_text(refusal, ranks=job.ranks[1:])
    job.require_codes(5, job.ranks[:1])
    return job.require_text("rank 1 of 2 is missing", "without the secret of the run", ranks=job.ranks[:1])


LARGEST_GROWTH = 8 << 20
MOST_DESCRIPTORS = 200
ATTACK_SECONDS = 8


@case("idle", "idle", "1100", short=True)
@case("noise", "noise", "1")
def meeting_strangers(bench, kind, argument):
    """Strangers cost neither the run nor much memory."""
    job = bench.job(overrides=["checkpoint.every=1000000"]).start().wait_for_step(50)
    pid = job.ranks[0].process.pid
    before, first_step = resident_bytes(pid), job.step()
    for _ in range(1 if kind == "idle" else 4):
        bench.strangers(kind, "node0", PORT, argument, stdout=subprocess.DEVNULL)
    largest, descriptors, end = before, 0, time.monotonic() + ATTACK_SECONDS
    while time.monotonic() < end:
        require(not any(r.has_ended() for r in job.ranks), f"the run has ended:{job.report()}")
        largest = max(largest, resident_bytes(pid))
        descriptors = max(descriptors, len(os.listdir(f"/proc/{pid}/fd")))
        time.sleep(0.1)
    require(job.step() > first_step, f"no steps are done:{job.report()}")
    require(largest - before < LARGEST_GROWTH, f"rank 0 grew by {(largest - before) / 1e6:.1f} MB")
    require(descriptors < MOST_DESCRIPTORS, f"rank 0 has {descriptors} open files")
    job.ranks[1].signal(signal.SIGTERM)
    job.wait().require_codes(75)
    return f"{(largest - before) / 1e6:.1f} MB"


@case("handshake")
def meeting_replay(bench):
    """What a rank with the secret has said is worth nothing on another connection."""
    job = bench.job()
    secret = job.folder / "secret"
    secret.write_text("a" * 32)
    secret.chmod(0o600)
    with open(job.folder / "proxy", "wb") as output:
        proxy = bench.strangers("proxy", "node0", PORT, stdout=output, stderr=output)
    heard = job.folder / "proxy"
    while "ready" not in heard.read_text() and proxy.poll() is None:
        time.sleep(0.02)
    job.start_rank(0, environment={"YOKE_SECRET_FILE": str(secret)})
    job.start_rank(1, environment={"YOKE_SECRET_FILE": str(secret), "MASTER_ADDR": "node2"})
    deadline = time.monotonic() + HANG_SECONDS
    while heard.read_text().count("repeated") < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = [line for line in heard.read_text().splitlines() if "repeated" in line]
    require(len(lines) >= 3, f"the proxy says: {heard.read_text()}{job.report()}")
    # 2 is kChallenge and 7 kRefused.
    require(all(line.endswith("answers [2, 7], closed") for line in lines), f"the proxy says: {lines}{job.report()}")
    job.wait_for_step(job.step() + 3)


# ---- The launcher of some ranks is killed ----

PARENT = """import os, subprocess, sys, time
children = [subprocess.Popen(sys.argv[2:], stdout=sys.stderr, env=os.environ | {"OMPI_COMM_WORLD_RANK": rank,
    "OMPI_COMM_WORLD_LOCAL_RANK": str(i)}) for i, rank in enumerate(sys.argv[1].split(","))]
print(*[c.pid for c in children], flush=True)
for c in children: c.wait()
"""


def start_parent(bench, job, node, ranks):
    """Starts a process that starts ranks, as the daemon of Open MPI on a node does. Returns it and their numbers."""
    variables = {"OMPI_COMM_WORLD_SIZE": str(job.world), "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(ranks)),
                 "MASTER_ADDR": "node0", "MASTER_PORT": str(PORT), "PMIX_NAMESPACE": "job-1", "OMP_NUM_THREADS": "1"}
    pids = job.folder / f"pids-{node}"
    with open(pids, "wb") as output, open(job.folder / f"errors-{node}", "wb") as errors:
        parent = bench.start(sys.executable, "-c", PARENT, ",".join(map(str, ranks)), *job.command(),
                             node=node, stdout=output, stderr=errors, environment=variables)
    while not pids.read_text().endswith("\n"):
        require(parent.poll() is None, (job.folder / f"errors-{node}").read_text())
        time.sleep(0.02)
    return parent, [int(p) for p in pids.read_text().split("\n")[0].split()]


@case("node1", "node1", short=True)
@case("node0", "node0")
def launcher(bench, node):
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # so that this process gets the exit codes of the ranks
    job = bench.job(world=4, overrides=["checkpoint.every=1000000"])
    started = {name: start_parent(bench, job, name, ranks) for name, ranks in (("node0", [0, 1]), ("node1", [2, 3]))}
    pids = [pid for _, numbers in started.values() for pid in numbers]
    try:
        job.wait_for_step(5)
        job.inject(started[node][0].kill)
        orphans = set(started[node][1])
        codes, deadline = {}, time.monotonic() + HANG_SECONDS
        while len(codes) < len(pids) and time.monotonic() < deadline:
            for pid in orphans - codes.keys():
                done, status = os.waitpid(pid, os.WNOHANG) if process_state(pid) == "Z" else (0, 0)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            for pid in set(pids) - orphans - codes.keys():
                if process_state(pid) in ("Z", ""):
                    codes[pid] = None  # the other launcher has its exit code
            time.sleep(0.02)
        seconds = time.monotonic() - job.injected
        errors = [(job.folder / f"errors-{name}").read_text()[-600:] for name in started]
        require(len(codes) == len(pids), f"ranks live on without their launcher: {set(pids) - codes.keys()} {errors}")
        require(all(codes[pid] == 75 for pid in orphans), f"exit codes {codes}: {errors}")
        require(job.exit_record()["code"] == 75, f"exit.json: {job.exit_record()}")
        saved_step(job)
        return seconds
    finally:
        for pid in pids:
            if process_state(pid) not in ("", "Z"):
                os.kill(pid, signal.SIGKILL)


# ---- Running the cases ----

def run_case(bench, one):
    """Returns what is wrong, or None, and what was measured: a time, a text or None."""
    try:
        return None, one.function(bench, *one.arguments)
    except Wrong as wrong:
        return str(wrong), None
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return f"the harness failed: {error!r}", None
    finally:
        bench.clean_up()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def run(bench, names, options):
    """Runs the cases, in a random order if they are repeated. Returns what is wrong with those that failed, by name."""
    order = [name for name in names for _ in range(options.repeat)]
    if options.repeat > 1:
        bench.rng.shuffle(order)
    failed, failures, skipped, times = {}, 0, 0, {}
    begin = time.monotonic()
    for name in order:
        started = time.monotonic()
        try:
            wrong, measured = run_case(bench, CASES[name])
        except Skipped as reason:
            skipped += 1
            print(f"skipped  {name}: {reason}", flush=True)
            continue
        if wrong is not None:
            failures += 1
            failed[name] = wrong
        if isinstance(measured, float):
            times.setdefault(CASES[name].group, []).append(measured)
            measured = f"{measured:.2f} s"
        print(f"{'FAILED' if wrong else 'passed'} {measured or '':>9}  {name}  (all of it {time.monotonic() - started:.1f} s)"
              + (f": {wrong}" if wrong else ""), flush=True)
    for group, values in times.items():
        print(f"{group}: {len(values)} times, median {percentile(values, 50):.2f} s, "
              f"99 % below {percentile(values, 99):.2f} s, longest {max(values):.2f} s")
    print(f"{len(order)} cases, {len(order) - failures - skipped} passed, {failures} failed, {skipped} skipped; "
          f"{time.monotonic() - begin:.0f} s", flush=True)
    return failed


def selected(options):
    patterns = options.only.split(",")
    return [name for name, one in CASES.items()
            if any(fnmatch.fnmatch(name, p) for p in patterns) and (one.short or not options.short)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "run", "prove"])
    parser.add_argument("--only", default="*", help="names of cases, separated by commas, with * and ?")
    parser.add_argument("--short", action="store_true", help="only the most important cases")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="length of the runs that must not be disturbed")
    parser.add_argument("--with", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="an override for all ranks")
    options = parser.parse_args()
    if options.command == "prove":
        options.overrides.append("launch.lost_after=0")
        options.only = "silence*"
    names = selected(options)
    if options.command == "list":
        print("\n".join(names))
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ranks inherit this; nohup ignores the signal
    with tempfile.TemporaryDirectory(prefix="yoke-nodes-jobs-") as folder:
        try:
            bench = Bench(pathlib.Path(folder).resolve(), options)
        except Skipped as reason:
            print(f"SKIPPED: {reason}")
            sys.exit(SKIPPED)
        if options.command == "prove":
            require(NO_USER_TIMEOUT.exists(), f"{NO_USER_TIMEOUT} is missing")
            bench.environment = {"LD_PRELOAD": str(NO_USER_TIMEOUT)}
        try:
            failed = run(bench, names, options)
        finally:
            bench.nodes.stop()
    if options.command == "prove":
        others = [name for name in names if "has not ended" not in failed.get(name, "")]
        print(f"these cases need no beats: {others}" if others else "without beats, all cases fail as they should")
        sys.exit(1 if others else 0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
