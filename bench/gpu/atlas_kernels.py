"""The operations of a training step besides the products, for atlas.py. Needs torch.

Bytes are what an ideal kernel reads and writes: every input and every output once.
"""
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from card import ATTENTION, TOY_ATTENTION

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}
# (tokens, width, width of queries and keys, width of the feed-forward layer, vocabulary)
MODELS = {"8b": (8192, 4096, 5120, 14336, 128256), "1b": (16384, 2048, 2560, 8192, 128256),
          "150m": (8192, 1024, 2048, 2688, 32000), "150m, 64k tokens": (65536, 1024, 2048, 2688, 32000),
          "150m, 1k tokens": (1024, 1024, 2048, 2688, 32000)}
TOY_MODELS = {"toy": (64, 32, 64, 96, 128)}
HEAD = 64  # width of a head; the time does not depend on it
LOSS_TOKENS = 2048  # rows of logits of the measured losses
PARAMETERS, TOY_PARAMETERS = 1 << 28, 1 << 12
GRAPH_NODES = 1000
BF16 = torch.bfloat16


def random(*shape, device, dtype=BF16, grad=False):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=grad)


def forward_and_backward(inputs, forward):
    """Returns (function of a forward, function of a backward of that forward)."""
    out = forward(*inputs)
    gradient = torch.ones_like(out)
    leaves = [x for x in inputs if x.requires_grad]
    return lambda: forward(*inputs), lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


# ---- Makers of operations; each takes a device and returns a function that performs the operation once ----


def attention(shape, backend, direction):
    def make(device):
        batch, heads, kv_heads, seq, width = shape
        q, k, v = (random(batch, seq, n, width, device=device, grad=True) for n in (heads, kv_heads, kv_heads))

        def forward(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                      is_causal=True, enable_gqa=heads != kv_heads)
        return forward_and_backward((q, k, v), forward)[direction == "backward"]
    return make


def norm(tokens, width, direction):
    def make(device):
        inputs = random(tokens, width, device=device, grad=True), random(width, device=device, grad=True)
        return forward_and_backward(inputs, lambda x, w: F.rms_norm(x, (width,), w, 1e-5))[direction == "backward"]
    return make


def swiglu(tokens, width, direction):
    def make(device):
        inputs = [random(tokens, width, device=device, grad=True) for _ in range(2)]
        return forward_and_backward(inputs, lambda gate, up: F.silu(gate) * up)[direction == "backward"]
    return make


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotary(tokens, elements, direction):
    """Queries and keys are one tensor."""
    def make(device):
        x = random(tokens, elements // HEAD, HEAD, device=device, grad=True)
        cos, sin = (random(tokens, 1, HEAD // 2, device=device) for _ in range(2))
        return forward_and_backward((x,), lambda x: rotate(x, cos, sin))[direction == "backward"]
    return make


def loss(tokens, vocabulary, direction):
    def make(device):
        logits = random(tokens, vocabulary, device=device, grad=True)
        targets = torch.randint(vocabulary, (tokens,), device=device)
        return forward_and_backward((logits,), lambda x: F.cross_entropy(x.float(), targets))[direction == "backward"]
    return make


def adamw(count):
    def make(device):
        parameter = random(count, device=device, dtype=torch.float32, grad=True)
        parameter.grad = random(count, device=device, dtype=torch.float32)
        return torch.optim.AdamW([parameter], lr=1e-6, fused=True).step
    return make


def copy(count):
    def make(device):
        source, target = (random(count, device=device, dtype=torch.float32) for _ in range(2))
        return lambda: target.copy_(source)
    return make


def tiny_kernel(device):
    x = torch.zeros(1, device=device)
    return lambda: x.add_(1)


def graph(device):
    if device != "cuda":
        raise NotImplementedError("a CPU has no graphs")
    call = tiny_kernel(device)
    call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(GRAPH_NODES):
            call()
    return recorded.replay


# ---- What is measured ----


def attention_rows(tiny):
    for name, shape in (TOY_ATTENTION if tiny else ATTENTION).items():
        batch, heads, _, seq, width = shape
        forward = 2 * batch * heads * seq * seq * width  # two products, of which the causal mask leaves half
        for backend_name, backend in BACKENDS.items():
            for direction, flops in (("forward", forward), ("backward", 2.5 * forward)):
                row = {"group": "attention", "model": name, "what": "attention", "direction": direction,
                       "kind": backend_name, "size": " x ".join(map(str, shape))}
                yield row, attention(shape, backend, direction), {"flops": flops}


def elementwise_rows(tiny):
    for model, (tokens, width, heads, ffn, vocabulary) in (TOY_MODELS if tiny else MODELS).items():
        rows = min(tokens, LOSS_TOKENS)
        for what, make, sizes, item, moved in (("rms_norm", norm, (tokens, width), 2, (2, 3)),
                                               ("silu * up", swiglu, (tokens, ffn), 2, (3, 5)),
                                               ("rotary q k", rotary, (tokens, heads), 2, (2, 2)),
                                               ("cross entropy", loss, (rows, vocabulary), 2, (1, 2))):
            for direction, times in zip(("forward", "backward"), moved, strict=True):
                row = {"group": "elementwise", "model": model, "what": what, "direction": direction, "kind": "bf16",
                       "size": " x ".join(map(str, sizes))}
                yield row, make(*sizes, direction), {"bytes": times * item * sizes[0] * sizes[1]}


def memory_rows(tiny):
    count = TOY_PARAMETERS if tiny else PARAMETERS
    for what, make, of_element in (("copy", copy, 8), ("AdamW", adamw, 28)):
        row = {"group": "memory", "model": "", "what": what, "direction": "", "kind": "fp32", "size": str(count)}
        yield row, make(count), {"bytes": of_element * count}


def launch_rows():
    for what, make, launches in (("kernel of one element", tiny_kernel, 1),
                                 (f"graph of {GRAPH_NODES} kernels", graph, GRAPH_NODES)):
        row = {"group": "launch", "model": "", "what": what, "direction": "", "kind": "", "size": ""}
        yield row, make, {"launches": launches}


def measurements(tiny):
    """Yields (names of the row, function that makes the operation for a device, work of a call)."""
    yield from launch_rows()
    yield from memory_rows(tiny)
    yield from attention_rows(tiny)
    yield from elementwise_rows(tiny)
