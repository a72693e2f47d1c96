"""The step `two_ranks` of scripts/gpu_test: trains with two ranks that share one GPU, in several layouts, and compares
their losses. Uses only the standard library."""
import json
import socket
import time

from context import Failed, NotFinished, NotHere, end, tail

LAYOUT_SECONDS = 15  # of the time of the step that each layout gets at least
# Largest relative differences in step 3, levels L1 and L2 of `yoke compare`. Losses of the first steps hardly depend on
# attention, so the norm of the gradient is compared, too.
FP32 = {"loss": 2e-6, "grad_norm": 4e-4}
BF16 = {"loss": 1e-2, "grad_norm": 1e-1}
HALF = "precision.param=bf16"
STUB = "parallel_backend=deepspeed_stub"
# Layouts of two ranks that must have the same losses, the most important ones first. In bf16 the parts of attention over
# a cut sequence use LibTorch's flash attention, in fp32 they do not.
LAYOUTS = {"fsdp": [], "tp": ["tp_degree=2"], "cp": ["cp_degree=2"], "pp": ["pp_degree=2"],
           "nccl": ["comm.nccl_split=true", "comm.nccl_register=true", "comm.nccl_cta_policy=efficiency",
                    "comm.nccl_nvls_ctas=8"],
           "ddp": ["dp_degree=2"], "cp_bf16": ["cp_degree=2", HALF],
           "tp_whole": ["tp_degree=2", "ptd.sequence_parallel=false"],
           "cp_gather": ["cp_degree=2", "ptd.cp_attention=all_gather"],
           "zero1": [STUB, "deepspeed_stub.zero_stage=1"], "zero3": [STUB, "deepspeed_stub.zero_stage=3"]}
SHARED_REFUSED = "Duplicate GPU"  # NCCL's message if it refuses the GPU in spite of the host ids


def two_ranks(context):
    """Trains in every layout and compares with the first one. NCCL refuses two ranks on the same GPU of a host, so each
    rank has a different host id, as if on two machines. A layout that fails or hangs does not keep the others from
    running."""
    found, bad, deadline = {}, [], context.deadline
    try:
        for after, (name, words) in zip(reversed(range(len(LAYOUTS))), LAYOUTS.items(), strict=True):
            context.deadline = deadline_of_layout(time.monotonic(), deadline, after)
            try:
                found[name] = train(context, name, words)
            except Failed as e:
                bad.append(e)
    finally:
        context.deadline = deadline
    bad += [Failed(text) for name in found for text in differences(name, found)]
    if bad:
        kind = NotFinished if all(isinstance(e, NotFinished) for e in bad) else Failed
        raise kind("; ".join(map(str, bad)), found)
    return found


def deadline_of_layout(now, deadline, after):
    """Returns when a layout that starts now must have ended. One that hangs leaves the `after` others their time, but if
    time is short, the last layouts have none."""
    return min(deadline, max(deadline - after * LAYOUT_SECONDS, now + LAYOUT_SECONDS))


def differences(name, found):
    """Returns in words what differs from the first layout that ran."""
    first, expected = next(iter(found.items()))
    bounds = BF16 if HALF in LAYOUTS[name] else FP32
    own = found[name]
    return [f"{name}: {figure} {own[figure]}, not {expected[figure]} as in {first}" for figure, bound in bounds.items()
            if not abs(own[figure] - expected[figure]) <= bound * abs(expected[figure])]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train(context, name, words):
    """Returns the loss and the norm of the gradient in step 3."""
    if time.monotonic() >= context.deadline:
        raise NotFinished(f"{name}: no time was left")
    run = context.folder / f"two_ranks_{name}"
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port()), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    command = [context.yoke, "train", *context.parity(), "train.steps=3", "comm.timeout=120", f"run.dir={run}",
               f"device={context.device}", *words]
    ranks = [context.start(command, {**common, "RANK": str(rank), "NCCL_HOSTID": f"rank{rank}"}) for rank in range(2)]
    try:
        ends = [context.finish(process) for process in ranks]
    except NotFinished as e:
        raise NotFinished(f"{name}: {e}") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                end(process)
    bad = [f"{name}: rank {rank} ended with {code}: {tail(out)}" for rank, (code, out) in enumerate(ends) if code != 0]
    if bad and any(SHARED_REFUSED in out for _, out in ends):
        raise NotHere("; ".join(bad))
    if bad:
        raise Failed("; ".join(bad))
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {"loss": last["loss"], "grad_norm": last["grad_norm"]}
