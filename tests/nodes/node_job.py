"""Starts the ranks of a run on machines that are made of namespaces (see `nodes`), and measures how they end."""
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BIN = pathlib.Path(os.environ.get("YOKE_BIN", REPOSITORY / "build/release/bin")).resolve()
PORT = 29500
HANG_SECONDS = 600  # time for anything that is not a fault, such as starting, on a busy machine
RUN = """parallel_backend = "ptd"
device = "cpu"
seed = 1
model.preset = "tiny"
model.layers = 1
data.path = "DATA/text"
data.seq_len = 16
train.steps = 1000000
train.global_batch = 4
train.lr = 3e-4
train.warmup = 2
train.schedule = "constant"
eval.every = 0
metrics.every = 1
checkpoint.every = 0
"""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)


class Wrong(Exception):
    """A case does not end as it should."""


class Skipped(Exception):
    """A case needs something that this machine does not have."""


def require(condition, text):
    if not condition:
        raise Wrong(text)


def end_with_harness():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def rows_of(run_folder):
    """Returns the rows of metrics.jsonl that have a loss, in the order of the file; none if there is no file yet."""
    path = run_folder / "metrics.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a truncated last line
        if "loss" in row:
            rows.append(row)
    return rows


def process_state(pid):
    """Returns R, S, T, Z, ..., or "" if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def resident_bytes(pid):
    """Returns the memory of a process in RAM; 0 if it has ended."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else 0


def thread_seconds(pid, name):
    """Returns the CPU time that the threads of a process with this name have used."""
    ticks = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            ticks += sum(map(int, (task / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Nodes:
    """A set of nodes, and what has been done to them."""

    def __init__(self, count):
        self.names = [f"node{i}" for i in range(count)]
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="yoke-nodes-"))
        self.environment = dict(os.environ, NODES_DIR=str(self.dir), NODES_OWNER=str(os.getpid()))
        self.touched, self.frozen, self.mounts, self.processes = set(), set(), [], []
        started = self.call("start", str(count), check=False)
        if started.returncode != 0:
            self.call("stop", check=False)
            raise Skipped(started.stderr.strip())
        self.files = {path: path.read_text() for name in self.names for path in (self.hosts(name), self.resolver(name))}

    def call(self, *arguments, check=True):
        done = subprocess.run([HERE / "nodes", *arguments], env=self.environment, capture_output=True, text=True,
                              timeout=HANG_SECONDS)
        if check and done.returncode != 0:
            raise RuntimeError(f"nodes {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def fault(self, kind, node, *arguments):
        self.touched.add(node)
        if kind == "freeze":
            self.frozen.add(node)
        self.call(kind, node, *arguments)

    def thaw(self, node):
        self.frozen.discard(node)
        self.call("thaw", node)

    def hosts(self, node):
        return self.dir / node / "hosts"

    def resolver(self, node):
        return self.dir / node / "resolv.conf"

    def holder(self, node):
        """Returns the number of a process that is always in the namespaces of the node."""
        return int((self.dir / node / "pid").read_text().split()[0])

    def start(self, node, command, **options):
        """Starts a command in a node. It ends with this process at the latest."""
        process = subprocess.Popen([HERE / "nodes", "exec", node, *map(str, command)],
                                   env=self.environment | options.pop("environment", {}), preexec_fn=end_with_harness,
                                   **options)
        self.processes.append(process)
        return process

    def mount(self, node, *arguments):
        """Mounts something that only this node sees. The last argument is the place."""
        done = self.call("exec", node, "mount", *map(str, arguments))
        self.mounts.append((node, str(arguments[-1])))
        return done

    def thaw_all(self):
        for node in list(self.frozen):
            self.thaw(node)

    def heal(self):
        """Undoes everything, and ends all processes."""
        self.thaw_all()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait(HANG_SECONDS)
        self.processes.clear()
        for node in self.touched:
            self.call("heal", node)
        self.touched.clear()
        for node, place in reversed(self.mounts):
            self.call("exec", node, "umount", place)
        self.mounts.clear()
        for path, text in self.files.items():
            path.write_text(text)

    def stop(self):
        self.heal()
        self.call("stop")


class Rank:
    """One process. A thread waits for its end, so that the time of its end is exact."""

    def __init__(self, number, node, process, output):
        self.number, self.node, self.process, self.output = number, node, process, output
        self.started, self.ended, self.code = time.monotonic(), None, None
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self):
        code = self.process.wait()
        self.ended, self.code = time.monotonic(), code

    @property
    def name(self):
        return f"rank {self.number} ({self.node}, process {self.process.pid})"

    def text(self):
        return self.output.read_text(errors="replace")

    def signal(self, number):
        os.kill(self.process.pid, number)

    def has_ended(self):
        return self.ended is not None


class Arrivals(threading.Thread):
    """Watches the TCP connections of the node of rank 0, for the time at which the last rank has connected."""

    def __init__(self, nodes, node, count):
        super().__init__(daemon=True)
        self.table, self.count, self.ending = f"/proc/{nodes.holder(node)}/net/tcp", count, False
        self.last, self.connections = None, 0
        self.start()

    def run(self):
        earlier = self.remote_ends()
        seen = set()
        while not self.ending and self.last is None:
            seen |= self.remote_ends() - earlier
            self.connections = len(seen)
            if len(seen) >= self.count:
                self.last = time.monotonic()
            time.sleep(0.01)

    def remote_ends(self):
        """Returns the other ends of all connections to the port; those of closed ones stay for a minute."""
        try:
            rows = [line.split() for line in pathlib.Path(self.table).read_text().splitlines()[1:]]
        except OSError:
            return set()  # the nodes are being stopped
        return {row[2] for row in rows if row[1].endswith(f":{PORT:04X}") and not row[2].endswith(":0000")}


class Job:
    """A run: its folder, its options and its ranks. Consecutive ranks are on the same node."""

    def __init__(self, bench, world=2, nodes=2, overrides=(), address="node0", environment=None):
        self.bench, self.world, self.num_nodes, self.address = bench, world, nodes, address
        self.overrides = [f"dp_shards={world}", *overrides, *bench.overrides]
        self.environment = bench.environment | (environment or {})
        self.folder = bench.new_folder()
        self.run_folder = self.folder / "runs/r"
        (self.folder / "runs").mkdir()
        self.file = self.folder / "run.toml"
        self.file.write_text(RUN.replace("DATA", str(bench.data)) + f'run.dir = "{self.run_folder}"\n')
        self.ranks, self.arrivals, self.injected = [], None, None

    def node_of(self, rank):
        return self.bench.nodes.names[rank * self.num_nodes // self.world]

    def variables(self, rank):
        node = self.node_of(rank)
        local = [r for r in range(self.world) if self.node_of(r) == node]
        return {"RANK": str(rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(local.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(local)), "MASTER_ADDR": self.address, "MASTER_PORT": str(PORT),
                "OMP_NUM_THREADS": "1", "HOME": str(self.folder), **self.environment}

    def command(self, *overrides, file=None):
        return [BIN / "yoke", "train", file or self.file, *self.overrides, *overrides]

    def start_rank(self, number, *overrides, file=None, environment=None, node=None):
        node = node or self.node_of(number)
        output = self.folder / f"output-{len(self.ranks)}"
        with open(output, "wb") as stream:
            process = self.bench.nodes.start(node, self.command(*overrides, file=file), stdin=subprocess.DEVNULL,
                                             stdout=stream, stderr=stream, cwd=self.folder,
                                             environment=self.variables(number) | (environment or {}))
        rank = Rank(number, node, process, output)
        self.ranks.append(rank)
        if self.arrivals is None:
            self.arrivals = Arrivals(self.bench.nodes, self.node_of(0), self.world)
        return rank

    def start(self, only=None):
        for number in range(self.world) if only is None else only:
            self.start_rank(number)
        return self

    # ---- Progress ----

    def rows(self):
        return rows_of(self.run_folder)

    def losses(self):
        return {row["step"]: row["loss"] for row in self.rows()}

    def step(self):
        return max((row["step"] for row in self.rows()), default=0)

    def wait_for_step(self, step):
        deadline = time.monotonic() + HANG_SECONDS
        while self.step() < step:
            ended = [r for r in self.ranks if r.has_ended()]
            require(not ended, f"a rank ended before step {step}:{self.report()}")
            require(time.monotonic() < deadline, f"no step {step} within {HANG_SECONDS} s:{self.report()}")
            time.sleep(0.02)
        return self

    # ---- The end ----

    def inject(self, fault):
        """Calls `fault` and measures from the moment before."""
        self.injected = time.monotonic()
        fault()

    def wait(self, ranks=None, seconds=HANG_SECONDS):
        """Waits until the ranks have ended."""
        deadline = time.monotonic() + seconds
        for rank in self.ranks if ranks is None else ranks:
            rank.thread.join(max(0, deadline - time.monotonic()))
            require(rank.has_ended(), f"rank {rank.number} has not ended after {seconds:.0f} s:{self.report()}")
        return self

    def seconds(self, ranks=None):
        """Returns the time from the injection until the last of the ranks has ended."""
        return max(r.ended for r in (self.ranks if ranks is None else ranks)) - self.injected

    def seconds_after_arrival(self):
        """Returns the time from the last rank's first connection, or if it is unknown its start, to the end."""
        begin = self.arrivals.last or max(r.started for r in self.ranks)
        return max(r.ended for r in self.ranks) - begin

    def require_codes(self, code, ranks=None):
        for rank in self.ranks if ranks is None else ranks:
            require(rank.code == code, f"rank {rank.number} ends with {rank.code} instead of {code}:{self.report()}")

    def require_text(self, *words, ranks=None):
        for rank in self.ranks if ranks is None else ranks:
            text = rank.text()
            for word in words:
                require(word in text, f"rank {rank.number} does not say '{word}':{self.report()}")

    def exit_record(self):
        path = self.run_folder / "exit.json"
        require(path.exists(), f"there is no exit.json:{self.report()}")
        return json.loads(path.read_text())

    def require_named(self, lost, survivors):
        """Requires that every survivor, and exit.json, name one of the lost ranks first, with its node and process."""
        names = {rank.name for rank in lost}
        for rank in survivors:
            found = re.findall(r"rank \d+ \([^,()]+, process \d+\)", rank.text())
            require(found and found[0] in names,
                    f"rank {rank.number} names {found[:1]} instead of {sorted(names)}:{self.report()}")

    def report(self):
        parts = [""]
        for rank in self.ranks:
            lines = [line for line in rank.text().splitlines() if line.strip()]
            state = f"exit {rank.code}" if rank.has_ended() else f"state {process_state(rank.process.pid)}"
            parts.append(f"  | rank {rank.number} on {rank.node}, {state}:")
            parts += [f"  |   {line[:400]}" for line in lines[-6:]]
        path = self.run_folder / "exit.json"
        if path.exists():
            parts.append(f"  | exit.json: {path.read_text().strip()[:400]}")
        return "\n".join(parts)

    def checkpoints(self):
        return sorted((self.run_folder / "checkpoints").glob("step-*"))

    def close(self):
        if self.arrivals:
            self.arrivals.ending = True
        for rank in self.ranks:
            if not rank.has_ended():
                rank.signal(signal.SIGKILL)
