#!/usr/bin/env python3
"""Compares accelerate_compat with Accelerate, and the DDP of accelerate_compat with PyTorch's."""
import os
import subprocess
import sys
import tempfile
import unittest

import support

support.use_peers()

try:
    import accelerate  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup --peers installs it")
    sys.exit(support.SKIPPED)

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

STEPS, BATCH, SEQ_LEN, HOLDOUT, SEED, LR = 20, 4, 32, 0.05, 7, 1e-3
LOSS_BOUND, NORM_BOUND = 2e-6, 4e-4  # bounds of the relative difference in fp32, over 20 steps


class GivenGradients(torch.nn.Module):
    """A model whose backward assigns exactly the given gradients to its parameters."""

    def __init__(self, gradients):
        super().__init__()
        self.gradients = gradients
        self.params = torch.nn.ParameterList(torch.zeros_like(g) for g in gradients)

    def forward(self):
        return sum((p * g).sum() for p, g in zip(self.params, self.gradients, strict=True))


def ddp_rank(rank, store, folder, bucket_cap_mb):
    """Runs DistributedDataParallel on one of two ranks, with the gradients of this rank's file."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    gradients = load_file(f"{folder}/gradients{rank}.safetensors")
    model = GivenGradients(list(gradients.values()))
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
    wrapped().backward()
    if rank == 0:
        reduced = {name: p.grad.clone() for name, p in zip(gradients, model.params, strict=True)}
        save_file(reduced, f"{folder}/reduced.safetensors")
    dist.barrier()
    dist.destroy_process_group()


class Accelerate(support.OracleTest):
    def config_file(self, **keys):
        """Writes a config as `accelerate config` would, and returns its path."""
        from accelerate.commands.config.config_args import ClusterConfig

        path = self.folder / "accelerate.yaml"
        config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_CPU", "mixed_precision": "no",
                  "use_cpu": True, "debug": False, "num_processes": 2, **keys}
        ClusterConfig(**config).to_yaml_file(path)
        return path

    def train_compat(self, ranks=2, **overrides):
        return self.train(ranks, **{
            "parallel_backend": "accelerate_compat", "accelerate_compat__config_file": self.config_file(num_processes=ranks),
            "seed": SEED, "model__preset": "tiny", "data__seq_len": SEQ_LEN, "data__holdout": HOLDOUT,
            "train__global_batch": BATCH, **overrides})

    def gradients(self, **overrides):
        """Returns the gradients of the first step: without clipping they equal SGD's momentum after that step."""
        run = self.train_compat(train__steps=1, train__optimizer="sgd", train__momentum=0.9, train__clip=0,
                                checkpoint__every=1, **overrides)
        state = {}
        for path in (run / "checkpoints/step-00000001").glob("*.safetensors"):
            state.update(load_file(path))
        return {name.removesuffix(".momentum"): t for name, t in state.items() if name.endswith(".momentum")}

    def test_every_field_and_flag_of_accelerate_is_known(self):
        """Every key that Accelerate reads is in the README's table, which a different test compares with the code."""
        import dataclasses

        from accelerate.commands.config.config_args import ClusterConfig
        from accelerate.commands.launch import launch_command_parser

        readme = (support.REPOSITORY / "plugins/accelerate_compat/README.md").read_text()
        sections = ("fsdp_config", "parallelism_config", "dynamo_config", "fp8_config", "deepspeed_config")
        wanted = [f.name for f in dataclasses.fields(ClusterConfig) if f.name not in sections]
        for action in launch_command_parser()._actions:
            for prefix, section in (("fsdp_", "fsdp_config."), ("parallelism_config_", "parallelism_config.")):
                if action.dest.startswith(prefix):
                    wanted.append(section + action.dest)
            # In a file, only the key of --fp8_format keeps the prefix.
            if action.dest.startswith("fp8_"):
                keeps = action.dest == "fp8_format"
                wanted.append("fp8_config." + (action.dest if keeps else action.dest.removeprefix("fp8_")))
        for group in launch_command_parser()._action_groups:
            if group.title == "DeepSpeed Arguments":
                wanted += ["deepspeed_config." + action.dest for action in group._group_actions]
        self.assertIn("deepspeed_config.zero_stage", wanted)
        self.assertGreater(len(wanted), 50)
        self.assertEqual([key for key in wanted if f"| `{key}` |" not in readme], [])

    def test_twenty_steps_agree_with_accelerate(self):
        out = self.folder / "accelerate.jsonl"
        subprocess.run(
            [sys.executable, support.REPOSITORY / "bench/peers/train.py", "--strategy", "accelerate", "--data", self.text,
             "--out", out, "--steps", str(STEPS), "--seq-len", str(SEQ_LEN), "--global-batch", str(BATCH), "--holdout",
             str(HOLDOUT), "--seed", str(SEED), "--lr", str(LR)], check=True, timeout=support.HANG)
        theirs = support.read_lines(out)
        ours = support.read_lines(self.train_compat(train__steps=STEPS, train__lr=LR) / "metrics.jsonl")
        self.assertEqual([m["step"] for m in ours], list(range(1, STEPS + 1)))
        self.assertLess(ours[-1]["loss"], 0.9 * ours[0]["loss"])
        for key, bound in (("loss", LOSS_BOUND), ("grad_norm", NORM_BOUND)):
            worst = max(abs(a[key] - b[key]) / b[key] for a, b in zip(ours, theirs, strict=True))
            print(f"{key}: {worst:.2g} (bound {bound:g})", flush=True)
            self.assertLess(worst, bound, key)

    def test_gradients_are_reduced_as_by_distributed_data_parallel(self):
        """On two ranks the result has the same bits as PyTorch's DDP computes from the gradients of both halves."""
        half = BATCH // 2
        second_half = self.folder / "second_half.txt"
        second_half.write_bytes(self.text.read_bytes()[half * SEQ_LEN :])
        for rank, text in enumerate((self.text, second_half)):
            alone = self.gradients(ranks=1, data__path=text, train__global_batch=half)
            save_file(alone, self.folder / f"gradients{rank}.safetensors")
        for bucket_cap_mb in (1, 25):
            store = os.path.join(tempfile.mkdtemp(dir=self.folder), "store")
            ranks = [subprocess.Popen([sys.executable, __file__, str(rank), store, self.folder, str(bucket_cap_mb)],
                                      env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in (0, 1)]
            self.assertEqual([rank.wait(timeout=support.HANG) for rank in ranks], [0, 0])
            theirs = load_file(self.folder / "reduced.safetensors")
            ours = self.gradients(accelerate_compat__bucket_cap_mb=bucket_cap_mb)
            self.assertEqual(ours.keys(), theirs.keys())
            self.assertEqual([name for name in theirs if not torch.equal(ours[name], theirs[name])], [])
            self.assertGreater(sum(t.abs().sum() for t in ours.values()), 0)
            print(f"bucket_cap_mb {bucket_cap_mb}: {len(theirs)} gradients bit-equal", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        ddp_rank(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        unittest.main(verbosity=2)
