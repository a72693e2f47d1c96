"""Implements the interface of `yoke compare --external` for the peers. It reads the run as flat JSON from
$YOKE_COMPARE_RUN; the peer writes one object per step to $YOKE_COMPARE_OUT. Refuses a run that the peers cannot train
in the same way."""
import json
import os

# Keys of a run file for which the peers support only one value, with this value.
FIXED = {"model.family": "llama", "model.from": "", "model.tied": False, "data.order": "sequential", "data.pad_token": None,
         "data.weights": [], "eval.path": "",
         "train.optimizer": "adamw", "train.schedule": "constant", "train.decay": "all", "train.clip": 1.0,
         "train.weight_decay": 0.1, "train.betas": [0.9, 0.95], "train.eps": 1e-8}


def read_run(options):
    """Sets the options that the command line of a peer would set, and also shape and warmup."""
    from llama import Shape

    with open(os.environ["YOKE_COMPARE_RUN"], encoding="utf-8") as file:
        run = json.load(file)
    wrong = [f"{key} = {run[key]}; the peers support {value}" for key, value in FIXED.items()
             if run.get(key, value) != value]
    if not os.path.isfile(str(run["data.path"])):
        wrong.append(f"data.path = {run['data.path']}; the peers support one file")
    if run["precision.param"] not in ("fp32", "fp64"):
        wrong.append(f"precision.param = {run['precision.param']}; the peers support fp32 and fp64")
    if wrong:
        raise SystemExit("this peer cannot train this run: " + "; ".join(wrong))
    options.shape = Shape(**{field: run["model." + field] for field in (
        "dim", "layers", "heads", "kv_heads", "ffn_dim", "vocab", "rope_theta", "norm_eps")})
    options.out = os.environ["YOKE_COMPARE_OUT"]
    options.data, options.seed = run["data.path"], run["seed"]
    options.steps, options.global_batch = run["train.steps"], run["train.global_batch"]
    options.seq_len, options.holdout = run["data.seq_len"], run["data.holdout"]
    options.dtype, options.lr, options.warmup = run["precision.param"], run["train.lr"], run["train.warmup"]
    return options
