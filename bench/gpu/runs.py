"""Runs yoke and the peer for bench.py, and reads what they logged."""
import array
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import tomllib

from harness import run_program

HERE = pathlib.Path(__file__).resolve().parent
WARMUP_LINES = 2  # first logged intervals, which are left out: kernels are loaded and chosen, graphs captured


@dataclasses.dataclass
class Logged:
    """The figures that one run logged, without its first lines."""

    losses: dict   # loss by step
    seconds: list  # seconds of a step, as the mean of each logged interval
    peak: int | None  # peak bytes of the device
    flops_per_token: float | None = None
    tokens_per_step: int | None = None


def read_log(path, device):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "loss" in row]
    if len(rows) <= WARMUP_LINES:
        raise SystemExit(f"{path} has {len(rows)} lines; more than {WARMUP_LINES} are needed")
    last = rows[-1]
    run = Logged({row["step"]: row["loss"] for row in rows}, [row["step_seconds"] for row in rows[WARMUP_LINES:]],
                 last["memory"] if device == "cuda" else None)
    if "tflops" in last:
        run.flops_per_token = last["tflops"] * 1e12 / last["tps"]
        run.tokens_per_step = last["tokens"] // last["step"]
    return run


class Runner:
    def __init__(self, yoke, device, tiny, folder):
        self.yoke = yoke
        self.device = device
        self.tiny = tiny
        self.folder = pathlib.Path(folder)
        self.count = 0
        self.threads = 1 if tiny else os.cpu_count()
        self.tokens = 1 << (16 if tiny else 20)  # length of the data

    def version(self):
        return subprocess.run([self.yoke, "--version"], check=True, capture_output=True, text=True).stdout.strip()

    def overrides(self, workload, more):
        return {"device": self.device, "data.path": self.data(workload.vocab), **workload.overrides(self.tiny), **more}

    def config(self, workload, more):
        """Returns the keys of the run file and the overrides as one flat dict."""
        tables = tomllib.loads(workload.run_file.read_text(encoding="utf-8"))
        values = {f"{table}.{key}": value for table, entries in tables.items() if isinstance(entries, dict)
                  for key, value in entries.items()}
        return {**values, **self.overrides(workload, more)}

    def data(self, vocab):
        """Writes a file of token ids, the same on every machine; smaller ids are more frequent, as in a text."""
        vocab = min(vocab, 256) if self.tiny else vocab
        path = self.folder / f"tokens_{vocab}.bin"
        if not path.exists():
            rng = random.Random(1)
            with open(path, "wb") as file:
                array.array("H", (int(vocab ** rng.random()) - 1 for _ in range(self.tokens))).tofile(file)
        return path

    def words(self, workload, more):
        return [workload.run_file, *(f"{key}={value}" for key, value in self.overrides(workload, more).items())]

    def train(self, workload, more):
        """Runs `yoke train` and returns its run folder."""
        self.count += 1
        run = self.folder / f"run{self.count}"
        command = [self.yoke, "train", *self.words(workload, more), f"run.dir={run}"]
        run_program(f"yoke train {workload.run_file.name}", command, run.with_suffix(".log"), threads=self.threads)
        return run

    def logged(self, workload, more):
        return read_log(self.train(workload, more) / "metrics.jsonl", self.device)

    def predicted(self, workload, more):
        """Returns the memory of a rank in bytes, as `yoke plan` predicts it without a run."""
        command = [self.yoke, "plan", "--json", *self.words(workload, more)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise SystemExit(f"yoke plan {workload.run_file.name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)["forecast"]["ranks"][0]["peak_bytes"]

    def eager(self, workload, compiled):
        """Runs the same steps in PyTorch, eager or compiled."""
        config = self.config(workload, {})
        self.count += 1
        out = self.folder / f"eager{self.count}.jsonl"
        flags = {"--model": config["model.preset"], "--data": config["data.path"], "--out": out, "--device": self.device,
                 "--steps": config["train.steps"], "--every": config["metrics.every"],
                 "--seq-len": config["data.seq_len"], "--global-batch": config["train.global_batch"]}
        command = [sys.executable, HERE / "eager.py", *(word for pair in flags.items() for word in pair),
                   *(["--compile"] if compiled else [])]
        run_program("eager.py", command, out.with_suffix(".log"), threads=self.threads)
        return read_log(out, self.device)
