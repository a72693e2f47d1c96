#!/usr/bin/env python3
"""A Python peer: trains a small Llama with PyTorch's own strategies, Accelerate, DeepSpeed, Megatron Core or nanotron, on
the CPU over Gloo.

    train.py --strategy single|compiled|ddp|fsdp|tp|pp|accelerate|zero1|zero2|zero3|megatron|nanotron [--ranks N] --data TEXT --out metrics.jsonl [...]
    yoke compare run.toml --external "ddp=python bench/peers/train.py --compare --strategy ddp"
    yoke compare run.toml --external "ddp=torchrun --nproc-per-node 2 bench/peers/train.py --compare --strategy ddp"

Starts its own ranks with one thread each (FileStore in a private folder, no port), unless torchrun has started them.
Rank 0 writes one JSON object per step: step, loss (mean over the tokens of the global batch), grad_norm (before
clipping), step_seconds (from fetching the batch to zero_grad; the loss is reduced over the ranks after the run) and
memory (peak resident bytes of rank 0 after the last step).
"""
import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

CLIP = 1.0
ONE_RANK = ("single", "compiled")  # strategies
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", required=True,
                        choices=("single", "compiled", "ddp", "fsdp", "tp", "pp", "accelerate", "zero1", "zero2", "zero3",
                                 "megatron", "nanotron"))
    parser.add_argument("--schedule", default="1f1b", help="for pp: a name of ptd.pp_schedule; one sequence a "
                        "micro-batch. For megatron: ddp, ddp_overlap, distopt or distopt_overlap. For nanotron: "
                        "zero0 or zero1")
    both = parser.add_argument_group("only for megatron and nanotron")
    both.add_argument("--accumulate", type=int, default=1, help="micro-batches of a rank")
    both.add_argument("--pad-token", type=int, help="targets with this id do not count")
    both.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    both.add_argument("--pp", type=int, default=1, help="pipeline ranks")
    both.add_argument("--sequence-parallel", action="store_true", help="for nanotron: tp_mode REDUCE_SCATTER")
    both.add_argument("--tied", action="store_true", help="the head has the weights of the embedding")
    nanotron = parser.add_argument_group("only for nanotron")
    nanotron.add_argument("--pp-engine", choices=("afab", "1f1b"), default="afab")
    nanotron.add_argument("--bucket-mb", type=int, default=25, help="MiB of a bucket")
    nanotron.add_argument("--fp32-sums", action="store_true", help="accumulate_grad_in_fp32; needs --dtype bf16")
    megatron = parser.add_argument_group("only for megatron")
    megatron.add_argument("--bucket-size", type=int, help="elements of a bucket")
    megatron.add_argument("--chunks", type=int, default=1, help="interleaved stages of a pipeline rank")
    megatron.add_argument("--instances", type=int, default=1, help="of the distributed optimizer")
    megatron.add_argument("--average", action="store_true", help="divide by the ranks in the collective")
    megatron.add_argument("--per-token", action="store_true", help="calculate_per_token_loss")
    megatron.add_argument("--recompute", choices=("uniform", "block"), help="full recomputation, 4 layers")
    parser.add_argument("--model", choices=("tiny", "small400", "llama-14m"), default="tiny")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks, except for single and compiled")
    parser.add_argument("--data", help="a text; its bytes are the tokens")
    parser.add_argument("--out", help="file for the metrics of rank 0")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--holdout", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("fp32", "fp64", "bf16"), default="fp32",
                        help="fp64 shows whether it is rounding; bf16 only for nanotron")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--optimizer", choices=("adamw", "adam", "adamw-uncorrected", "adam-uncorrected", "lion", "muon"),
                        default="adamw", help="only for single, compiled, ddp, fsdp and tp")
    parser.add_argument("--warmup", type=int, default=0, help="steps over which the rate rises to --lr")
    parser.add_argument("--compare", action="store_true", help="take all but strategy and ranks from `yoke compare`")
    options = parser.parse_args()
    if options.strategy in ("megatron", "nanotron"):
        kinds = {"megatron": ("ddp", "ddp_overlap", "distopt", "distopt_overlap"), "nanotron": ("zero0", "zero1")}
        if options.schedule not in kinds[options.strategy]:
            parser.error(f"--schedule {options.schedule}; allowed: {', '.join(kinds[options.strategy])}")
        if options.ranks % (options.tp * options.pp) != 0:
            parser.error(f"--tp {options.tp} times --pp {options.pp} must divide --ranks {options.ranks}")
    if not options.compare and not (options.data and options.out):
        parser.error("--data and --out are needed without --compare")
    return options


def launch(ranks):
    """Runs this program once per rank. If one fails, the others are ended. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        env = {**os.environ, "WORLD_SIZE": str(ranks), "PEER_STORE": os.path.join(folder, "store"), "OMP_NUM_THREADS": "1",
               "DS_ACCELERATOR": "cpu", "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, *sys.argv]
        children = [subprocess.Popen(command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                    for rank in range(ranks)]
        try:
            return wait_for(children)
        finally:
            for child in children:
                child.terminate()
                child.wait()


def wait_for(children):
    """Returns 0 when all processes have succeeded, or 1 as soon as one has failed."""
    while True:
        codes = [child.poll() for child in children]
        if any(code not in (None, 0) for code in codes):
            return 1
        if None not in codes:
            return 0
        time.sleep(0.05)


def shard(model, dist):
    """Applies FSDP2 as its tutorial does: to every block, then to the root."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def cut(model, dist):
    """Applies torchtitan's plan for Llama: tensor and sequence parallelism, and a loss over sharded logits."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, parallelize_module)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole, sequence = Replicate(), Shard(1)
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=sequence, output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(input_layouts=(sequence, None, None),
                                            desired_input_layouts=(whole, None, None)),
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=sequence),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,)),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=sequence)})
    return model


def compile_blocks(model, _):
    """Compiles every block, as torchtitan does; the first step waits for the compiler."""
    for layer in model.model.layers:
        layer.compile(fullgraph=True)
    return model


def cut_loss(strategy):
    """Returns the context manager for forward and backward of a step."""
    if strategy != "tp":
        return contextlib.nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


def parallelize(model, strategy, dist):
    if strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    return {"fsdp": shard, "tp": cut, "compiled": compile_blocks}.get(strategy, lambda same, _: same)(model, dist)


def set_rate(optimizer, options, step):
    """Sets the learning rate of step 0, 1, ...: a linear warmup, then constant."""
    for group in optimizer.param_groups:
        group["lr"] = options.lr * min(1, (step + 1) / options.warmup) if options.warmup else options.lr


def train(model, windows, options):
    """Returns [(local mean loss, gradient norm, seconds)] of all steps; tensors are not converted."""
    import torch

    from optimizers import make_optimizer

    strategy = options.strategy
    optimizer = make_optimizer(options.optimizer, model, options.lr, ADAMW)
    records = []
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens, targets = windows.step(step)
        set_rate(optimizer, options, step)
        with cut_loss(strategy):
            logits = model(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
        # PyTorch 2.11's foreach leaves the partial gradients of sequence-parallel norms unclipped.
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False if strategy == "tp" else None)
        optimizer.step()
        optimizer.zero_grad()
        records.append((loss.detach(), norm, time.perf_counter() - begin))
    return records


def train_zero(model, windows, options):
    """Does the same as train() under DeepSpeed, with its defaults except for the stage."""
    import deepspeed
    import torch

    config = {"train_micro_batch_size_per_gpu": windows.sequences, "gradient_clipping": CLIP,
              "zero_optimization": {"stage": int(options.strategy[-1])}}
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True, **ADAMW)
    engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    records = []
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens, targets = windows.step(step)
        set_rate(optimizer, options, step)
        logits = engine(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        engine.backward(loss)
        engine.step()
        records.append((loss.detach(), engine.get_global_grad_norm(), time.perf_counter() - begin))
    return records


def train_accelerate(model, windows, options):
    """Does the same as train() under Accelerate, which reads the ranks from the environment (MULTI_CPU, i.e. DDP)."""
    import accelerate
    import torch

    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.distributed_type == accelerate.DistributedType.MULTI_CPU, accelerator.distributed_type
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True, **ADAMW)
    model, optimizer = accelerator.prepare(model, optimizer)
    records = []
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens, targets = windows.step(step)
        set_rate(optimizer, options, step)
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        records.append((loss.detach(), norm, time.perf_counter() - begin))
    return records


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def mean_losses(records, dist):
    """Returns the mean losses over the global batch: each rank has the same number of tokens, or the same tokens."""
    import torch

    losses = torch.stack([whole(loss).double() for loss, _, _ in records])
    if dist.is_initialized():
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
    return losses.tolist()


def run_rank(options):
    import torch
    import torch.distributed as dist

    from compared import read_run
    from llama import SHAPES, build
    from windows import Windows

    torch.set_num_threads(1)
    options.shape = SHAPES[options.model]
    if options.compare:
        read_run(options)
    rank, ranks = 0, 1
    if options.strategy not in ONE_RANK:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = "file://" + os.environ["PEER_STORE"] if "PEER_STORE" in os.environ else "env://"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    # The data rank and their number. Tensor-parallel ranks are neighbours, and pipeline stages the slowest axis.
    data_ranks = ranks // (options.tp * options.pp)
    part = (0, 1) if options.strategy in ("tp", "pp") else (rank // options.tp % data_ranks, data_ranks)
    windows = Windows(options.data, options.seq_len, options.holdout, options.global_batch, *part)
    dtype = torch.float64 if options.dtype == "fp64" else torch.float32
    if options.strategy == "nanotron":
        import nanotron_peer

        nanotron_peer.compute_on_cpu(dtype)
    if options.strategy == "megatron":
        from megatron_peer import compute_on_cpu, train_megatron

        compute_on_cpu(dtype)
    model = build(options.shape, options.seq_len, options.seed, dtype)
    if options.strategy.startswith("zero"):
        records = train_zero(model, windows, options)
    elif options.strategy == "pp":
        from pipeline import train_pipeline

        records = train_pipeline(model, windows, options, CLIP,
                                 lambda parameters: torch.optim.AdamW(parameters, lr=options.lr, fused=True, **ADAMW))
    elif options.strategy == "megatron":
        records = train_megatron(model, windows, options, set_rate)
    elif options.strategy == "nanotron":
        records = nanotron_peer.train_nanotron(model, windows, options)
    elif options.strategy == "accelerate":
        records = train_accelerate(model, windows, options)
    else:
        records = train(parallelize(model, options.strategy, dist), windows, options)

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    losses = mean_losses(records, dist)
    norms = [float(whole(norm)) for _, norm, _ in records]
    if rank == 0:
        with open(options.out, "w", encoding="utf-8") as out:
            for step, (loss, norm, (_, _, seconds)) in enumerate(zip(losses, norms, records), start=1):
                record = {"step": step, "loss": loss, "grad_norm": norm, "step_seconds": seconds, "memory": memory}
                out.write(json.dumps(record) + "\n")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return 0


def main():
    options = parse_arguments()
    if options.strategy in ONE_RANK or "RANK" in os.environ:
        return run_rank(options)
    return launch(options.ranks)


if __name__ == "__main__":
    sys.exit(main())
