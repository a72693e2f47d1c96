"""The workloads that bench.py measures, and their variants. The order is that of their value."""
import dataclasses
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SMALL, MEDIUM, BLOCKS = (HERE / f"{name}.toml" for name in ("llama_150m", "llama_1b", "llama_8b_blocks"))
BYTES, LARGEST_ID = 256, 1 << 16  # vocabularies of the data: bytes, and what a uint16 can hold
TINY_SECONDS = 8  # expected seconds of a run with toy sizes
PRESETS = {"llama-150m": (12, 1024), "tiny": (12, 64)}  # layers and width of the presets that are used here

# A toy has the same keys and another size.
TOY_TRAINING = {"data.seq_len": 64, "train.steps": 6, "metrics.every": 1}
TOY_DIMS = {"model.dim": 64, "model.heads": 4, "model.kv_heads": 2, "model.ffn_dim": 128, "model.layers": 2}


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    run_file: pathlib.Path
    # What limits a step that is not captured: "launches", if the CPU needs longer to launch the kernels than the GPU to
    # run them; "update", if an update of the whole optimizer follows few tokens; "kernels" for a row that shows the
    # throughput.
    limited_by: str
    seconds: int  # expected seconds of a run on an H200, with start and initial values
    keys: dict    # overrides of the run file
    toy: dict     # further overrides for --tiny
    vocab: int    # token ids of the data are less than this
    mfu: float | None = None  # target with full attention and without recomputation

    def overrides(self, tiny):
        return {**self.keys, **(self.toy if tiny else {})}

    def expected(self, tiny):
        return TINY_SECONDS if tiny else self.seconds


def causal_saving(config):
    """Returns the FLOPs of a token by which causal attention is less than full attention, which counts 12 x layers x
    width x sequence."""
    preset = PRESETS.get(config.get("model.preset"))
    layers, width = preset or (config["model.layers"], config["model.dim"])
    return 6.0 * layers * width * config["data.seq_len"]


def small(name, sequences, steps, limited_by, mfu=None):
    keys = {"train.global_batch": sequences, "train.max_micro_batch": sequences, "train.steps": steps,
            "metrics.every": steps // 8}
    toy = {**TOY_TRAINING, "model.preset": "tiny", "train.global_batch": min(sequences, 4)}
    return Workload(name, SMALL, limited_by, 16, keys, toy, 32000, mfu)


def blocks(name, micro_batches, seconds, limited_by, mfu=None, **keys):
    return Workload(name, BLOCKS, limited_by, seconds, {"train.global_batch": micro_batches, **keys},
                    {**TOY_TRAINING, **TOY_DIMS}, BYTES, mfu)


WORKLOADS = {workload.name: workload for workload in (
    blocks("8b blocks, 4 micro-batches", 4, 26, "kernels", 0.65),
    # The target is 800 TFLOP/s, relative to the rate of bf16.
    blocks("8b blocks, 4 micro-batches, fp8", 4, 24, "kernels", 0.81, **{"precision.product": "fp8"}),
    Workload("1b, 32k tokens", MEDIUM, "kernels", 26, {},
             {**TOY_TRAINING, **TOY_DIMS, "model.vocab": 512, "train.global_batch": 2}, LARGEST_ID, 0.57),
    small("150m, 64k tokens", 64, 40, "kernels", 0.45),
    small("150m, 1k tokens", 1, 400, "launches"),
    blocks("8b blocks, 1 micro-batch", 1, 21, "update"),
    small("150m, 8k tokens", 8, 120, "kernels"),
)}

CAPTURED = {"ptd.cuda_graph": "true"}
RECOMPUTE = {"ptd.activation_checkpoint": "full"}
TUNED = {"train.tune_products": "true"}
# Captured steps need a GPU.
VARIANTS = {"eager": {}, "captured": CAPTURED, "captured, tuned": {**CAPTURED, **TUNED},
            "eager, recompute": RECOMPUTE, "captured, recompute": {**CAPTURED, **RECOMPUTE}}


def variants(device):
    """Returns {name: overrides} of the variants that a device can run."""
    return {name: keys for name, keys in VARIANTS.items() if device == "cuda" or "captured" not in name}


EAGER, COMPILED = "PyTorch", "PyTorch, compiled"  # programs of eager.py


@dataclasses.dataclass(frozen=True)
class Peer:
    """A comparison of a workload with a program of eager.py."""

    workload: str
    program: str
    targets: dict  # of the ratio of step rates, by variant. Only where launches limit a step can the ratio be large
    compiling: int = 0  # expected seconds of the first step


# The comparison that takes longest is the last, so that it is left out first.
PEERS = {"150m, 1k tokens": Peer("150m, 1k tokens", EAGER, {"eager": 1.3, "captured": 2.0}),
         "150m, 64k tokens": Peer("150m, 64k tokens", EAGER, {"eager": 1.0, "captured": 1.0}),
         "150m, 1k tokens, compiled": Peer("150m, 1k tokens", COMPILED, {"captured": 1.0, "captured, tuned": 1.0}, 180)}
# Workloads and variants whose kernels are listed.
TRACED = (("8b blocks, 4 micro-batches", "eager"), ("8b blocks, 4 micro-batches, fp8", "eager"),
          ("1b, 32k tokens", "eager"), ("150m, 8k tokens", "eager"), ("150m, 1k tokens", "eager"),
          ("150m, 1k tokens", "captured"))
