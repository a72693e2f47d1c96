#!/usr/bin/env python3
"""Compares what "auto" in a ds_config.json means here with the values that transformers and Accelerate put there.

The file with "auto" is imported beside the values of a run, and so is the file in which the Python function has
replaced "auto" by values. Both must give the same run file.
"""
import copy
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest

import support

support.use_peers()

HIDDEN = {"tiny": 64, "llama3-8b": 4096}
RANKS, MICRO, ACCUMULATION, STEPS, WARMUP = 2, 3, 4, 50, 7
RUN = {"train.global_batch": RANKS * MICRO * ACCUMULATION, "train.micro_batch": MICRO, "dp_shards": RANKS,
       "train.lr": 2e-4, "train.betas": [0.85, 0.97], "train.eps": 1e-7, "train.weight_decay": 0.03, "train.clip": 1.0,
       "train.steps": STEPS, "train.warmup": WARMUP}
AUTO = "auto"
BATCH = {"train_batch_size": AUTO, "train_micro_batch_size_per_gpu": AUTO, "gradient_accumulation_steps": AUTO,
         "gradient_clipping": AUTO}
OPTIMIZER = {"type": "AdamW",
             "params": {"lr": AUTO, "weight_decay": AUTO, "betas": RUN["train.betas"], "eps": RUN["train.eps"]}}
WARM = {"warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO}
SIZES = {"reduce_bucket_size": AUTO, "stage3_prefetch_bucket_size": AUTO, "stage3_param_persistence_threshold": AUTO}
DTYPES = {"fp16": {"enabled": AUTO, "initial_scale_power": 12}, "bf16": {"enabled": AUTO}}
FILES = {
    "stage 1, no optimizer": {**BATCH, **DTYPES, "zero_optimization": {"stage": 1}},
    "stage 2": {**BATCH, **DTYPES, "optimizer": OPTIMIZER, "scheduler": {"type": "WarmupLR", "params": WARM},
                "zero_optimization": {"stage": 2, "reduce_bucket_size": AUTO}},
    "stage 3": {**BATCH, **DTYPES, "optimizer": OPTIMIZER,
                "scheduler": {"type": "WarmupDecayLR", "params": {**WARM, "total_num_steps": AUTO}},
                "zero_optimization": {"stage": 3, **SIZES}},
}


# The keys that only one of the two programs fills, as paths.
ONLY_TRANSFORMERS = ("optimizer.params.betas", "optimizer.params.eps")
ONLY_ACCELERATE = ("zero_optimization.stage3_gather_16bit_weights_on_model_save",)


def fill_as_transformers(config, dtype, hidden):
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    args = types.SimpleNamespace(
        world_size=RANKS, per_device_train_batch_size=MICRO, gradient_accumulation_steps=ACCUMULATION,
        max_grad_norm=RUN["train.clip"], learning_rate=RUN["train.lr"], adam_beta1=RUN["train.betas"][0],
        adam_beta2=RUN["train.betas"][1], adam_epsilon=RUN["train.eps"], weight_decay=RUN["train.weight_decay"],
        save_on_each_node=False, fp16=dtype == "fp16", fp16_full_eval=False, bf16=dtype == "bf16", bf16_full_eval=False,
        get_warmup_steps=lambda steps: WARMUP)
    filled = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    filled.trainer_config_process(args)
    filled.trainer_config_finalize(args, types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=hidden)), STEPS)
    return filled.config


# Writes the configs that Accelerate hands to DeepSpeed. In a process of its own, because both keep state in globals.
ACCELERATE = """
import json, sys, types
import deepspeed, torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler
from accelerate.state import AcceleratorState
cases, run, micro, accumulation = json.loads(sys.argv[1])

class Found(Exception): pass
def initialize(**arguments):
    raise Found(json.dumps(arguments["config_params"], default=str))
deepspeed.initialize = initialize

def fill(config, dtype, hidden):
    AcceleratorState._reset_state(reset_partial_state=True)
    model = torch.nn.Linear(2, 2)
    model.config = types.SimpleNamespace(hidden_size=hidden)
    objects = [model, torch.utils.data.DataLoader(range(64), batch_size=micro)]
    if "optimizer" in config:
        objects.append(DummyOptim(model.parameters(), lr=run["train.lr"], weight_decay=run["train.weight_decay"]))
    if "scheduler" in config:
        objects.append(
            DummyScheduler(objects[-1], total_num_steps=run["train.steps"], warmup_num_steps=run["train.warmup"]))
    plugin = DeepSpeedPlugin(hf_ds_config=config, gradient_accumulation_steps=accumulation)
    accelerator = Accelerator(deepspeed_plugin=plugin, mixed_precision="no" if dtype == "fp32" else dtype)
    try:
        accelerator.prepare(*objects)
    except Found as found:
        return json.loads(str(found))

json.dump([fill(*case) for case in cases], open(sys.argv[2], "w"))
"""


def fill_as_accelerate(cases):
    found = tempfile.NamedTemporaryFile()  # DeepSpeed logs to stdout
    arguments = json.dumps([cases, RUN, MICRO, ACCUMULATION])
    result = subprocess.run(
        [sys.executable, "-c", ACCELERATE, arguments, found.name], capture_output=True, text=True, timeout=support.HANG,
        env={**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "0", "ACCELERATE_USE_DEEPSPEED": "true"})
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    filled = json.load(found)
    for config in filled:
        config["train_batch_size"] *= RANKS  # Accelerate ran on one rank
        del config["steps_per_print"]  # infinity
    return filled


class Auto(support.OracleTest):
    def import_file(self, config, *keys):
        """Returns the run file of a config, as a dictionary with dotted keys."""
        file = self.folder / "ds.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        command = [os.environ["YOKE_BIN"] + "/yoke", "config", "import", file, *keys]
        result = subprocess.run(command, capture_output=True, text=True, timeout=support.HANG)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = (line for line in result.stdout.splitlines() if not line.startswith("#"))
        values = {}
        for line in lines:
            key = line.split(" = ")[0]
            value = tomllib.loads(line)
            for word in key.split("."):
                value = value[word]
            values[key] = value
        values.pop("train.max_micro_batch", None)  # the micro-batch is given as well
        return {"lr_schedule.total_steps": STEPS, **RUN, **values}

    def compare(self, fill, dtypes, presets, further):
        checked = set()
        files = copy.deepcopy(list(FILES.values()))
        for config in files:
            for *sections, key in (path.split(".") for path in further):
                section = functools.reduce(lambda object, name: object.get(name, {}), sections, config)
                section[key] = AUTO
        cases = list(itertools.product(files, dtypes, presets))
        all_filled = fill([(config, dtype, HIDDEN[preset]) for config, dtype, preset in cases])
        for (config, dtype, preset), filled in zip(cases, all_filled, strict=True):
            with self.subTest(config, dtype=dtype, preset=preset):
                self.assertNotIn(json.dumps(AUTO), json.dumps(filled))
                keys = [f"{key}={value}" for key, value in RUN.items()]
                ours = self.import_file(config, f"precision.param={dtype}", f"model.preset={preset}", *keys)
                theirs = self.import_file(filled, f"model.preset={preset}")
                theirs.setdefault("precision.param", dtype)
                self.assertEqual(ours, theirs)
                checked |= {key for key in ours if key.startswith("deepspeed_stub.")}
        self.assertIn("deepspeed_stub.stage3_param_persistence_threshold", checked)

    def test_means_what_transformers_puts_there(self):
        self.compare(lambda cases: [fill_as_transformers(*case) for case in cases], ["fp32", "bf16", "fp16"], HIDDEN,
                     ONLY_TRANSFORMERS)

    def test_means_what_accelerate_puts_there(self):
        self.compare(fill_as_accelerate, ["bf16", "fp16"], ["tiny"], ONLY_ACCELERATE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
