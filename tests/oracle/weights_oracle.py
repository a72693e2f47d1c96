#!/usr/bin/env python3
"""Checks weights in both directions: Yoke loads and trains models of transformers, and transformers loads exports."""
import json
import os
import subprocess
import unittest

import support

support.use_peers()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from train import ADAMW, CLIP  # noqa: E402
from windows import Windows  # noqa: E402

STEPS, BATCH, SEQ_LEN, HOLDOUT, LR = 10, 4, 32, 0.05, 3e-3
# Different kernels and orders of summation in fp32 cause errors of 1e-6 of the largest logit and 3e-7 of the loss. A
# wrong rope_theta or epsilon causes 1e-3 and more.
LOGITS, LOSSES = 1e-5, 2e-6
IDS = [1, 7, 300, 7, 0, 258, 31, 319] * 6
UNTIED = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
          "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False, "rms_norm_eps": 1e-4,
          "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}
TIED = {**UNTIED, "num_hidden_layers": 2, "num_key_value_heads": 6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


class Weights(support.OracleTest):
    def make(self, name, dtype=torch.float32, shard="5GB", **shape):
        """Returns a model and its folder. Its random weights are so large that every layer matters."""
        torch.manual_seed(7)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(initializer_range=0.2, **shape)).to(dtype)
        folder = self.folder / name
        model.save_pretrained(folder, max_shard_size=shard)
        return self.open(folder, torch.float32), folder

    def open(self, folder, dtype="auto"):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def our_logits(self, folder):
        command = [os.environ["YOKE_BIN"] + "/../tests/print_logits", folder, *map(str, IDS)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=support.HANG)
        self.assertEqual(result.returncode, 0, result.stderr)
        return torch.from_numpy(np.array([line.split() for line in result.stdout.splitlines()], np.float32))

    def check_logits(self, model, folder):
        with torch.no_grad():
            theirs = model(torch.tensor([IDS])).logits[0]
        worst = float((self.our_logits(folder) - theirs).abs().max() / theirs.abs().max())
        print(f"{folder.name}, logits: {worst:.2g} (bound {LOGITS:g})", flush=True)
        self.assertLess(worst, LOGITS)

    def their_losses(self, model):
        windows = Windows(self.text, SEQ_LEN, HOLDOUT, BATCH)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, **ADAMW)
        losses = []
        for step in range(STEPS):
            tokens, targets = windows.step(step)
            loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def check_training(self, model, folder, ranks, **layout):
        """Trains ten steps in both programs, compares the losses, and returns Yoke's last checkpoint."""
        run = self.train(ranks, model__from=folder, data__seq_len=SEQ_LEN, data__holdout=HOLDOUT, train__steps=STEPS,
                         train__global_batch=BATCH, train__lr=LR, checkpoint__every=STEPS, **layout)
        ours = [m["loss"] for m in support.read_lines(run / "metrics.jsonl")]
        theirs = self.their_losses(model)
        self.assertLess(theirs[-1], 0.9 * theirs[0])
        worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
        print(f"{folder.name}, {ranks} rank(s), loss: {worst:.2g} (bound {LOSSES:g})", flush=True)
        self.assertLess(worst, LOSSES)
        return run / f"checkpoints/step-{STEPS:08d}"

    def export(self, checkpoint, name, *flags):
        folder = self.folder / name
        subprocess.run([os.environ["YOKE_BIN"] + "/yoke", "checkpoint", "export", checkpoint, "-o", folder, *flags],
                       check=True, capture_output=True, timeout=support.HANG)
        return folder

    def test_untied_grouped_queries_in_shards(self):
        model, folder = self.make("untied", shard="50KB", **UNTIED)
        self.assertGreater(len(list(folder.glob("*.safetensors"))), 1)
        self.check_logits(model, folder)
        self.check_training(model, folder, 2, dp_shards=2)

    def test_tied(self):
        model, folder = self.make("tied", **TIED)
        self.check_logits(model, folder)
        self.check_training(model, folder, 1)

    def test_weights_of_half_the_size(self):
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            model, folder = self.make(name, dtype=dtype, **TIED)
            self.check_logits(model, folder)

    def test_a_config_of_transformers_4(self):
        model, folder = self.make("old", **UNTIED)
        config = json.loads((folder / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None
        config["torch_dtype"] = config.pop("dtype")
        (folder / "config.json").write_text(json.dumps(config))
        self.check_logits(model, folder)

    def test_exports_open_there_with_equal_logits(self):
        for name, shape in (("from-untied", UNTIED), ("from-tied", TIED)):
            model, folder = self.make(name, **shape)
            checkpoint = self.check_training(model, folder, 1)
            plain = self.open(self.export(checkpoint, name + "-out"))
            self.assertEqual(plain.dtype, torch.float32)
            self.check_logits(plain, checkpoint)
            sharded = self.open(self.export(checkpoint, name + "-shards", "--max-shard-size", "50KB"))
            half = self.open(self.export(checkpoint, name + "-bf16", "--dtype", "bf16"))
            self.assertEqual(half.dtype, torch.bfloat16)
            for key, value in plain.state_dict().items():
                self.assertTrue(torch.equal(value, sharded.state_dict()[key]), key)
                self.assertTrue(torch.equal(value.bfloat16(), half.state_dict()[key]), key)

    def test_step_0_is_what_the_run_starts_from(self):
        model, folder = self.make("start", **UNTIED)
        run = self.train(2, model__from=folder, dp_shards=2, data__seq_len=SEQ_LEN, train__steps=0, train__global_batch=BATCH,
                         checkpoint__every=1)
        exported = self.open(self.export(run / "checkpoints/step-00000000", "start-out"))
        for key, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, exported.state_dict()[key]), key)


if __name__ == "__main__":
    unittest.main(verbosity=2)
