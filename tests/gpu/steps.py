"""The steps of scripts/gpu_test. Each takes a Context and returns its figures, or raises Failed or NotHere with a
reason. Uses only the standard library."""
import ctypes
import json
import math
import os
import pathlib
import re
import shutil
import sys

from budget import Step
from context import ROOT, Failed, NotFinished, NotHere, tail
from two_ranks import two_ranks

sys.path.insert(0, str(ROOT / "bench/gpu"))
import references  # noqa: E402
import step_trace  # noqa: E402

CAPTURED = "ptd.cuda_graph=true"
# Largest relative difference of 100 losses in fp32 from those of a CPU: the bound of level L1 after step 20. Other kernels
# add in another order. On an H200 it was 5.0e-6, and bf16 differs by 3.4e-3 on a CPU.
CARRIED_LOSS = 1e-4
CARD_FILE = "card.json"  # what `measure` names the output of card.py
NCCL_TEST = "nccl_gpu_test"
START_SECONDS = 15  # of the time of a step that a program of bench/gpu gets, for starting and for ending in order
# The wait of deepspeed_stub is known: the host's model reads the loss of every micro-batch, because the contract
# returns it as a double.
WAITS_ALLOWED = {"deepspeed_stub"}


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


def read_metrics(run):
    """Returns the rows of a run that have a loss."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "loss" in row]


def doctor(context):
    _, out = context.run([context.yoke, "doctor", "--json"])
    found = {row["what"]: row for row in json.loads(out)}
    broken = [f"{row['what']}: {row['found']}" for row in found.values() if row["verdict"] == "problem"]
    if broken:
        raise Failed("; ".join(broken))
    return {what: found[what]["found"] for what in ("LibTorch", "backends", "device")}


def compare(context, words, cases):
    """Runs yoke compare with cases as its options name them. Returns the level and the largest loss difference of each
    case."""
    report = context.folder / "compare.json"
    report.unlink(missing_ok=True)
    code, out = context.run([context.yoke, "compare", *words, *cases, "--repeats", 1, "--json-file", report,
                             "--timeout", context.seconds_left()])
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
    """Compares runs on the device with the CPU: fp32 must reach level L1, bf16 and fp8 level L2."""
    here = f"device={context.device}"
    cases = ["cpu:device=cpu", f"fp32:{here}", f"bf16:{here},precision.param=bf16",
             f"fp8:{here},precision.param=bf16,precision.product=fp8",
             f"deepspeed_stub:{here},parallel_backend=deepspeed_stub"]
    if context.device == "cuda":
        cases.append(f"captured:{here},{CAPTURED}")
    return compare(context, context.parity(), [word for case in cases for word in ("--case", case)])


def largest_difference(rows, carried):
    """Returns the largest relative difference of the losses, and its step. A loss that is not a number differs by
    infinity."""
    def difference(pair):
        relative = abs(pair[0]["loss"] / pair[1]["loss"] - 1)
        return relative if math.isfinite(relative) else math.inf
    pairs = list(zip(rows, carried, strict=True))
    worst = max(pairs, key=difference)
    return {"largest difference": difference(worst), "at step": worst[0]["step"]}


def losses(context):
    """Compares 100 steps of llama-150m with the carried losses of the CPU in fp32. In fp32 they must agree. In bf16 the
    difference is reported without a verdict, because on an H200 it is larger than on a CPU, and it is not known why."""
    words = references.words_of("tiny" if context.device == "cpu" else "llama-150m", context.text)
    code, out = context.run([context.yoke, "config", "show", "--json", *words])
    if code != 0:
        raise Failed(f"yoke config show ended with {code}: {tail(out)}")
    try:
        carried = references.find(references.read(), references.config_of(json.loads(out), context.text))
    except references.Unfit as e:
        raise Failed(str(e)) from None
    figures = {}
    for dtype, bound in (("fp32", CARRIED_LOSS), ("bf16", math.inf)):
        run = context.folder / f"losses_{dtype}"
        try:
            context.train(*words, f"precision.param={dtype}", f"run.dir={run}")
        except Failed as e:
            e.figures = figures
            raise
        figures[dtype] = largest_difference(read_metrics(run), carried)
        found, step = figures[dtype].values()
        if found > bound:
            raise Failed(f"in {dtype}, the loss of step {step} differs by {found:.1e} from the carried one, more than "
                         f"{bound:g}", figures)
    return figures


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


def tests(context):
    """Runs the other programs of Google Test."""
    programs = [program for program in context.tests if program.name != NCCL_TEST]
    if not programs:
        raise NotHere("no test programs in this prefix")
    figures, bad = {}, []
    for program in programs:
        try:
            figures[program.name], _ = google_test(context, program)
        except NotFinished:
            raise
        except Failed as e:
            bad.append(str(e))
    if bad:
        raise Failed("; ".join(bad), figures)
    if not any(counts.get("passed") for counts in figures.values()):
        raise NotHere(no_gpu())
    return figures


def find_sanitizer():
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]
    if home := os.environ.get("CUDA_HOME"):
        folders.append(f"{home}/bin")
    return shutil.which("compute-sanitizer", path=":".join(folders))


def sanitizer(context):
    if context.device == "cpu":
        raise NotHere("a CPU has no code that compute-sanitizer could check")
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


def small_model(context, *more):
    """Returns the arguments of a run of llama-150m on a text; a rehearsal has a toy in its place."""
    toy = ["model.preset=tiny"] if context.device == "cpu" else []
    return [ROOT / "bench/gpu/llama_150m.toml", f"data.path={context.text}", "data.format=text", *more, *toy]


def trace(context):
    """Checks that a step does not wait for the device before its end, where the results are read."""
    variants = {"ptd": [], "deepspeed_stub": ["parallel_backend=deepspeed_stub"]}
    if context.device == "cuda":
        variants["ptd, captured"] = [CAPTURED]
    figures, bad = {}, []
    for name, words in variants.items():
        run = context.folder / f"trace_{len(figures)}"
        context.train(*small_model(context, "train.steps=12", f"train.global_batch={8 if context.device == 'cuda' else 2}"),
                      *words, f"run.dir={run}", "profile.steps=8,10")
        figures[name] = step_trace.summary(run / "profile/rank_000.json")
        if name not in WAITS_ALLOWED:
            bad += [f"{name}, {wait}" for wait in figures[name]["waits_inside"]]
        if context.device == "cuda" and 0 in figures[name]["launches"]:
            bad.append(f"{name}: a step of the trace launches nothing")
    if bad:
        raise Failed(f"{len(bad)} waits, the first: " + "; ".join(bad[:4]), figures)
    if context.device == "cpu":
        raise NotHere(f"a CPU has no device to wait for; {sum(own['steps'] for own in figures.values())} steps were read")
    return figures


# The settings in which `repeats` trains twice, the second of which must have the same losses.
REPEATED = {"default": [], "deterministic": ["train.deterministic=true"]}


def repeats(context):
    """Trains twice in each setting and reports the first step whose losses are not equal bit for bit. By default,
    kernels that add in any order, such as those of the attention's backward, may make runs differ."""
    figures = {}
    for setting, words in REPEATED.items():
        runs = []
        for name in ("first", "second"):
            run = context.folder / f"repeats_{setting}_{name}"
            context.train(*small_model(context, "train.steps=10", "train.global_batch=2", "metrics.every=1"), *words,
                          f"run.dir={run}")
            runs.append([row["loss"] for row in read_metrics(run)])
        different = [step for step, (first, second) in enumerate(zip(*runs, strict=True), 1) if first != second]
        figures[setting] = {"steps": len(runs[0]), "first different step": different[0] if different else None}
    if step := figures["deterministic"]["first different step"]:
        raise Failed(f"with train.deterministic=true, two runs differ from step {step} on", figures)
    return figures


def read_figures(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def measure(context, program, *words):
    """Runs a program of bench/gpu, which ends within the time of the step and writes its figures after each row."""
    out = context.folder / f"{pathlib.Path(program).stem}.json"
    out.unlink(missing_ok=True)
    toy = ["--device", "cpu", "--tiny"] if context.device == "cpu" else []
    command = [context.require_python(), ROOT / "bench/gpu" / program, *words, *toy, "-o", out]
    try:
        code, text = context.run(command)
        if code != 0:
            raise Failed(f"{program} ended with {code}: {tail(text)}")
    except Failed as e:
        e.figures = read_figures(out)
        raise
    return read_figures(out)


def card(context):
    """Reads the versions, the clocks, and which kernels of attention are chosen."""
    return measure(context, "card.py")


def atlas(context):
    return measure(context, "atlas.py", "--budget", context.seconds_left() - START_SECONDS)


def bench(context, part, *words):
    known = context.folder / CARD_FILE
    words = [*words, *(["--card", known] if known.exists() else [])]
    return measure(context, "bench.py", "--yoke", context.yoke, "--part", part, "--budget",
                   context.seconds_left() - START_SECONDS, *words)


def mfu(context):
    return bench(context, "mfu")


def kernels(context):
    return bench(context, "kernels")


def peer(context):
    return bench(context, "peer", "--rounds", 1 if context.device == "cpu" else 2)


# The most valuable step is the first: kernels and products are tested before whole runs, it must be right before it is
# measured, and the ceilings and rates come before the details.
STEPS = [Step(doctor, on_card=25, on_cpu=10, limit=120),
         Step(card, on_card=20, on_cpu=10, limit=120),
         Step(tests, on_card=90, on_cpu=10, limit=300),
         Step(parity, on_card=110, on_cpu=70, limit=300),
         Step(losses, on_card=45, on_cpu=60, limit=400),
         Step(trace, on_card=60, on_cpu=30, limit=240),
         Step(two_ranks, on_card=110, on_cpu=50, limit=300),
         Step(nccl, on_card=15, on_cpu=5, limit=60),
         Step(atlas, on_card=95, on_cpu=15, limit=180, elastic=True),
         Step(mfu, on_card=150, on_cpu=60, limit=560, elastic=True),
         Step(kernels, on_card=60, on_cpu=30, limit=240, elastic=True),
         Step(repeats, on_card=60, on_cpu=40, limit=240),
         Step(peer, on_card=90, on_cpu=30, limit=560, elastic=True),
         Step(sanitizer, on_card=120, on_cpu=5, limit=240)]
