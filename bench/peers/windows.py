"""The data order of a Yoke run with data.order = "sequential", over the bytes of a text or a file of ids.

Window k is tokens [k * seq_len, (k + 1) * seq_len] of the stream, seq_len + 1 of them: the last is only a
target. The last `holdout` of the windows are kept for evaluation. Sample g is window g, counted round
the training windows, and step s takes samples s * global_batch ... on every layout.
"""
import math

import numpy as np
import torch


def training_windows(tokens, seq_len, holdout):
    """How many windows of a stream of `tokens` tokens are trained on."""
    windows = (tokens - 1) // seq_len
    held_out = math.floor(holdout * windows + 0.5)
    if holdout > 0:
        held_out = max(held_out, 1)
    return windows - held_out


class Windows:
    """One data rank's part of every global batch. item: np.uint8, the bytes of a text, or np.uint16 ids."""

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
        """(tokens, targets), each [sequences, seq_len], of step 0, 1, ..."""
        first = step * self.global_batch + self.first
        begins = [(g % self.count) * self.seq_len for g in range(first, first + self.sequences)]
        rows = torch.stack([self.tokens[b : b + self.seq_len + 1] for b in begins])
        return rows[:, :-1], rows[:, 1:]
