"""Cases of node_faults.py: what can be wrong when the ranks meet."""
import os
import signal
import subprocess
import time

from node_bench import DETECTION_SECONDS, NUM_NODES, case
from node_job import BIN, HANG_SECONDS, PORT, Nodes, Skipped, require, resident_bytes, thread_seconds

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


@case("idle", [("idle", "1100")], short=True)
@case("noise", [("noise", "1")] * 4)
@case("idle-and-noise", [("idle", "1000")] + [("noise", str(seed)) for seed in range(4)])
def meeting_strangers(bench, attacks):
    """Strangers cost neither the run nor much memory. --minutes is the length of the attack."""
    job = bench.job(overrides=["checkpoint.every=1000000"]).start().wait_for_step(50)
    pid = job.ranks[0].process.pid
    before, first_step = resident_bytes(pid), job.step()
    for kind, argument in attacks:
        bench.strangers(kind, "node0", PORT, argument, stdout=subprocess.DEVNULL)
    largest, descriptors = before, 0
    begin, hub = time.monotonic(), thread_seconds(pid, "yoke-hub")
    while time.monotonic() < begin + (bench.minutes * 60 or ATTACK_SECONDS):
        memory, files = resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd"))
        require(not any(r.has_ended() for r in job.ranks), f"the run has ended:{job.report()}")
        largest, descriptors = max(largest, memory), max(descriptors, files)
        time.sleep(0.1)
    busy = (thread_seconds(pid, "yoke-hub") - hub) / (time.monotonic() - begin)
    require(job.step() > first_step, f"no steps are done:{job.report()}")
    require(largest - before < LARGEST_GROWTH, f"rank 0 grew by {(largest - before) / 1e6:.1f} MB")
    require(descriptors < MOST_DESCRIPTORS, f"rank 0 has {descriptors} open files")
    job.ranks[1].signal(signal.SIGTERM)
    job.wait().require_codes(75)
    return f"{(largest - before) / 1e6:.1f} MB, {busy:.1%} of a core"


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
