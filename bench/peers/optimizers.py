"""The optimizers of a run file in PyTorch: its own AdamW and Adam, and plain ones for what it does not have."""
import unittest.mock

import torch


class Plain(torch.optim.Optimizer):
    """Lion, and AdamW and Adam without bias correction."""

    def __init__(self, parameters, name, lr, betas, eps, weight_decay):
        self.name = name
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, group)

    def update(self, p, g, group):
        lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
        state = self.state[p]
        m, v = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p))
        if self.name == "adam-uncorrected":
            g = g + decay * p
        else:
            p.mul_(1 - lr * decay)
        if self.name == "lion":
            p.sub_(lr * torch.sign(torch.lerp(g, m, beta1)))
            state["m"] = torch.lerp(g, m, beta2)
            return
        state["m"], state["v"] = torch.lerp(g, m, beta1), torch.lerp(g * g, v, beta2)
        p.sub_(lr * state["m"] / (state["v"].sqrt() + group["eps"]))


class Muon:
    """PyTorch's Muon for the matrices between the embedding and the head, and its AdamW for the rest.

    PyTorch orthogonalizes in bf16, whatever the type of the gradients is. Here it keeps their type, so that results can
    be compared in fp64.
    """

    def __init__(self, model, lr, momentum, betas, eps, weight_decay):
        hidden, rest = [], []
        for name, p in model.named_parameters():
            outer = "embed_tokens" in name or "lm_head" in name
            (rest if outer or p.dim() != 2 else hidden).append(p)
        self.parts = (torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, momentum=momentum,
                                       adjust_lr_fn="match_rms_adamw"),
                      torch.optim.AdamW(rest, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True))
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self):
        with unittest.mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            for part in self.parts:
                part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


MUON_MOMENTUM = 0.95


def make_optimizer(name, model, lr, settings):
    """Returns an optimizer. settings: betas, eps and weight_decay."""
    if name == "muon":
        return Muon(model, lr, MUON_MOMENTUM, **settings)
    parameters = model.parameters()
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}.get(name)
    if kind is None:
        return Plain(parameters, name, lr, **settings)
    return kind(parameters, lr=lr, fused=True, **settings)
