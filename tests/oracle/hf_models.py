"""Compares a model of transformers with what Yoke makes of its files: logits, training, exports."""
import os
import subprocess

import support

support.use_peers()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from train import ADAMW, CLIP  # noqa: E402
from windows import Windows  # noqa: E402

STEPS, BATCH, SEQ_LEN, HOLDOUT = 10, 4, 32, 0.05
# With a rate of 3e-3, transformers in fp32 is up to 9e-6 away from transformers in fp64 after ten steps; with this one,
# 3e-7.
LR = 1e-3
# Different kernels and orders of summation in fp32 cause errors of 1e-6 of the largest logit and 3e-7 of the loss. A
# wrong rope_theta or epsilon causes 1e-3 and more.
LOGITS, LOSSES = 1e-5, 2e-6
IDS = [1, 7, 300, 7, 0, 258, 31, 319] * 6


class WeightsTest(support.OracleTest):
    def make(self, name, config, dtype=torch.float32, shard="5GB"):
        """Returns a model and its folder. Its random weights are so large that every layer matters."""
        torch.manual_seed(7)
        config.initializer_range = 0.2
        model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
        for key, value in model.named_parameters():
            if value.dim() == 1:  # biases are 0 and norms are 1 otherwise
                torch.nn.init.normal_(value, 1.0 if "norm" in key or "ln_" in key else 0.0, 0.2)
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
        model.eval()
        with torch.no_grad():
            theirs = model(torch.tensor([IDS])).logits[0]
        worst = float((self.our_logits(folder) - theirs).abs().max() / theirs.abs().max())
        print(f"{folder.name}, logits: {worst:.2g} (bound {LOGITS:g})", flush=True)
        self.assertLess(worst, LOGITS)

    def batch(self, read):
        """Returns the tokens and targets that `read` takes from the windows of the text."""
        return read(self.windows(self.text))

    def windows(self, path):
        return Windows(path, SEQ_LEN, HOLDOUT, BATCH)

    def logits(self, model, tokens):
        return model(tokens).logits

    def their_losses(self, model, lr):
        """Returns the losses of ten steps, and the held-out loss after them."""
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **ADAMW)
        losses = []
        for step in range(STEPS):
            tokens, targets = self.batch(lambda windows, step=step: windows.step(step))
            loss = torch.nn.functional.cross_entropy(self.logits(model, tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            tokens, targets = self.batch(lambda windows: windows.held_out())
            logits = self.logits(model, tokens)
        return losses, float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

    def check_training(self, model, folder, ranks, lr=LR, falls_to=0.95, **layout):
        """Trains ten steps in both programs, compares the losses, and returns Yoke's last checkpoint."""
        run = self.train(ranks, model__from=folder, data__seq_len=SEQ_LEN, data__holdout=HOLDOUT, train__steps=STEPS,
                         train__global_batch=BATCH, train__lr=lr, eval__every=STEPS, checkpoint__every=STEPS, **layout)
        lines = support.read_lines(run / "metrics.jsonl")
        ours = [m["loss"] for m in lines if "loss" in m] + [m["eval_loss"] for m in lines if "eval_loss" in m]
        losses, held_out = self.their_losses(model, lr)
        self.assertLess(losses[-1], falls_to * losses[0])
        worst = max(abs(a - b) / b for a, b in zip(ours, [*losses, held_out], strict=True))
        print(f"{folder.name}, {ranks} rank(s), loss: {worst:.2g} (bound {LOSSES:g})", flush=True)
        self.assertLess(worst, LOSSES)
        return run / f"checkpoints/step-{STEPS:08d}"

    def export(self, checkpoint, name, *flags):
        folder = self.folder / name
        subprocess.run([os.environ["YOKE_BIN"] + "/yoke", "checkpoint", "export", checkpoint, "-o", folder, *flags],
                       check=True, capture_output=True, timeout=support.HANG)
        return folder
