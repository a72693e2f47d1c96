#!/usr/bin/env python3
"""Measures the ceiling of every product and kernel of a training step on this device, with torch's own kernels: how
fast the step could be if nothing but these kernels took time.

    bench/gpu/atlas.py [--budget 90] [-o atlas.json]
    bench/gpu/atlas.py --device cpu --tiny     toy sizes on a CPU: only tests this program

Products: all shapes of an 8B, a 1B and a 150M model, forward, dgrad and wgrad, in bf16 and fp8, and wgrad in bf16 with an
fp32 result, written or added to. Kernels: attention by backend, RMSNorm, SwiGLU, rotary embedding, cross entropy, AdamW,
copies, launches and graphs. An operation that the device or this torch lacks becomes a row with the error. Measurements
that do not fit into the budget are left out and listed. Needs torch.
"""
import argparse
import collections
import math
import pathlib
import sys
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent)]
import atlas_kernels  # noqa: E402
import atlas_products  # noqa: E402
from harness import write_json  # noqa: E402
from nvml import Nvml  # noqa: E402
from stopwatch import Stopwatch  # noqa: E402

SLOT, TINY_SLOT = 0.2, 0.002  # seconds of a measurement, without the making of its tensors
HOST_CALLS = 200  # few enough that all of them can wait in the queue of the device


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="default: no limit")
    parser.add_argument("-o", dest="file", type=pathlib.Path, metavar="FILE", help="figures as JSON")
    return parser.parse_args()


def rates(seconds, work):
    """Returns the rates of an operation that takes `seconds`: TFLOP/s, GB/s, or microseconds of a launch."""
    found = {"us": 1e6 * seconds}
    if "flops" in work:
        found["tflops"] = work["flops"] / seconds / 1e12
    if "bytes" in work:
        found["gbps"] = work["bytes"] / seconds / 1e9
    if "launches" in work:
        found["us_per_launch"] = 1e6 * seconds / work["launches"]
    return found


def measure_row(row, make, work, stopwatch):
    """Returns the row with its figures, or with the error."""
    try:
        call = make(stopwatch.device)
        figures = rates(stopwatch.measure(call), work)
        if "launches" in work:
            launches = HOST_CALLS * work["launches"]
            figures["host_us_per_launch"] = 1e6 * stopwatch.host_seconds(call, HOST_CALLS) / launches
    except (RuntimeError, NotImplementedError) as e:
        return {**row, "error": " ".join(str(e).split())[:200]}
    return {**row, **figures}


def all_measurements(tiny):
    # Kernels first: they are few, and the products' less important kinds are the last.
    yield from atlas_kernels.measurements(tiny)
    yield from atlas_products.measurements(tiny)


def measure(options, save):
    """Measures row by row, and calls `save` with all results every second. Returns the results."""
    stopwatch = Stopwatch(options.device, TINY_SLOT if options.tiny else SLOT)
    end, saved = time.monotonic() + options.budget, 0.0
    results = {"torch": torch.__version__, "tiny": options.tiny, "rows": [], "left_out": []}
    for row, make, work in all_measurements(options.tiny):
        if time.monotonic() > end:
            results["left_out"].append(row)
            continue
        results["rows"].append(measure_row(row, make, work, stopwatch))
        if time.monotonic() - saved > 1:
            save(results)
            saved = time.monotonic()
    results["clocks"] = Nvml().state()  # of a device that is still warm
    save(results)
    return results


def figure_text(row):
    if "error" in row:
        return f"not possible: {row['error'][:80]}"
    if "tflops" in row:
        return f"{row['us']:.1f} us, {row['tflops']:.1f} TFLOP/s"
    if "gbps" in row:
        return f"{row['us']:.1f} us, {row['gbps']:.0f} GB/s"
    return f"{row['us_per_launch']:.2f} us a launch on the device, {row['host_us_per_launch']:.2f} us on the host"


def table(results):
    """Returns the lines of a table with a row for each operation and size, and a column for each kind of it."""
    lines = []
    groups = collections.defaultdict(list)
    for row in results["rows"]:
        groups[row["group"], row["model"], row["what"], row["direction"], row["size"]].append(row)
    for (group, *names, size), rows in groups.items():
        name = ", ".join(filter(None, [*names, size]))
        lines.append(f"{group}: {name}: " + "; ".join(f"{row['kind']} {figure_text(row)}".strip() for row in rows))
    if results["left_out"]:
        lines.append(f"left out, because the budget ended: {len(results['left_out'])} measurements")
    return lines


def main():
    options = parse_arguments()

    def save(results):
        if options.file:
            write_json(options.file, {**results, "table": table(results)})

    print("\n".join(table(measure(options, save))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
