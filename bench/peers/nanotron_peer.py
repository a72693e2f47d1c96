"""nanotron 0.4 on the CPU, for train.py: its trainer, DDP, ZeRO and fp32 accumulation on the Llama of llama.py.

nanotron computes on GPUs with flash-attn only. `compute_on_cpu` makes its requests for CUDA mean the CPU, and
`make_modules` puts modules of PyTorch's own operators in the place of flash-attn. Gloo has no average, so sums are
divided. In fp64 it also keeps what nanotron would compute in fp32, so that fp64 tells rounding from a defect. The
mathematics and the communication are otherwise those of nanotron.

nanotron stores queries and keys with the two halves of a head interleaved. `fill` permutes their rows, which changes no
result.
"""
import contextlib
import importlib.util
import os
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist
import yaml
from torch.nn import functional as F

import megatron_peer


class Done:
    """A collective that is complete."""

    def wait(self):
        pass


def compute_on_cpu(dtype):
    megatron_peer.compute_on_cpu(dtype)
    tensor = torch.Tensor
    if dtype is torch.float64:
        to, norm = tensor.to, torch.linalg.vector_norm

        def wide(value):
            return torch.float64 if value is torch.float32 else value

        tensor.to = lambda self, *args, **kwargs: to(
            self, *map(wide, args), **{key: wide(value) for key, value in kwargs.items()})
        torch.linalg.vector_norm = lambda x, *args, dtype=None, **kwargs: norm(x, *args, dtype=torch.float64, **kwargs)
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    all_reduce = dist.all_reduce

    def reduce(values, op=dist.ReduceOp.SUM, group=None, async_op=False):
        average = op == dist.ReduceOp.AVG
        all_reduce(values, op=dist.ReduceOp.SUM if average else op, group=group)
        if average:
            values.detach().div_(dist.get_world_size(group))
        return Done() if async_op else None

    def reduce_many(tensors, op=dist.ReduceOp.SUM, group=None, async_op=False):
        for values in tensors:
            reduce(values, op=op, group=group)
        return Done() if async_op else None

    dist.all_reduce, dist.all_reduce_coalesced = reduce, reduce_many

    # A stream orders a send before what follows, and nobody waits for it. On the CPU two ranks that wait for their sends
    # would wait for each other.
    isend, under_way = dist.isend, []

    def send(values, dst=None, group=None, tag=0):
        under_way[:] = [(work, kept) for work, kept in under_way if not work.is_completed()]
        kept = values.detach().clone()
        under_way.append((isend(kept, dst, group=group, tag=tag), kept))
        return Done()

    dist.send = dist.isend = send


class Rotary(torch.nn.Module):
    """The rotary positions of flash-attn on interleaved halves, with tables in the dtype of the run."""

    tables = None  # (cos, sin), each [seq_len, head_dim / 2]

    def __init__(self, *_, **__):
        super().__init__()

    def turn(self, x):
        cos, sin = (table[None, :, None] for table in self.tables)
        first, second = x[..., ::2], x[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
        return turned.to(x.dtype)

    def forward(self, q, kv):
        return self.turn(q), torch.stack((self.turn(kv[:, :, 0]), kv[:, :, 1]), 2)


def attention(q, k, v, cu_seqlens_q, causal=False, softmax_scale=None, **_):
    sequences = cu_seqlens_q.numel() - 1
    q, k, v = (t.reshape(sequences, -1, *t.shape[-2:]).transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale,
                                         enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


def rms_norm(x, weight, bias, eps=1e-6, **_):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def make_modules():
    """Makes the modules of flash-attn that nanotron imports."""
    contents = {
        "flash_attn": {}, "flash_attn.bert_padding": {}, "flash_attn.layers": {}, "flash_attn.ops": {},
        "flash_attn.ops.triton": {}, "flash_attn.layers.rotary": {"RotaryEmbedding": Rotary},
        "flash_attn.flash_attn_interface": {"flash_attn_varlen_func": attention, "flash_attn_with_kvcache": attention},
        "flash_attn.ops.triton.layer_norm": {"layer_norm_fn": rms_norm}}
    for name, members in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__dict__.update(members, __path__=[])


def import_logging():
    """Imports nanotron.logging without two names that it needs for annotations only: all modules of the wheel import
    one another in a circle through them."""
    from nanotron import distributed  # noqa: F401

    spec = importlib.util.find_spec("nanotron.logging")
    with open(spec.origin, encoding="utf-8") as source:
        text = source.read()
    for line in ("from nanotron.config.config import LoggingArgs", "from nanotron.parallel import ParallelContext"):
        assert line in text, line
        text = text.replace(line, line.split()[-1] + " = object")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    sys.modules["nanotron"].logging = module


def interleave(weight, shape):
    """Moves the rows j and j + d/2 of every head to 2j and 2j + 1."""
    return weight.view(-1, 2, shape.head_dim // 2, shape.dim).transpose(1, 2).reshape(-1, shape.dim)


def fill(model, values, shape, tied, tp_rank, tp):
    """Copies the initial values of the Llama into the part of nanotron's fused parameters that this rank has."""

    def part(tensor, dim):
        return tensor.chunk(tp, dim)[tp_rank]

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            elif "token_embedding" in name:
                parameter.copy_(part(values["model.embed_tokens.weight"], 0))
            elif "lm_head" in name:
                parameter.copy_(part(values["model.embed_tokens.weight" if tied else "lm_head.weight"], 0))
            else:
                layer, kind = f"model.layers.{name.split('.')[2]}.", name.split(".pp_block.")[1]
                attn, mlp = layer + "self_attn.", layer + "mlp."
                q, k, v = (values[f"{attn}{n}_proj.weight"] for n in "qkv")
                parameter.copy_({
                    "attn.qkv_proj.weight": lambda: torch.cat(
                        [part(t, 0) for t in (interleave(q, shape), interleave(k, shape), v)]),
                    "attn.o_proj.weight": lambda: part(values[attn + "o_proj.weight"], 1),
                    "mlp.gate_up_proj.weight": lambda: torch.cat(
                        [part(values[f"{mlp}{n}_proj.weight"], 0) for n in ("gate", "up")]),
                    "mlp.down_proj.weight": lambda: part(values[mlp + "down_proj.weight"], 1)}[kind]())


def config_of(options, windows, folder):
    shape, dtypes = options.shape, {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64"}
    return {
        "general": {"project": "peer", "run": "peer", "seed": 1},
        "parallelism": {"dp": dist.get_world_size() // (options.tp * options.pp), "pp": options.pp, "tp": options.tp,
                        "pp_engine": options.pp_engine, "tp_linear_async_communication": False,
                        "tp_mode": "REDUCE_SCATTER" if options.sequence_parallel else "ALL_REDUCE"},
        "model": {"dtype": dtypes[options.dtype], "init_method": {"std": 0.02}, "ddp_bucket_cap_mb": options.bucket_mb,
                  "model_config": {
                      "is_llama_config": True, "hidden_size": shape.dim, "num_hidden_layers": shape.layers,
                      "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
                      "intermediate_size": shape.ffn_dim, "vocab_size": shape.vocab,
                      "max_position_embeddings": options.seq_len, "rms_norm_eps": shape.norm_eps,
                      "tie_word_embeddings": options.tied}},
        "tokenizer": {},
        "logging": {"log_level": "critical", "log_level_replica": "critical"},
        "checkpoints": {"checkpoints_path": folder, "checkpoint_interval": 10**9},
        "tokens": {"sequence_length": options.seq_len, "train_steps": options.steps,
                   "micro_batch_size": windows.sequences // options.accumulate,
                   "batch_accumulation_per_replica": options.accumulate},
        "optimizer": {"zero_stage": int(options.schedule[-1]), "weight_decay": 0.1, "clip_grad": 1.0,
                      "accumulate_grad_in_fp32": options.fp32_sums, "adam_eps": 1e-8, "adam_beta1": 0.9,
                      "adam_beta2": 0.95, "torch_adam_is_fused": False,
                      "learning_rate_scheduler": {"learning_rate": options.lr, "lr_warmup_style": "constant"}}}


def train_nanotron(llama, windows, options):
    """Returns [(mean loss over all targets, gradient norm, seconds)] of all steps."""
    make_modules()
    import_logging()
    from nanotron.trainer import DistributedTrainer
    from nanotron.models import llama as models
    from nanotron.parallel.pipeline_parallel import TensorPointer

    head_dim = options.shape.head_dim
    Rotary.tables = [table[:, :head_dim // 2] for table in llama.rope]
    models.RotaryEmbedding.init_rotary_embeddings = lambda self: None  # tables for inference, on CUDA
    if options.dtype == "fp64":
        models.masked_mean = lambda loss, mask, dtype: (loss * mask).sum() / mask.sum()
    records, counts, stages = [], [], []  # stages: pipeline ranks of the inputs, of the loss, and this one

    def batches():
        for step in range(options.steps):
            for tokens, targets in zip(*(part.chunk(options.accumulate) for part in windows.step(step))):
                counted = torch.ones_like(targets) if options.pad_token is None else targets != options.pad_token
                counts.append(counted.sum().item())
                inputs = {"input_ids": tokens.contiguous(), "input_mask": torch.ones_like(tokens, dtype=torch.bool)}
                labels = {"label_ids": targets.contiguous(), "label_mask": counted.bool()}
                # Stages that need neither get pointers to the ranks that do.
                first, last, here = stages
                yield {**(inputs if here == first else dict.fromkeys(inputs, TensorPointer(first))),
                       **(labels if here == last else dict.fromkeys(labels, TensorPointer(last)))}

    class Trainer(DistributedTrainer):
        def _load_model_checkpoint(self, model):
            self.init_checkpoint_path = None
            fill(getattr(model, "module", model), dict(llama.named_parameters()), options.shape, options.tied,
                 dist.get_rank(self.parallel_context.tp_pg), options.tp)
            return model

        def pre_training(self):
            pass

        def train_step_logs(self, **_):
            pass

        def training_step(self, dataloader):
            begin = time.perf_counter()
            counts.clear()
            outputs, loss = super().training_step(dataloader)
            seconds = time.perf_counter() - begin
            # The loss of a micro-batch has been divided by their number. Only the last stage has it.
            sums = [float(out["loss"]) * len(outputs) * count for out, count in zip(outputs, counts, strict=True)
                    if not isinstance(out["loss"], TensorPointer)]
            total = torch.tensor([sum(sums), sum(counts) if sums else 0], dtype=torch.float64)
            dist.all_reduce(total)
            norm = torch.tensor(float(self.grad_norm_unclipped), dtype=torch.float64)
            records.append((total[0] / total[1], norm, seconds))
            return outputs, loss

    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        path = os.path.join(folder, "config.yaml")
        with open(path, "w", encoding="utf-8") as out:
            yaml.safe_dump(config_of(options, windows, folder), out)
        trainer = Trainer(path)
        model = trainer.unwrapped_model
        stages += [model.input_pp_rank, model.output_pp_rank, dist.get_rank(trainer.parallel_context.pp_pg)]
        trainer.train(batches())
    return records
