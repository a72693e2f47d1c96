"""The steps of scripts/gpu_test. Each takes a Context and returns its figures, or raises Failed or NotHere with a
reason. Uses only the standard library. No process that a step starts outlives the step."""
import ctypes
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]  # root of the repository, or share/yoke of an installation
sys.path.insert(0, str(ROOT / "bench/gpu"))
import step_trace  # noqa: E402

CAPTURED = "ptd.cuda_graph=true"
NCCL_TEST = "nccl_gpu_test"


class Failed(Exception):
    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures


class NotHere(Exception):
    """The machine lacks something that the step needs."""


@dataclasses.dataclass
class Context:
    yoke: pathlib.Path
    tests: list       # paths of test programs
    torch_lib: str
    text: pathlib.Path
    folder: pathlib.Path
    device: str       # "cuda", or "cpu" for a trial run without a GPU
    deadline: float = 0

    def environment(self, more):
        search = ":".join(filter(None, (self.torch_lib, os.environ.get("LD_LIBRARY_PATH"))))
        return {**os.environ, "YOKE_TORCH_LIB": self.torch_lib, "LD_LIBRARY_PATH": search,
                "YOKE_BIN": str(self.yoke.parent), **more}

    def start(self, words, more=None):
        return subprocess.Popen([str(word) for word in words], env=self.environment(more or {}), cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                start_new_session=True)

    def finish(self, process):
        """Waits for a process and returns (exit code, output). Raises Failed after the deadline of the step."""
        try:
            out, _ = process.communicate(timeout=max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"not finished in time; last lines: {tail(end(process))}") from None
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


def end(process):
    """Ends a process and returns its output. An interrupt is sent first, so that it can end its own children."""
    for signal_number, grace in ((signal.SIGINT, 60), (signal.SIGKILL, None)):
        os.killpg(process.pid, signal_number)
        try:
            return process.communicate(timeout=grace)[0]
        except subprocess.TimeoutExpired:
            pass
    return ""


def tail(text, lines=3):
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:]) or "nothing was printed"


def no_gpu():
    """Returns the reason why no GPU can be used, or ""."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the NVIDIA driver cannot be used (cuInit)"
    return "" if count.value > 0 else "the NVIDIA driver sees no device"


# ---- Steps ----


def doctor(context):
    _, out = context.run([context.yoke, "doctor", "--json"])
    found = {row["what"]: row for row in json.loads(out)}
    broken = [f"{row['what']}: {row['found']}" for row in found.values() if row["verdict"] == "problem"]
    if broken:
        raise Failed("; ".join(broken))
    return {what: found[what]["found"] for what in ("LibTorch", "backends", "device")}


def compare(context, words, cases):
    """Runs yoke compare. Returns the level and the largest loss difference of each case."""
    report = context.folder / "compare.json"
    report.unlink(missing_ok=True)
    flags = [word for case in cases for word in ("--case", case)]
    code, out = context.run([context.yoke, "compare", *words, *flags, "--repeats", 1, "--json-file", report,
                             "--timeout", max(1, int(context.deadline - time.monotonic()))])
    if not report.exists():
        raise Failed(f"yoke compare ended with {code}: {tail(out)}")
    found = json.loads(report.read_text(encoding="utf-8"))["cases"]
    figures = {case["name"]: case["failure"] or {"level": case["verdict"]["level"], "loss": case["verdict"]["loss"]}
               for case in found}
    bad = [f"{case['name']} {case['failure'] or case['verdict']['level']}" for case in found if not case["passed"]]
    if bad:
        raise Failed("; ".join(bad), figures)
    return figures


def parity(context):
    """Compares runs on the device with the CPU: fp32 must reach level L1, bf16 level L2."""
    here = f"device={context.device}"
    cases = ["cpu:device=cpu", f"fp32:{here}", f"bf16:{here},precision.param=bf16",
             f"deepspeed_stub:{here},parallel_backend=deepspeed_stub"]
    if context.device == "cuda":
        cases.append(f"captured:{here},{CAPTURED}")
    return compare(context, context.parity(), cases)


def losses(context):
    """Compares 100 steps of llama-150m in bf16 with the CPU in fp32: they must reach level L2."""
    words = [ROOT / "bench/gpu/llama_150m.toml", f"data.path={context.text}", "data.format=text", "data.seq_len=256",
             "train.global_batch=2"]
    if context.device == "cpu":
        words = [*words, "model.preset=tiny"]
    return compare(context, [*words, "--steps", 100],
                   ["cpu:device=cpu,precision.param=fp32", f"bf16:device={context.device}"])


def google_test(context, program, more=None):
    """Runs a program of Google Test. Returns ({passed, skipped, failed}, output)."""
    code, out = context.run([program], more)
    counts = dict(re.findall(r"^\[  (PASSED|SKIPPED|FAILED)  ?\] (\d+) test", out, re.MULTILINE))
    if code != 0:
        failed = re.findall(r"^\[  FAILED  \] (\S+?\.\S+?),?(?: where .*)?$", out, re.MULTILINE)
        raise Failed(f"{program.name} ended with {code}: {', '.join(dict.fromkeys(failed)) or tail(out)}")
    return {verdict.lower(): int(count) for verdict, count in counts.items()}, out


def nccl(context):
    """Runs NCCL with a group of one rank."""
    programs = [program for program in context.tests if program.name == NCCL_TEST]
    if not programs:
        raise NotHere(f"no {NCCL_TEST} in this prefix")
    counts, out = google_test(context, programs[0], {"NCCL_DEBUG": "VERSION"})
    if counts.get("skipped"):
        raise NotHere(no_gpu())
    version = re.search(r"NCCL version (\S+)", out)
    return {**counts, "version": version.group(1) if version else "unknown"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def two_ranks(context):
    """Trains with two ranks that share one GPU. NCCL refuses two ranks on the same GPU of a host, so each rank has a
    different host id, as if on two machines."""
    run = context.folder / "two_ranks"
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port()), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    words = [context.yoke, "train", *context.parity(), "train.steps=3", "comm.timeout=120", f"run.dir={run}",
             f"device={context.device}"]
    ranks = [context.start(words, {**common, "RANK": str(rank), "NCCL_HOSTID": f"rank{rank}"}) for rank in range(2)]
    try:
        ends = [context.finish(process) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                end(process)
    bad = [f"rank {rank} ended with {code}: {tail(out)}" for rank, (code, out) in enumerate(ends) if code != 0]
    if bad:
        raise NotHere("; ".join(bad))
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {"loss": last["loss"], "comm": last["comm"]}


def tests(context):
    """Runs the other programs of Google Test."""
    programs = [program for program in context.tests if program.name != NCCL_TEST]
    if not programs:
        raise NotHere("no test programs in this prefix")
    figures, bad = {}, []
    for program in programs:
        try:
            figures[program.name], _ = google_test(context, program)
        except Failed as e:
            bad.append(str(e))
    if bad:
        raise Failed("; ".join(bad), figures)
    return figures


def find_sanitizer():
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]
    if home := os.environ.get("CUDA_HOME"):
        folders.append(f"{home}/bin")
    return shutil.which("compute-sanitizer", path=":".join(folders))


def sanitizer(context):
    tool = find_sanitizer()
    if tool is None:
        raise NotHere("compute-sanitizer is not found")
    figures = {}
    for backend in ("ptd", "deepspeed_stub"):
        # Without the caching allocator every tensor has its own allocation, so every overrun is detected.
        out = context.train(*context.parity(), "train.steps=2", "model.layers=2", f"parallel_backend={backend}",
                            more={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, prefix=[tool, "--target-processes", "all"])
        summaries = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", out)]
        if not summaries or sum(summaries) > 0:
            errors = re.findall(r"^=+ ((?:Invalid|Program hit|Out-of).*)$", out, re.MULTILINE)
            raise Failed(f"{backend}: error summaries {summaries or 'none'}; {'; '.join(errors[:3]) or tail(out, 1)}")
        figures[backend] = {"errors": sum(summaries)}
    return figures


def trace(context):
    """Checks that a step does not wait for the device before its end, where the results are read."""
    variants = {"ptd": [], "deepspeed_stub": ["parallel_backend=deepspeed_stub"]}
    model = ["train.steps=12", "train.global_batch=8"]
    if context.device == "cuda":
        variants["ptd, captured"] = [CAPTURED]
    else:
        model = ["train.steps=12", "train.global_batch=2", "model.preset=tiny"]
    figures, bad = {}, []
    for name, words in variants.items():
        run = context.folder / f"trace_{len(figures)}"
        context.train(ROOT / "bench/gpu/llama_150m.toml", f"data.path={context.text}", "data.format=text", *model, *words,
                      f"run.dir={run}", "profile.steps=8,10")
        figures[name] = step_trace.summary(run / "profile/rank_000.json")
        bad += [f"{name}, {wait}" for wait in figures[name]["waits_inside"]]
        if context.device == "cuda" and 0 in figures[name]["launches"]:
            bad.append(f"{name}: a step of the trace launches nothing")
    if bad:
        raise Failed(f"{len(bad)} waits, the first: " + "; ".join(bad[:4]), figures)
    if context.device == "cpu":
        raise NotHere(f"a CPU has no device to wait for; {sum(own['steps'] for own in figures.values())} steps were read")
    return figures


def bench(context):
    if importlib.util.find_spec("torch") is None:
        raise NotHere(f"{sys.executable} has no torch for the peer")
    out = context.folder / "bench.json"
    toy = ["--device", "cpu", "--tiny", "--rounds", 1] if context.device == "cpu" else []
    code, text = context.run([sys.executable, ROOT / "bench/gpu/bench.py", "--yoke", context.yoke, "-o", out, *toy])
    figures = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
    if code != 0:
        raise Failed(f"bench.py ended with {code}: {tail(text)}", figures)
    return figures


@dataclasses.dataclass
class Step:
    run: object
    limit: int  # seconds

    @property
    def name(self):
        return self.run.__name__


STEPS = [Step(doctor, 60), Step(parity, 180), Step(nccl, 60), Step(two_ranks, 200), Step(tests, 300), Step(trace, 180),
         Step(sanitizer, 300), Step(losses, 480), Step(bench, 580)]
