"""Cases of node_faults.py: what can happen to ranks that train."""
import os
import signal
import subprocess
import sys
import time

from node_bench import DETECTION_SECONDS, case
from node_job import (BIN, HANG_SECONDS, HERE, LIBC, PORT, PR_SET_CHILD_SUBREAPER, process_state, require)

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


# ---- A rank hangs, but still answers ----

def hang(bench, world, rank):
    """The thread that trains stops, as in an endless loop or on a dead disk. The rank still sends signs of life, so
    that only the time limit of a collective ends the run, and the messages say which rank is behind."""
    job = bench.job(world=world, overrides=["comm.timeout=3"]).start().wait_for_step(bench.rng.randint(2, 20))
    struck = job.ranks[rank]
    survivors = [r for r in job.ranks if r is not struck]
    time.sleep(bench.rng.random() * 0.1)
    said = job.folder / "stopper"
    with open(said, "wb") as output:
        stopper = bench.start(sys.executable, HERE / "stop_thread.py", struck.process.pid, stdout=output, stderr=output)
    while "stopped" not in said.read_text():
        require(stopper.poll() is None, f"{said.read_text()}{job.report()}")
        time.sleep(0.02)
    job.inject(lambda: None)
    job.wait(seconds=DETECTION_SECONDS)
    job.require_codes(5)
    job.require_text(f"behind: {struck.name}", ranks=survivors)
    summary = subprocess.run([BIN / "yoke", "doctor", job.run_folder], capture_output=True, text=True,
                             timeout=HANG_SECONDS).stdout
    line = f"rank {struck.number} ({struck.node}): step "
    require(any(line in row and "behind the others" in row for row in summary.splitlines()),
            f"yoke doctor says {summary}{job.report()}")
    return job.seconds()


for _world in (2, 4):
    for _rank in range(_world):
        case(f"rank-{_rank}-of-{_world}", _world, _rank, short=(_world, _rank) == (2, 1))(hang)


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


@case("5-s")
def calm_silence(bench):
    """The network may be silent for as long as launch.lost_after says."""
    job = bench.job(overrides=["launch.lost_after=20"]).start().wait_for_step(5)
    bench.nodes.fault("drop", "node1", "in")
    time.sleep(5)
    bench.nodes.call("heal", "node1")
    job.wait_for_step(job.step() + 5)
    job.ranks[1].signal(signal.SIGTERM)
    job.wait(seconds=HANG_SECONDS).require_codes(143)


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
