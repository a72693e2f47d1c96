"""The matrix products of a training step, by model and direction, for atlas.py. Needs torch.

A linear layer with a weight [out, in] and T tokens makes three products, all written as [m, k] x [k, n]:

    forward  x[T, in]    x weight^T      m = T,   k = in,  n = out
    dgrad    dy[T, out]  x weight        m = T,   k = out, n = in
    wgrad    dy^T[out,T] x x[T, in]      m = out, k = T,   n = in

Products in bf16 read their operands as training lays them out. The fp8 units multiply only a row-major by a
column-major matrix, so the operands of dgrad and wgrad are transposed beforehand, which is not part of the time.
"""
import dataclasses

import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DIRECTIONS = ("forward", "dgrad", "wgrad")
SMALL = {"q, k, v, o": (1024, 1024), "q k": (1024, 2048), "q k v": (1024, 3072), "gate, up": (1024, 2688),
         "gate up": (1024, 5376), "down": (2688, 1024), "head": (1024, 32000)}
# (tokens, {weight: (in, out)}) of the models of workloads.py. Weights without commas between them are neighbours in memory
# and one matrix. Products with equal sizes are listed once.
MODELS = {
    "8b": (8192, {"q, o": (4096, 4096), "k, v": (4096, 1024), "q k": (4096, 5120), "q k v": (4096, 6144),
                  "gate, up": (4096, 14336), "gate up": (4096, 28672), "down": (14336, 4096), "head": (4096, 128256)}),
    "1b": (16384, {"q, o": (2048, 2048), "k, v": (2048, 512), "q k": (2048, 2560), "q k v": (2048, 3072),
                   "gate, up": (2048, 8192), "gate up": (2048, 16384), "down": (8192, 2048), "head": (2048, 128256)}),
    "150m": (8192, SMALL), "150m, 64k tokens": (65536, SMALL), "150m, 1k tokens": (1024, SMALL),
}
IN_BF16_ONLY = {"150m, 64k tokens", "150m, 1k tokens"}  # the same weights as 150m
TOY = {"toy": (64, {"q": (32, 32), "gate": (32, 96)})}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A way to multiply; `scales` is "" for bf16, else the granularity of the fp8 scales."""

    name: str
    out: torch.dtype = torch.bfloat16
    scales: str = ""
    fast: bool = False  # accumulation in the tensor cores only
    adds: bool = False  # to the result, as gradients of several micro-batches are added
    directions: tuple = DIRECTIONS


KINDS = (Kind("bf16"), Kind("bf16, fp32 out", out=torch.float32, directions=("wgrad",)),
         Kind("bf16, fp32 added", out=torch.float32, adds=True, directions=("wgrad",)),
         Kind("fp8 tensorwise, fast", scales="tensorwise", fast=True), Kind("fp8 tensorwise", scales="tensorwise"),
         Kind("fp8 rowwise, fast", scales="rowwise", fast=True),
         Kind("fp8 rowwise", scales="rowwise"))


def sizes(direction, tokens, inputs, outputs):
    """Returns (m, k, n)."""
    return {"forward": (tokens, inputs, outputs), "dgrad": (tokens, outputs, inputs),
            "wgrad": (outputs, tokens, inputs)}[direction]


def bf16_operands(direction, m, k, n, device):
    """Returns [m, k] and [k, n], laid out as in training."""
    a = torch.randn((k, m) if direction == "wgrad" else (m, k), device=device, dtype=torch.bfloat16)
    b = torch.randn((n, k) if direction == "forward" else (k, n), device=device, dtype=torch.bfloat16)
    return a.t() if direction == "wgrad" else a, b.t() if direction == "forward" else b


def fp8_operands(direction, kind, m, k, n, device):
    """Returns a [m, k] row-major, b [k, n] column-major and their scales. Gradients of tensorwise products are in e5m2,
    everything else in e4m3, as in torchao's recipes."""
    gradient = E5M2 if kind.scales == "tensorwise" and direction != "forward" else E4M3
    a = torch.randn(m, k, device=device).to(gradient)
    b = torch.randn(n, k, device=device).to(E4M3).t()
    shapes = ((m, 1), (1, n)) if kind.scales == "rowwise" else ((), ())
    return a, b, *(torch.ones(shape, device=device) for shape in shapes)


def product(direction, kind, m, k, n, device):
    """Returns a function that multiplies once."""
    if kind.scales:
        a, b, scale_a, scale_b = fp8_operands(direction, kind, m, k, n, device)
        return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=kind.out, use_fast_accum=kind.fast)
    a, b = bf16_operands(direction, m, k, n, device)
    if kind.adds:
        total = torch.zeros(m, n, device=device)
        return lambda: torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    if kind.out is torch.float32:
        return lambda: torch.mm(a, b, out_dtype=torch.float32)
    return lambda: torch.mm(a, b)


def measurements(tiny):
    """Yields (names of the row, function that makes the operation for a device, FLOPs of a call)."""
    for kind in KINDS:
        for model, (tokens, weights) in (TOY if tiny else MODELS).items():
            if kind.scales and model in IN_BF16_ONLY:
                continue
            for weight, (inputs, outputs) in weights.items():
                for direction in kind.directions:
                    m, k, n = sizes(direction, tokens, inputs, outputs)
                    row = {"group": "product", "model": model, "what": weight, "direction": direction, "kind": kind.name,
                           "size": f"{m} x {k} x {n}"}
                    yield (row, lambda device, at=(direction, kind, m, k, n): product(*at, device), {"flops": 2 * m * k * n})
