#!/usr/bin/env python3
"""The losses that the step `losses` of scripts/gpu_test compares with: 100 steps in fp32 on a CPU, computed beforehand,
because a machine with a GPU has better things to do for several minutes.

    tests/gpu/references.py [--yoke build/release/bin/yoke]     computes all of them again and writes references.jsonl

A reference belongs to the values of KEYS and to the text it was computed from, and is found by their hash. A run with
any other value finds no reference; the error names the key. Uses only the standard library.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE = HERE / "references.jsonl"
STEPS = 100
# The small learning rate keeps the rounding errors of bf16 from growing: losses of a CPU in bf16 and in fp32 differ by at
# most 3.4e-3 within 100 steps, and by 4.4e-2 at 4e-4 without a warmup.
WORDS = (f"train.steps={STEPS}", "train.lr=1e-4", "train.warmup=10", "train.global_batch=1", "data.seq_len=256",
         "metrics.every=1")
MODELS = ("llama-150m", "tiny")  # tiny is for rehearsals
# The keys that change the losses. Those of places, devices and layouts do not, nor does precision.param: the reference
# is in fp32, and runs in other types are compared with it, too.
KEYS = ("seed", "model.family", "model.preset", "model.dim", "model.layers", "model.heads", "model.kv_heads",
        "model.ffn_dim", "model.vocab", "model.tied", "model.rope_theta", "model.norm_eps", "data.format",
        "data.seq_len", "data.order", "data.pad_token", "data.holdout", "train.steps", "train.global_batch",
        "train.optimizer", "train.lr", "train.warmup", "train.schedule", "train.min_lr_factor", "train.betas",
        "train.eps", "train.momentum", "train.weight_decay", "train.decay", "train.clip")


class Unfit(Exception):
    """No reference was computed from the configuration of the run."""


def config_of(shown, text):
    """Returns what a reference depends on. `shown` is the output of `yoke config show --json`, text the data file."""
    config = {key: shown[key]["value"] for key in KEYS}
    return {**config, "data.sha256": hashlib.sha256(pathlib.Path(text).read_bytes()).hexdigest()}


def hash_of(config):
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def read():
    """Returns the references by their hash."""
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return {row["hash"]: row for row in rows}


def find(references, config):
    """Returns the steps of the reference for a configuration: objects with step, loss and grad_norm. Raises Unfit."""
    found = references.get(hash_of(config))
    if found is None or found["config"] != config:
        raise Unfit(f"no carried reference fits: {nearest_difference(references, config)}; run with that value, or compute "
                    "the references again (tests/gpu/references.py)")
    return found["steps"]


def nearest_difference(references, config):
    """Returns how the reference that is most similar differs, in words."""
    differences = [{key: (value, reference["config"].get(key)) for key, value in config.items()
                    if reference["config"].get(key) != value} for reference in references.values()]
    nearest = min(differences, key=len, default={})
    return ", ".join(f"{key} is {own!r}, and {carried!r} in the nearest one" for key, (own, carried) in nearest.items()) \
        or "the file has none, or its hashes are not those of its configurations"


# ---- Computing ----


def words_of(model, text):
    """Returns the arguments of a run, without the device and the precision."""
    return [ROOT / "bench/gpu/llama_150m.toml", "model.family=llama", f"model.preset={model}", f"data.path={text}",
            "data.format=text", *WORDS]


def compute(yoke, model, text, folder):
    """Trains in fp32 on the CPU and returns the reference."""
    words = words_of(model, text)
    shown = subprocess.run([yoke, "config", "show", "--json", *words], check=True, capture_output=True, text=True).stdout
    config = config_of(json.loads(shown), text)
    run = folder / model
    subprocess.run([yoke, "train", *words, "device=cpu", "precision.param=fp32", f"run.dir={run}"], check=True)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    version = subprocess.run([yoke, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {"hash": hash_of(config), "computed": {"date": str(datetime.date.today()), "yoke": version, "precision": "fp32"},
            "config": config, "steps": [{key: row[key] for key in ("step", "loss", "grad_norm")} for row in rows]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=ROOT / "build/release/bin/yoke")
    yoke = parser.parse_args().yoke
    if not os.access(yoke, os.X_OK):
        sys.exit(f"{yoke} does not exist; build it, or name another one with --yoke")
    with tempfile.TemporaryDirectory(prefix="yoke-references-") as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        subprocess.run([ROOT / "scripts/generate_text", text], check=True, stdout=subprocess.DEVNULL)
        references = [compute(yoke.resolve(), model, text, folder) for model in MODELS]
    FILE.write_text("".join(json.dumps(reference) + "\n" for reference in references), encoding="utf-8")


if __name__ == "__main__":
    main()
