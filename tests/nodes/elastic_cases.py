"""Cases of node_faults.py: `yoke train --nnodes MIN:MAX`, one launcher on each machine."""
import signal
import subprocess
import time

from node_bench import DETECTION_SECONDS, case
from node_job import BIN, HANG_SECONDS, PORT, Job, Rank, require

STEPS = 240
# Another number of ranks sums in another order.
TOLERANCE = {"fp32": 2e-6, "fp64": 1e-12}


class Elastic(Job):
    """A run whose launchers this class starts; `ranks` are the launchers."""

    def __init__(self, bench, nnodes, *overrides, steps=STEPS):
        super().__init__(bench, world=2)
        self.nnodes = nnodes
        # The steps are long enough for a machine to come while they are done.
        self.overrides = [f"train.steps={steps}", "checkpoint.every=20", "checkpoint.keep=100", "data.seq_len=256",
                          "model.layers=4", "launch.elastic_wait=2", *overrides, *bench.overrides]

    def start_machine(self, number, environment=None):
        output = self.folder / f"output-{len(self.ranks)}"
        command = self.command() + ["--nnodes", self.nnodes, "--node-rank", number, "--nproc", "1", "--restarts", "3",
                                    "--master", f"node0:{PORT}"]
        with open(output, "wb") as stream:
            process = self.bench.nodes.start(
                f"node{number}", command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=self.folder,
                environment={"OMP_NUM_THREADS": "1", "HOME": str(self.folder)} | self.environment | (environment or {}))
        self.ranks.append(Rank(number, f"node{number}", process, output))
        return self.ranks[-1]

    def wait_until(self, condition, what):
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            require(time.monotonic() < deadline, f"{what} does not happen:{self.report()}")
            time.sleep(0.02)

    def wait_for_text(self, launcher, text, count=1):
        self.wait_until(lambda: launcher.text().count(text) >= count, f"'{text}'")

    def wait_for_progress(self, steps=20):
        target = self.step() + steps
        self.wait_until(lambda: self.step() >= target, f"step {target}")


def require_equal_losses(job, calm, precision):
    found, wanted = job.losses(), calm.losses()
    require(found.keys() == wanted.keys(), f"the steps differ: {len(found)}, {len(wanted)}")
    worst = max(abs(found[step] - wanted[step]) / abs(wanted[step]) for step in wanted)
    require(worst <= TOLERANCE[precision], f"the losses differ by {worst:.2e}:{job.report()}")
    return worst


@case("fp32", "fp32", short=True)
@case("fp64", "fp64")
def elastic_crash(bench, precision):
    """Node1 crashes, the run continues on node0 alone, and node1 comes back."""
    # At the usual learning rate, hundreds of steps amplify the rounding of fp32 beyond any useful tolerance.
    keys = [f"precision.param={precision}", "train.lr=1e-5"]
    job = Elastic(bench, "1:2", *keys)
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_for_progress(30)
    bench.nodes.fault("crash", "node1")
    job.wait([second])
    job.wait_for_text(first, "starting the ranks of 1 machine: 0 (node0)")
    job.wait_for_progress()
    bench.nodes.call("heal", "node1")
    third = job.start_machine(1)
    job.wait_for_text(first, "machine 1 (node1", 1)
    job.wait_for_text(first, "starting the ranks of 2 machines: 0 (node0), 1 (node1)", 2)
    job.wait([first, third]).require_codes(0, [first, third])
    job.require_text("has come; the ranks save", ranks=[first])
    calm = Elastic(bench, "2:2", *keys)
    for number in (0, 1):
        calm.start_machine(number)
    calm.wait().require_codes(0)
    return f"{require_equal_losses(job, calm, precision):.1e}"


@case("node1", "node1")
@case("node2", "node2", short=True)
def elastic_cut(bench, node):
    """A cable is cut and repaired while the launcher and its ranks live; their machine takes part again."""
    job = Elastic(bench, "1:3", "train.global_batch=6", steps=1000000)
    launchers = [job.start_machine(number) for number in range(3)]
    job.wait_for_text(launchers[0], "starting the ranks of 3 machines")
    job.wait_for_progress()
    bench.nodes.fault("cut", node)
    job.wait_for_text(launchers[0], "starting the ranks of 2 machines")
    job.wait_for_progress()
    bench.nodes.call("heal", node)
    job.wait_for_text(launchers[0], "starting the ranks of 3 machines", 2)
    job.wait_for_progress()
    launchers[2].signal(signal.SIGTERM)
    job.wait().require_codes(75)


@case("node0-crashes")
def elastic_without_machine_0(bench):
    """Machine 0 must take part: without it, the others end."""
    job = Elastic(bench, "1:2", "launch.join_timeout=5")
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_for_progress()
    job.inject(lambda: bench.nodes.fault("crash", "node0"))
    job.wait([first, second], DETECTION_SECONDS).require_codes(5, [second])
    job.require_text("machine 0 cannot be reached at node0", "launch.join_timeout", ranks=[second])
    return job.seconds([second])


@case("comes-back")
def elastic_machine_0(bench):
    """Machine 0 crashes and is started again; the launcher of node1 has waited for it."""
    job = Elastic(bench, "2:2", "checkpoint.resume=auto")
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_until(job.checkpoints, "a checkpoint")
    bench.nodes.fault("crash", "node0")
    job.wait([first])
    bench.nodes.call("heal", "node0")
    third = job.start_machine(0)
    job.wait([second, third]).require_codes(0, [second, third])
    job.require_text("resumed from", ranks=[third])


@case("frozen")
def elastic_freeze(bench):
    """A launcher that is stopped is not chosen, although its kernel still acknowledges packets."""
    job = Elastic(bench, "1:2")
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_for_progress()
    bench.nodes.fault("freeze", "node1")
    job.wait_for_text(first, "starting the ranks of 1 machine: 0 (node0)")
    job.wait_for_progress()
    bench.nodes.thaw("node1")
    job.wait().require_codes(0)
    require("2 machines" in second.text(), job.report())


@case("noise", [("noise", "1")] * 3)
@case("idle", [("idle", "1100")])
def elastic_strangers(bench, attacks):
    """Strangers at the port of the launchers disturb neither the meeting nor the run."""
    job = Elastic(bench, "1:2", steps=1000000)
    for kind, argument in attacks:
        bench.strangers(kind, "node0", PORT + 1, argument, stdout=subprocess.DEVNULL)
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_for_text(first, "starting the ranks of 2 machines")
    job.wait_for_progress(50)
    second.signal(signal.SIGTERM)
    job.wait().require_codes(75)


@case("handshake")
def elastic_secret(bench):
    """A machine with a wrong secret is refused, and does not keep the others from starting."""
    job = Elastic(bench, "1:2")
    files = [job.folder / "right", job.folder / "wrong"]
    for file in files:
        file.write_text(file.name * 8)
        file.chmod(0o600)
    first, second = [job.start_machine(i, {"YOKE_SECRET_FILE": str(file)}) for i, file in enumerate(files)]
    job.wait([second], DETECTION_SECONDS).require_codes(2, [second])
    job.require_text("has another secret than this machine", ranks=[second])
    job.wait([first]).require_codes(0, [first])


def processes_of(job):
    """Returns the processes of the run that still live."""
    found = subprocess.run(["pgrep", "-f", f"{BIN}/yoke.*{job.folder}"], capture_output=True, text=True)
    return found.stdout.split()


@case("launcher-of-node1")
def elastic_launcher(bench):
    """The launcher of node1 is killed and comes again at once: that counts as a loss, and the run continues."""
    job = Elastic(bench, "1:2")
    first, second = job.start_machine(0), job.start_machine(1)
    job.wait_for_progress()
    second.signal(signal.SIGKILL)
    third = job.start_machine(1)
    job.wait([first, third]).require_codes(0, [first, third])
    job.require_text("2 machines", ranks=[third])
    require(not processes_of(job), f"these processes live on: {processes_of(job)}")
