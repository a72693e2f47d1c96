#!/usr/bin/env python3
"""Prints what the device and its libraries are, as one JSON object: name, driver, versions of torch, CUDA, cuDNN and
NCCL, memory, clocks and power, other processes that compute on the device, the kernels that are chosen for attention,
the rate of a large bf16 matrix product of random numbers (median of 20), and the peak rate in the data sheet if it is
known. Needs torch.

    card.py [--device cuda|cpu] [--tiny] [-o FILE]
"""
import argparse
import json
import pathlib
import statistics
import time

import torch

from nvml import Nvml

# Dense bf16 TFLOP/s from NVIDIA's data sheets. The first key that is part of the device's name applies.
DATA_SHEET = {"H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "A100": 312, "L40S": 362}
WARMUP, PRODUCTS = 5, 20
SIZE, TINY_SIZE = 8192, 256
# (batch, heads, heads of keys and values, sequence, width of a head) of the models that are tested and measured.
TOY_ATTENTION = {"tiny": (8, 8, 4, 64, 8)}
ATTENTION = {"8b, s 8192": (1, 32, 8, 8192, 128), "8b, s 1024": (8, 32, 8, 1024, 128), "1b, s 2048": (8, 32, 8, 2048, 64),
             "1b, s 8192": (2, 32, 8, 8192, 64), "150m, s 1024": (8, 16, 16, 1024, 64),
             "150m, 64k tokens": (64, 16, 16, 1024, 64), "150m, 1k tokens": (1, 16, 16, 1024, 64), **TOY_ATTENTION}
CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}  # at::SDPBackend


def attention_choices(device, shapes):
    """Returns the chosen kernel for each shape of attention in bf16. A shape that fails has the error instead."""
    found = {}
    for name, (batch, heads, kv_heads, seq, width) in shapes.items():
        like = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
        q, k, v = (torch.randn(batch, seq, n, width, **like).transpose(1, 2) for n in (heads, kv_heads, kv_heads))
        grouped = heads != kv_heads
        try:
            choice = torch._fused_sdp_choice(q, k, v, None, 0.0, True, enable_gqa=grouped)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            out.sum().backward()
            found[name] = CHOICES.get(choice, str(choice))
        except RuntimeError as e:
            found[name] = f"failed: {' '.join(str(e).split())[:200]}"
    return found


def product_seconds(device, size):
    """Returns the seconds of each product; the host waits for each one."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    seconds = []
    for _ in range(WARMUP + PRODUCTS):
        begin = time.perf_counter()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds[WARMUP:]


def describe(device, tiny):
    size = TINY_SIZE if tiny else SIZE
    nvml = Nvml()
    others = nvml.processes()  # before this process uses the device
    facts = {"torch": torch.__version__, "name": "CPU", "driver": nvml.driver(), "memory": None, "data_sheet_tflops": None,
             "cudnn": torch.backends.cudnn.version(), "other_processes": others}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        sheet = [peak for name, peak in DATA_SHEET.items() if name in properties.name]
        facts.update(name=properties.name, memory=properties.total_memory, cuda=torch.version.cuda,
                     nccl=".".join(map(str, torch.cuda.nccl.version())), data_sheet_tflops=sheet[0] if sheet else None)
    facts["attention"] = attention_choices(device, TOY_ATTENTION if tiny else ATTENTION)
    facts["idle"] = nvml.state()
    rates = [2 * size**3 / seconds / 1e12 for seconds in product_seconds(device, size)]
    facts["busy"] = nvml.state()
    facts.update(gemm_size=size, gemm_tflops=statistics.median(rates), gemm_range=[min(rates), max(rates)])
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("-o", dest="file", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    facts = json.dumps(describe(options.device, options.tiny))
    print(facts)
    if options.file:
        options.file.write_text(facts + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
