#!/usr/bin/env python3
"""Prints the properties of the device as one JSON object: name, driver, versions, memory, the rate of a large bf16
matrix product of random numbers (median of 20), and the peak rate in the data sheet if it is known. Needs torch.

    card.py [--device cuda|cpu] [--size 8192]
"""
import argparse
import ctypes
import json
import statistics
import time

import torch

# Dense bf16 TFLOP/s from NVIDIA's data sheets. The first key that is part of the device's name applies.
DATA_SHEET = {"H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "A100": 312, "L40S": 362}
WARMUP, PRODUCTS = 5, 20


def driver_version():
    """Returns the version, like "580.159.03", or "" if NVML does not report it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(text, 96) != 0:
        return ""
    return text.value.decode()


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", type=int, default=8192)
    options = parser.parse_args()
    facts = {"torch": torch.__version__, "name": "CPU", "driver": "", "memory": None, "data_sheet_tflops": None}
    if options.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        sheet = [peak for name, peak in DATA_SHEET.items() if name in properties.name]
        facts.update(name=properties.name, driver=driver_version(), memory=properties.total_memory,
                     cuda=torch.version.cuda, nccl=".".join(map(str, torch.cuda.nccl.version())),
                     data_sheet_tflops=sheet[0] if sheet else None)
    rates = [2 * options.size**3 / seconds / 1e12 for seconds in product_seconds(options.device, options.size)]
    facts.update(gemm_size=options.size, gemm_tflops=statistics.median(rates), gemm_range=[min(rates), max(rates)])
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
