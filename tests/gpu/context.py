"""What the steps of scripts/gpu_test share: the programs, the time limit, and processes that never outlive their step.

Some programs put their own children into sessions of their own, where a signal to a process group does not reach
them. So this process adopts orphans (a "child subreaper"), and kills its children by their numbers until there are
none. Uses only the standard library.
"""
import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]  # root of the repository, or share/yoke of an installation
PR_SET_CHILD_SUBREAPER = 36
GRACE = 10  # seconds for which a program may end its own children after an interrupt


class Failed(Exception):
    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures


class NotFinished(Failed):
    """The step was ended at its deadline."""


class NotHere(Exception):
    """The machine lacks something that the step needs."""


@dataclasses.dataclass
class Context:
    yoke: pathlib.Path
    tests: list       # paths of test programs
    torch_lib: str
    python: str       # a Python that has torch; "" if there is none
    text: pathlib.Path
    folder: pathlib.Path
    device: str       # "cuda", or "cpu" for a rehearsal without a GPU
    deadline: float = 0

    def seconds_left(self):
        return max(1, int(self.deadline - time.monotonic()))

    def environment(self, more):
        search = ":".join(filter(None, (self.torch_lib, os.environ.get("LD_LIBRARY_PATH"))))
        # A rehearsal shares the CPU with other work, where threads that wait for each other must not keep a core busy.
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} if self.device == "cpu" else {}
        return {**os.environ, "YOKE_TORCH_LIB": self.torch_lib, "LD_LIBRARY_PATH": search,
                "YOKE_BIN": str(self.yoke.parent), **threads, **more}

    def start(self, words, more=None):
        return subprocess.Popen([str(word) for word in words], env=self.environment(more or {}), cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                start_new_session=True)

    def finish(self, process):
        """Waits for a process and returns (exit code, output). Raises NotFinished after the deadline of the
        step."""
        try:
            out, _ = process.communicate(timeout=self.seconds_left())
        except subprocess.TimeoutExpired:
            raise NotFinished(f"not finished in time; last lines: {tail(end(process))}") from None
        return process.returncode, out

    def run(self, words, more=None):
        return self.finish(self.start(words, more))

    def train(self, *words, more=None, prefix=()):
        """Runs yoke train, which must succeed, and returns its output."""
        code, out = self.run([*prefix, self.yoke, "train", *words, f"device={self.device}"], more)
        if code != 0:
            raise Failed(f"yoke train ended with {code}: {tail(out)}")
        return out

    def parity(self):
        """Returns the arguments of a short run of configs/parity.toml."""
        return [ROOT / "configs/parity.toml", f"data.path={self.text}"]

    def require_python(self):
        """Returns the Python that has torch."""
        if not self.python:
            raise NotHere("no Python with torch; YOKE_TORCH_LIB names LibTorch alone")
        return self.python


def tail(text, lines=3):
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:]) or "nothing was printed"


# ---- Ending processes ----


def adopt_orphans():
    """Makes this process the parent of every descendant whose own parent has ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def running_processes():
    """Returns {number: number of the parent} of the processes of this machine that have not ended."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        if state not in "ZX":
            parents[int(path.parent.name)] = int(parent)
    return parents


def children():
    return [pid for pid, parent in running_processes().items() if parent == os.getpid()]


def kill_descendants():
    """Kills all processes below this one and returns how many there were. The children of a killed process become those
    of this one, so killing children until there are none kills all. The second look finds a process that was adopted
    during the first."""
    killed = set()
    while running := children() or children():
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        killed.update(running)
        time.sleep(0.02)  # a killed process stays in /proc until the kernel has freed its memory
    return len(killed)


def end(process):
    """Ends a process with all its descendants and returns its output. An interrupt is sent first, so that it can end
    its own children and write what it has."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE)[0]
    except subprocess.TimeoutExpired:
        kill_descendants()
        return process.communicate()[0]
