#!/usr/bin/env python3
"""Checks that Yoke and torchao train alike with products in fp8, from the same parameters and data, in each recipe.

Both emulate the products on the CPU. A sum in another order moves some numbers across a rounding boundary of fp8, and
the difference grows, so only the first step is a sharp test. Torchao itself, started from parameters that differ by
1e-7, has losses that differ by up to 2e-4 in 20 steps with this learning rate, and by up to 4e-3 with 1e-3.

Where such numbers show in the first step in fp32, which depends on the order in which the processor's library adds,
both sides are compared with the same recipe in fp64: Yoke may not be much farther from it than torchao. So they are in
bf16, from the same bf16 parameters, because every operator between the products rounds there, and both sides round
differently: Yoke's SwiGLU rounds once, and its gradients of inputs are added in fp32, torchao's in bf16.
"""
import math
import unittest

import support

support.use_peers()

import llama  # noqa: E402
import torch  # noqa: E402
from windows import Windows  # noqa: E402

try:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup --peers installs it")
    raise SystemExit(support.SKIPPED) from None

STEPS, BATCH, SEQ_LEN, HOLDOUT, SEED, LR, CLIP = 20, 4, 32, 0.05, 7, 3e-4, 1.0
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
# Bounds of the relative difference of losses: of the first step, of any step.
BOUNDS = {"fp32": (1e-4, 1e-3), "bf16": (1e-2, 1e-2)}
EQUAL = 2e-6  # a first step in fp32 in which no number has crossed a boundary of fp8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# How much farther from fp64 than torchao's first step Yoke's may be, and what is near in any case: the effect of a few
# numbers that cross a boundary.
FARTHER, NEAR = 1.5, 5e-5
TORCHAO_NAMES = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise_gw_hp": "rowwise_with_gw_hp"}


def torchao_model(recipe, dtype):
    """Returns the small Llama of bench/peers with torchao's layers, except for the head, as Yoke's default is."""
    model = llama.build(llama.SHAPES["tiny"], SEQ_LEN, SEED).to(dtype)
    config = Float8LinearConfig.from_recipe_name(TORCHAO_NAMES[recipe])
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    # Yoke's scales are powers of two in every recipe.
    config = Float8LinearConfig(**{**fields, "emulate": True, "round_scales_to_power_of_2": True})
    return convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != "lm_head")


def rotate_in_fp32(x, cos, sin, rotate=llama.rotate):
    return rotate(x.to(cos.dtype), cos, sin).to(x.dtype)


def train_torchao(data, recipe, dtype):
    """Returns [(loss, gradient norm)] of all steps. A bf16 model has fp32 master copies, as Yoke's has."""
    model = torchao_model(recipe, dtype)
    masters = [p.detach().float().requires_grad_() for p in llama.build(llama.SHAPES["tiny"], SEQ_LEN, SEED).parameters()]
    optimizer = torch.optim.AdamW(masters, lr=LR, **ADAMW)
    windows = Windows(data, SEQ_LEN, HOLDOUT, BATCH, 0, 1)
    records = []
    for step in range(STEPS):
        tokens, targets = windows.step(step)
        logits = model(tokens).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(masters, CLIP)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        records.append((loss.item(), norm.item()))
    return records


def rounded(matrix, dim, dtype=torch.float8_e4m3fn):
    """Returns what fp8 makes of a matrix in fp64. dim: the one along which elements share a scale; None: all do."""
    largest = torch.finfo(dtype).max
    amax = matrix.abs().max() if dim is None else matrix.abs().amax(dim, keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(largest / amax.clamp_min(1e-12))))
    return (matrix * scale).clamp(-largest, largest).float().to(dtype).double() / scale


class ExactLinear(torch.autograd.Function):
    """A linear layer of a recipe in fp64."""

    @staticmethod
    def forward(ctx, x, weight, recipe):
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        dim = None if recipe == "tensorwise" else 1
        return (rounded(x.flatten(0, -2), dim) @ rounded(weight, dim).T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        x, dy = x.flatten(0, -2), dy.flatten(0, -2)
        if ctx.recipe == "tensorwise":
            dy = rounded(dy, None, torch.float8_e5m2)
            dx, dw = dy @ rounded(weight, None), dy.T @ rounded(x, None)
        elif ctx.recipe == "rowwise":
            dx, dw = rounded(dy, 1) @ rounded(weight, 0), rounded(dy, 0).T @ rounded(x, 0)
        else:
            dx, dw = rounded(dy, 1) @ rounded(weight, None), dy.T @ x
        return dx.view_as(ctx.saved_tensors[0]), dw, None


def exact_first_step(data, recipe, dtype):
    """Returns (loss, gradient norm) of the first step in fp64, with the parameters of a model in dtype."""
    model = llama.build(llama.SHAPES["tiny"], SEQ_LEN, SEED, torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.forward = lambda x, module=module: ExactLinear.apply(x, module.weight, recipe)
    tokens, targets = Windows(data, SEQ_LEN, HOLDOUT, BATCH, 0, 1).step(0)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))


class Fp8(support.OracleTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        llama.rotate = rotate_in_fp32

    def yoke(self, recipe, dtype):
        keys = {"precision__product": "fp8", "precision__fp8_recipe": recipe} if recipe else {}
        run = self.train(1, seed=SEED, model__preset="tiny", data__seq_len=SEQ_LEN, data__holdout=HOLDOUT,
                         train__steps=STEPS, train__global_batch=BATCH, train__lr=LR, precision__param=dtype,
                         precision__reduce="fp32", **keys)
        return [(m["loss"], m["grad_norm"]) for m in support.read_lines(run / "metrics.jsonl")]

    def check(self, recipe, dtype):
        theirs = train_torchao(self.text, recipe, DTYPES[dtype])
        ours = self.yoke(recipe, dtype)
        first, later = BOUNDS[dtype]
        differences = [[abs(a - b) / b for a, b in zip(us, them, strict=True)]
                       for us, them in zip(ours, theirs, strict=True)]
        losses = [difference[0] for difference in differences]
        print(f"{recipe}, {dtype}: first step {losses[0]:.2g}, gradient norm {differences[0][1]:.2g} (bound {first:g}); "
              f"{STEPS} steps {max(losses):.2g} (bound {later:g})", flush=True)
        self.assertLess(ours[-1][0], 0.9 * ours[0][0])
        if dtype == "bf16" or max(differences[0]) > EQUAL:
            self.check_rounding(recipe, dtype, ours[0], theirs[0])
        self.assertLess(max(differences[0]), first)
        self.assertLess(max(losses), later)
        # The test could not fail if the recipe had no effect.
        plain = self.yoke(None, dtype)
        self.assertGreater(max(abs(a[0] - b[0]) / b[0] for a, b in zip(plain, theirs, strict=True)), 1e-5)

    def check_rounding(self, recipe, dtype, ours, theirs):
        exact = exact_first_step(self.text, recipe, DTYPES[dtype])
        for what, us, them, value in zip(("loss", "gradient norm"), ours, theirs, exact, strict=True):
            own, other = abs(us - value) / value, abs(them - value) / value
            print(f"{recipe}, {dtype}, {what}: Yoke differs from fp64 by {own:.2g}, torchao by {other:.2g}", flush=True)
            self.assertLess(own, max(FARTHER * other, NEAR))

    def test_tensorwise(self):
        self.check("tensorwise", "fp32")

    def test_rowwise(self):
        self.check("rowwise", "fp32")

    def test_rowwise_gw_hp(self):
        self.check("rowwise_gw_hp", "fp32")

    def test_tensorwise_in_bf16(self):
        self.check("tensorwise", "bf16")

    def test_rowwise_in_bf16(self):
        self.check("rowwise", "bf16")

    def test_rowwise_gw_hp_in_bf16(self):
        self.check("rowwise_gw_hp", "bf16")


if __name__ == "__main__":
    unittest.main(verbosity=2)
