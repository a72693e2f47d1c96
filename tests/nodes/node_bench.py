"""The list of cases, and the nodes and the folder that they use."""
import random
import subprocess
import sys

from node_job import HERE, Job, Nodes

NUM_NODES = 3
# No case asserts how fast a machine is. This limit is several times what detection may take, and well below
# comm.timeout, which ends a run as well.
DETECTION_SECONDS = 30
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
