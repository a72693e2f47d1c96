#!/usr/bin/env python3
"""Performs the training of `yoke train bench/gpu/llama_150m.toml` in eager PyTorch: the same model, initial values,
tokens and step. It uses bf16 parameters with fp32 master copies, fused AdamW, flash attention by SDPA, foreach
operators for clipping and copies, and pinned batches. The host waits for the device only when it reads the loss, every
--every steps. With --compile, forward, loss and backward are compiled by torch.compile(mode="max-autotune"), which also
captures them as CUDA graphs.

    eager.py --model llama-150m --data tokens.bin --out metrics.jsonl [--device cuda|cpu] [--compile] [...]

Writes a JSON object every --every steps, with the names of Yoke's metrics.jsonl: step, loss, step_seconds (mean since
the previous object) and memory (peak bytes of tensors on the device).
"""
import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
from llama import SHAPES, build  # noqa: E402
from windows import Windows  # noqa: E402

CLIP = 1.0
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="llama-150m")
    parser.add_argument("--data", required=True, help="uint16 token ids")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Trainer:
    def __init__(self, options):
        self.device = options.device
        self.windows = Windows(options.data, options.seq_len, 0.05, options.global_batch, item=np.uint16)
        self.model = build(SHAPES[options.model], options.seq_len, options.seed).to(options.device)
        self.masters = [p.detach().clone() for p in self.model.parameters()]  # copies in fp32
        self.model.to(torch.bfloat16)
        self.model.rope = tuple(table.to(options.device, torch.bfloat16) for table in self.model.rope)
        self.parameters = list(self.model.parameters())
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.compiled = options.compile
        self.loss = torch.compile(self.eager_loss, mode="max-autotune") if options.compile else self.eager_loss
        self.optimizer = torch.optim.AdamW(self.masters, lr=options.lr, fused=True, **ADAMW)

    def batch(self, step):
        on_cpu = self.windows.step(step)
        if self.device == "cpu":
            return on_cpu
        return [t.contiguous().pin_memory().to(self.device, non_blocking=True) for t in on_cpu]

    def eager_loss(self, tokens, targets):
        logits = self.model(tokens)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def step(self, step):
        """Runs a step and returns the loss, which is still on the device."""
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()  # the tensors of the step before may be overwritten
        loss = self.loss(*self.batch(step))
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_([master.grad for master in self.masters], [p.grad for p in self.parameters])
            torch.nn.utils.clip_grad_norm_(self.masters, CLIP)
            self.optimizer.step()
            torch._foreach_copy_(self.parameters, self.masters)
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach()


def main():
    options = parse_arguments()
    trainer = Trainer(options)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    with open(options.out, "w", encoding="utf-8") as out:
        for step in range(1, options.steps + 1):
            loss = trainer.step(step - 1)
            if step % options.every != 0:
                continue
            record = {"step": step, "loss": loss.item()}
            now = time.perf_counter()
            record["step_seconds"], begin = (now - begin) / options.every, now
            if options.device == "cuda":
                record["memory"] = torch.cuda.max_memory_allocated()
            out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
