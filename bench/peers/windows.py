"""The data order of a Yoke run with data.order = "sequential", over the bytes of a text or a file of ids.

Window k holds the tokens [k * seq_len, (k + 1) * seq_len] of the stream. These are seq_len + 1 tokens, and the last
one is only a target. The share `holdout` at the end of the windows is kept for evaluation. Sample g is window g
modulo the number of training windows, and step s takes the samples from s * global_batch on, in every layout.
"""
import math

import numpy as np
import torch


def training_windows(tokens, seq_len, holdout):
    """Returns the number of training windows of a stream of `tokens` tokens."""
    windows = (tokens - 1) // seq_len
    held_out = math.floor(holdout * windows + 0.5)
    if holdout > 0:
        held_out = max(held_out, 1)
    return windows - held_out


class Windows:
    """The part of every global batch that belongs to one data rank. item: np.uint8 for the bytes of a text, np.uint16
    for ids."""

    def __init__(self, path, seq_len, holdout, global_batch, rank=0, ranks=1, item=np.uint8):
        self.tokens = torch.from_numpy(np.fromfile(path, item).astype(np.int64))
        self.seq_len = seq_len
        self.count = training_windows(len(self.tokens), seq_len, holdout)
        self.global_batch = global_batch
        self.sequences = global_batch // ranks
        self.first = rank * self.sequences
        if global_batch % ranks != 0:
            raise SystemExit(f"global batch {global_batch} is not divisible by {ranks} ranks")
        if self.count < global_batch:
            raise SystemExit(f"{path} has {self.count} training windows, fewer than the global batch {global_batch}")

    def step(self, step):
        """Returns (tokens, targets), each [sequences, seq_len], of step 0, 1, ..."""
        first = step * self.global_batch + self.first
        begins = [(g % self.count) * self.seq_len for g in range(first, first + self.sequences)]
        rows = torch.stack([self.tokens[b : b + self.seq_len + 1] for b in begins])
        return rows[:, :-1], rows[:, 1:]

    def held_out(self):
        """Returns (tokens, targets) of all complete global batches of the held-out part."""
        windows = (len(self.tokens) - 1) // self.seq_len
        last = windows - (windows - self.count) % self.global_batch
        rows = torch.stack([self.tokens[k * self.seq_len : (k + 1) * self.seq_len + 1] for k in range(self.count, last)])
        return rows[:, :-1], rows[:, 1:]
