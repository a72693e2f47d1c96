"""Pipelines of torch.distributed.pipelining, for train.py."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

# The schedules that run over Gloo, by the names of ptd.pp_schedule, and the stages of each rank.
SCHEDULES = {"gpipe": ("GPipe", 1), "1f1b": ("1F1B", 1), "interleaved": ("Interleaved1F1B", 2),
             "looped_bfs": ("LoopedBFS", 2), "zb_interleaved": ("InterleavedZeroBubble", 2)}


class Part(nn.Module):
    """Consecutive blocks of the model: the embedding is block 0, the head the last one."""

    def __init__(self, model, first, end):
        super().__init__()
        layers = model.model.layers
        self.embed_tokens = model.model.embed_tokens if first == 0 else None
        self.layers = nn.ModuleList(layers[i - 1] for i in range(max(first, 1), min(end, len(layers) + 1)))
        last = end == len(layers) + 2
        self.norm, self.lm_head = (model.model.norm, model.lm_head) if last else (None, None)
        self.rope = model.rope

    def forward(self, x):
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        for layer in self.layers:
            x = layer(x, *self.rope)
        return x if self.lm_head is None else self.lm_head(self.norm(x))


def even_cut(blocks, stages):
    """Returns the number of blocks of each stage; the first stages, which have the look-up, get one more."""
    return [blocks // stages + (s < blocks % stages) for s in range(stages)]


def clip(parameters, bound):
    """Clips by the norm over all ranks, and returns it. clip_grad_norm_ knows nothing of stages."""
    squares = torch.stack([p.grad.square().sum() for p in parameters]).sum().double()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    scale = (bound / (norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad.mul_(scale)
    return norm


def train_pipeline(model, windows, options, clip_norm, optimizer_of):
    """Returns [(loss, gradient norm, seconds)] of all steps. The loss is that of the whole batch, times the number of
    ranks, on the rank that computes it, and 0 on the others."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name, chunks = SCHEDULES[options.schedule]
    sizes = even_cut(options.shape.layers + 2, ranks * chunks)
    stages = [PipelineStage(Part(model, sum(sizes[:s]), sum(sizes[:s + 1])), s, ranks * chunks, torch.device("cpu"))
              for s in range(rank, ranks * chunks, ranks)]
    tokens_of_step = options.global_batch * options.seq_len

    def loss_of(logits, targets):
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / tokens_of_step

    schedule = get_schedule_class(name)(stages if chunks > 1 else stages[0], options.global_batch, loss_fn=loss_of,
                                        scale_grads=False)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = optimizer_of(parameters)
    records = []
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens, targets = windows.step(step)
        losses = []
        inputs = (tokens,) if rank == 0 else ()
        last = {"target": targets, "losses": losses} if rank == ranks - 1 else {}
        schedule.step(*inputs, **last)
        norm = clip(parameters, clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        loss = sum(losses, torch.zeros((), dtype=norm.dtype)).detach() * ranks
        records.append((loss, norm, time.perf_counter() - begin))
    return records
