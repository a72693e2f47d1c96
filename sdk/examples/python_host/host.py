#!/usr/bin/env python3
"""A host without C++ and without LibTorch: it loads a backend and trains a tiny model, in Python with numpy.

    python3 host.py /absolute/path/of/serial.so [steps]

The model predicts the next letter of a text from the current letter. Block 0 looks up a vector for a letter; block 1
computes a score for every letter from that vector. There is one process with one rank, and everything is fp64. Any
backend works that uses only the callbacks of YokeModel. The Python wheel of Yoke contains the module yoke_trainer.
"""
import sys

import numpy as np
from yoke_trainer import Backend
from yoke_trainer.model import Loss

TEXT = "the quick brown fox jumps over the lazy dog and the lazy dog sleeps. " * 4
LETTERS = sorted(set(TEXT))
DIM, SEQUENCE, SEQUENCES = 6, 16, 8


def initial(param):
    """Returns initial values, which may be any numbers that are the same in every run."""
    k = np.arange(len(LETTERS) * DIM, dtype=np.float64)
    return (np.sin(1 + param * 1000 + k) * 0.3).reshape(len(LETTERS), DIM)


class TinyModel:
    """One parameter in each block. The backend owns the parameters; this class computes."""
    parameters = {"embed.weight": initial(0), "head.weight": initial(1)}
    blocks = [["embed.weight"], ["head.weight"]]
    sequence_length = SEQUENCE

    def forward(self, block, parameters, inputs, carry):
        if block == 0:
            tokens = inputs["tokens"].ravel()
            return parameters["embed.weight"][tokens], tokens
        targets = inputs["targets"].ravel()
        scores = np.exp(carry @ parameters["head.weight"].T)
        slopes = scores / scores.sum(axis=1, keepdims=True)  # probabilities
        rows = np.arange(len(targets))
        loss = Loss(-np.log(slopes[rows, targets]).sum(), len(targets))
        slopes[rows, targets] -= 1  # the array now contains the gradient of the scores
        return loss, (carry, slopes)

    def backward(self, block, parameters, saved, grad):
        if block == 0:
            gradient = np.zeros((len(LETTERS), DIM))
            np.add.at(gradient, saved, grad)
            return {"embed.weight": gradient}, None
        carry, slopes = saved
        return {"head.weight": grad * slopes.T @ carry}, grad * slopes @ parameters["head.weight"]


def micro_batch(step):
    """Returns the batch of a step, all sequences in one micro-batch."""
    ids = np.array([LETTERS.index(x) for x in TEXT])
    starts = (step * SEQUENCES + np.arange(SEQUENCES)) * 7 % (len(ids) - SEQUENCE - 1)
    positions = starts[:, None] + np.arange(SEQUENCE)
    return {"tokens": ids[positions], "targets": ids[positions + 1]}


def train(path, steps):
    """Trains with a backend and returns the losses."""
    backend = Backend(path)
    print(f"{backend.name} {backend.version}: {backend.summary}")
    losses = []
    with backend.start(TinyModel(), global_batch=SEQUENCES, learning_rate=0.05) as training:
        for step in range(1, steps + 1):
            result = training.step([micro_batch(step)])
            losses.append(result.loss)
            if step == 1 or step % 10 == 0:
                print(f"step: {step:3}  loss: {result.loss:.4f}  grad_norm: {result.grad_norm:.3f}")
    return losses


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: host.py /absolute/path/of/backend.so [steps]")
    history = train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 40)
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}")
