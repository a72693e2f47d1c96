"""Megatron Core on the CPU, for train.py: its DistributedDataParallel and optimizers on the Llama of llama.py.

Megatron computes on GPUs only. `compute_on_cpu` makes its requests for CUDA mean the CPU: tensor factories, types by
name, streams and random states. In fp64 it also keeps what Megatron would compute in fp32, so that fp64 tells rounding
from a defect. Neither the mathematics nor the communication is changed, except that a group of collectives is issued
one by one, because Gloo has no grouped reduce-scatter.
"""
import contextlib
import functools
import os
import time
import warnings

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
warnings.filterwarnings("ignore")  # Megatron warns that Transformer Engine and Apex are missing

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "rand", "randn", "arange", "linspace", "as_tensor", "empty_like",
             "zeros_like", "ones_like", "full_like")


def is_cuda(device):
    return isinstance(device, int) or (device is not None and str(device).startswith("cuda"))


class Nothing:
    """A stream or an event without a device."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


def compute_on_cpu(dtype):
    cpu, wide = torch.device("cpu"), dtype is torch.float64

    def on_cpu(make):
        @functools.wraps(make)
        def factory(*args, **kwargs):
            if is_cuda(kwargs.get("device")):
                kwargs["device"] = cpu
            if wide and kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
            return make(*args, **kwargs)
        return factory

    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    tensor = torch.Tensor
    to, of_type, to_float = tensor.to, tensor.type, tensor.float
    names = {torch.float32: "torch.cuda.FloatTensor", torch.float64: "torch.cuda.FloatTensor"}
    tensor.cuda = lambda self, *_, **__: self
    tensor.to = lambda self, *args, **kwargs: to(
        self, *(cpu if isinstance(a, (str, torch.device)) and is_cuda(a) else a for a in args),
        **{k: cpu if k == "device" and is_cuda(v) else v for k, v in kwargs.items()})
    tensor.type = lambda self, *args, **kwargs: (
        of_type(self, *args, **kwargs) if args or kwargs else names.get(self.dtype, of_type(self)))
    if wide:
        tensor.float = lambda self, **kwargs: self if self.dtype is torch.float64 else to_float(self, **kwargs)
    cuda = torch.cuda
    cuda.current_device = lambda: cpu
    cuda.device_count = lambda: 1
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "reset_peak_memory_stats", "set_rng_state"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = cuda.default_stream = lambda *_: Nothing()
    cuda.stream = cuda.device = lambda *_: contextlib.nullcontext()
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()


class Works(list):
    def wait(self):
        for work in self:
            work.wait()


def issue_one_by_one(module):
    """Replaces the grouping of collectives in a module of Megatron."""

    @contextlib.contextmanager
    def group(*_, **__):
        works = Works()
        names = [n for n in ("dist_all_gather_func", "dist_reduce_scatter_func") if hasattr(module, n)]
        saved = {name: getattr(module, name) for name in names}
        all_reduce = dist.all_reduce

        def kept(function):
            def call(*args, **kwargs):
                work = function(*args, **kwargs)
                if work is not None:
                    works.append(work)
                return work
            return call

        for name, function in saved.items():
            setattr(module, name, kept(function))
        dist.all_reduce = kept(all_reduce)
        try:
            yield works
        finally:
            for name, function in saved.items():
                setattr(module, name, function)
            dist.all_reduce = all_reduce

    module._coalescing_manager = group


class Norm:
    """RMSNorm as Megatron builds it with Transformer Engine: its own for PyTorch refuses sequence parallelism."""

    def __new__(cls, config, hidden_size, eps, **_):
        norm = torch.nn.RMSNorm(hidden_size, eps=eps)
        norm.weight.sequence_parallel = config.sequence_parallel
        return norm


def fill(model, values, shape, tied):
    """Copies the initial values of the Llama into the part of Megatron's fused parameters that this rank has."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    d, groups = shape.head_dim, shape.kv_heads
    first_layer = get_transformer_layer_offset(model.config, model.vp_stage)

    def part(tensor, dim):
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        return tensor.chunk(ranks, dim)[parallel_state.get_tensor_model_parallel_rank()]

    def qkv(layer):
        q = values[layer + "self_attn.q_proj.weight"].view(groups, shape.heads // groups * d, shape.dim)
        k, v = (values[f"{layer}self_attn.{n}_proj.weight"].view(groups, d, shape.dim) for n in "kv")
        return part(torch.cat((q, k, v), 1), 0).reshape(-1, shape.dim)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" in name:
                parameter.fill_(1.0)
            elif name == "embedding.word_embeddings.weight":
                parameter.copy_(part(values["model.embed_tokens.weight"], 0))
            elif name == "output_layer.weight":
                parameter.copy_(part(values["model.embed_tokens.weight" if tied else "lm_head.weight"], 0))
            else:
                layer = f"model.layers.{int(name.split('.')[2]) + first_layer}."
                kind = name.split(".", 3)[3]
                parameter.copy_({
                    "self_attention.linear_qkv.weight": lambda: qkv(layer),
                    "self_attention.linear_proj.weight": lambda: part(values[layer + "self_attn.o_proj.weight"], 1),
                    "mlp.linear_fc1.weight": lambda: torch.cat(
                        [part(values[f"{layer}mlp.{n}_proj.weight"], 0) for n in ("gate", "up")]),
                    "mlp.linear_fc2.weight": lambda: part(values[layer + "mlp.down_proj.weight"], 1)}[kind]())


def build(llama, shape, options, dtype):
    """Returns the configuration, the wrapped models of the stages of this rank, and their optimizer."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, param_and_grad_buffer
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.rerun_state_machine import RerunMode, initialize_rerun_state_machine
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    issue_one_by_one(param_and_grad_buffer)
    distributed, overlap = options.schedule.startswith("distopt"), options.schedule.endswith("_overlap")
    chunks = options.chunks if options.chunks > 1 else None
    parallel_state.initialize_model_parallel(options.tp, options.pp, chunks,
                                             num_distributed_optimizer_instances=options.instances,
                                             create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    initialize_rerun_state_machine(mode=RerunMode.DISABLED)
    full = options.recompute is not None
    config = TransformerConfig(
        num_layers=shape.layers, hidden_size=shape.dim, num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads, ffn_hidden_size=shape.ffn_dim, kv_channels=shape.head_dim,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
        bias_dropout_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        persist_layer_norm=False, gradient_accumulation_fusion=False, params_dtype=dtype, use_cpu_initialization=True,
        tensor_model_parallel_size=options.tp, sequence_parallel=options.sequence_parallel,
        pipeline_model_parallel_size=options.pp, virtual_pipeline_model_parallel_size=chunks, pipeline_dtype=dtype,
        batch_p2p_comm=False, overlap_p2p_comm=False,
        calculate_per_token_loss=options.per_token, recompute_granularity="full" if full else None,
        recompute_method=options.recompute, recompute_num_layers=4 if full else None)
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    models = []
    for chunk in range(options.chunks):
        stage = chunk if chunks else None
        submodules = TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config, stage),
                                                layer_norm=Norm)
        model = GPTModel(config, submodules, shape.vocab, options.seq_len, position_embedding_type="rope",
                         rotary_base=int(shape.rope_theta), share_embeddings_and_output_weights=options.tied,
                         pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                         post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                         vp_stage=stage)
        model.to(dtype)
        fill(model, dict(llama.named_parameters()), shape, options.tied)
        models.append(DistributedDataParallel(config, DistributedDataParallelConfig(
            overlap_grad_reduce=overlap, overlap_param_gather=overlap and distributed,
            use_distributed_optimizer=distributed, bucket_size=options.bucket_size,
            num_distributed_optimizer_instances=options.instances, average_in_collective=options.average), model,
            disable_bucketing=chunk > 0))
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=options.lr, min_lr=0.0, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8,
        clip_grad=1.0, params_dtype=dtype, use_distributed_optimizer=distributed,
        overlap_param_gather=overlap and distributed), models, use_gloo_process_groups=False)
    no_sync = [model.no_sync for model in models]
    config.no_sync_func = no_sync if chunks else no_sync[0]
    if chunks and overlap:
        config.grad_sync_func = [model.start_grad_sync for model in models]
    config.grad_scale_func = optimizer.scale_loss
    return config, models, optimizer


def train_megatron(llama, windows, options, set_rate):
    """Returns [(mean loss over all targets, gradient norm, seconds)] of all steps. Norms do not decay, as in Megatron."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    dtype = torch.float64 if options.dtype == "fp64" else torch.float32
    shape, seq_len, micros = options.shape, options.seq_len, options.accumulate
    config, models, optimizer = build(llama, shape, options, dtype)
    # Megatron divides by the number of tokens in fp32.
    config.finalize_model_grads_func = lambda models, num_tokens=None, **kwargs: finalize_model_grads(
        models, num_tokens.to(dtype) if num_tokens is not None else None, **kwargs)
    positions = torch.arange(seq_len).expand(windows.sequences // micros, -1)
    masked = torch.triu(torch.ones(seq_len, seq_len, dtype=torch.bool), 1)[None, None]

    def forward(iterator, model):
        tokens, targets = next(iterator)
        losses = model(tokens, positions, masked, labels=targets)
        counts = torch.ones_like(targets) if options.pad_token is None else targets != options.pad_token

        def loss_of(output):
            total = (output.flatten().to(dtype) * counts.flatten().to(dtype)).sum()
            number = counts.sum().to(torch.int)
            return total, number, {"sums": torch.stack((total.detach(), number.to(dtype)))}

        return losses, loss_of

    run = get_forward_backward_func()
    records = []
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens, targets = windows.step(step)
        set_rate(optimizer, options, step)
        for group in optimizer.param_groups:  # as OptimizerParamScheduler does; norms have the multiplier 0
            group["weight_decay"] = 0.1 * group.get("wd_mult", 1.0)
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        batches = [zip(tokens.chunk(micros), targets.chunk(micros)) for _ in models]
        sums = run(forward_step_func=forward, data_iterator=batches if len(models) > 1 else batches[0],
                   model=models if len(models) > 1 else models[0], num_microbatches=micros, seq_length=seq_len,
                   micro_batch_size=windows.sequences // micros, forward_only=False)
        _, norm, _ = optimizer.step()
        seconds = time.perf_counter() - begin
        total = sum((s["sums"].double() for s in sums), torch.zeros(2, dtype=torch.float64))  # only the last stage has any
        dist.all_reduce(total)
        records.append((total[0] / total[1], torch.tensor(float(norm), dtype=torch.float64), seconds))
    return records
