#!/usr/bin/env python3
"""Measures Python's DTensor like bench/dtensor_dispatch.cpp measures Yoke's: the same operators, sizes and output."""
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

ROUNDS, CALLS = 31, 50
OPERATORS = {
    "add": lambda a, b: torch.add(a, b),
    "mul": lambda a, b: torch.mul(a, b),
    "mm": lambda a, b: torch.mm(a, b),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "t": lambda a, b: a.t(),
    "view": lambda a, b: a.view(16),
    "detach": lambda a, b: a.detach(),
    "silu": lambda a, b: torch.nn.functional.silu(a),
}


def nanoseconds(call, a, b):
    begin = time.perf_counter()
    for _ in range(CALLS):
        call(a, b)
    return 1e9 * (time.perf_counter() - begin) / CALLS


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        for grad in (False, True):
            local = [torch.randn(4, 4) for _ in range(2)]
            distributed = [distribute_tensor(t, mesh, [Replicate()]) for t in local]
            for tensor in (*local, *distributed):
                tensor.requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                for name, call in OPERATORS.items():
                    nanoseconds(call, *distributed)  # warm-up: fills DTensor's cache
                    rounds = [(nanoseconds(call, *local), nanoseconds(call, *distributed)) for _ in range(ROUNDS)]
                    print(name, "grad" if grad else "nograd", *(f"{statistics.median(c):.1f}" for c in zip(*rounds)))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
