"""The optimizers of a run file in PyTorch: its own AdamW and Adam, and plain ones for what it does not have."""
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


def make_optimizer(name, parameters, lr, settings):
    """Returns an optimizer. settings: betas, eps and weight_decay."""
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}.get(name)
    if kind is None:
        return Plain(parameters, name, lr, **settings)
    return kind(parameters, lr=lr, fused=True, **settings)
