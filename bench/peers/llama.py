"""The Llama of configs/ in plain PyTorch: the model that the Python peers train.

It has RMSNorm, rotate-half RoPE, grouped-query attention, SwiGLU and no biases. The parameters have the same names
as in transformers' LlamaForCausalLM. Initial values are computed from a counter (`initial_values`), so they have the
same bits in every layout, in every peer and in Yoke.
"""
import dataclasses
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """The keys of `[model]` in a run file."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self):
        return self.dim // self.heads


# small400 has 399 parameters of a few thousand elements each.
SHAPES = {
    "tiny": Shape(dim=64, layers=12, heads=8, kv_heads=4, ffn_dim=256, vocab=1024),
    "llama-14m": Shape(dim=128, layers=6, heads=8, kv_heads=4, ffn_dim=512, vocab=32000),
    "llama-150m": Shape(dim=1024, layers=12, heads=16, kv_heads=16, ffn_dim=2688, vocab=32000),
    "small400": Shape(dim=32, layers=44, heads=4, kv_heads=2, ffn_dim=64, vocab=256),
}


def rotate(x, cos, sin):
    """Applies the rotary position embedding to x [batch, heads, seq, head_dim]; the two halves of a head are paired."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rope_tables(shape, seq_len, dtype):
    """Returns (cos, sin), each [seq_len, head_dim]."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=dtype, device="cpu") / shape.head_dim
    angle = torch.outer(torch.arange(seq_len, dtype=dtype, device="cpu"), 1.0 / shape.rope_theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim = shape.head_dim
        self.grouped = shape.heads != shape.kv_heads
        kv_dim = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k_proj = nn.Linear(shape.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(shape.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(shape.dim, shape.dim, bias=False)

    def heads_of(self, projection, x):
        batch, seq, _ = x.shape
        return projection(x).view(batch, seq, -1, self.head_dim).transpose(1, 2)

    def forward(self, x, cos, sin):
        q = rotate(self.heads_of(self.q_proj, x), cos, sin)
        k = rotate(self.heads_of(self.k_proj, x), cos, sin)
        v = self.heads_of(self.v_proj, x)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up_proj = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down_proj = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)


class Llama(nn.Module):
    def __init__(self, shape, seq_len, dtype):
        super().__init__()
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.dim, shape.vocab, bias=False)
        self.rope = rope_tables(shape, seq_len, dtype)  # not buffers, which some strategies would shard or broadcast

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, *self.rope)
        return self.lm_head(self.model.norm(x))


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    return value


def uniform_counter(name, seed, count):
    """Returns `count` doubles in [0, 1): the splitmix64 finaliser of a counter keyed by name and seed."""
    key = np.uint64(fnv1a64(name) ^ seed)
    x = key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(40)).astype(np.float64) / 2**24


def initial_values(name, count, layers, seed):
    """Returns the float32 values of parameter `name`, row-major."""
    if "norm" in name:
        return np.ones(count, np.float32)
    std = 0.02
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2 * layers)
    return ((2 * uniform_counter(name, seed, count) - 1) * math.sqrt(3.0) * std).astype(np.float32)


def build(shape, seq_len, seed, dtype=torch.float32):
    """Returns the initialised model. In fp64 it also starts from float32 values."""
    with torch.device("meta"):
        model = Llama(shape, seq_len, dtype).to(dtype)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = initial_values(name, parameter.numel(), shape.layers, seed)
            parameter.copy_(torch.from_numpy(values).view_as(parameter))
    return model
