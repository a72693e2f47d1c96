#!/usr/bin/env python3
"""Checks that transformers opens Yoke's checkpoints and computes the held-out loss that Yoke logged."""
import unittest

import support

support.use_peers()

import torch  # noqa: E402
import transformers  # noqa: E402

from windows import Windows  # noqa: E402

# The steps are enough to make attention depend on positions; otherwise a wrong rope_theta would not be detected.
STEPS, BATCH, SEQ_LEN, HOLDOUT = 60, 4, 64, 0.02
# Different kernels and orders of summation in fp32 cause errors of 1e-7; a rope_theta that is 20 % off causes 4e-6.
TOLERANCE = 1e-6


class Transformers(support.OracleTest):
    def held_out_loss(self, checkpoint):
        """Returns the mean loss over the complete global batches of the held-out tail."""
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        data = Windows(self.text, SEQ_LEN, HOLDOUT, BATCH)
        tokens, targets = data.held_out()
        with torch.no_grad():
            logits = model(tokens).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

    def check(self, **model):
        run = self.train(2, dp_shards=2, train__steps=STEPS, train__lr=1e-2, train__global_batch=BATCH,
                         data__seq_len=SEQ_LEN, data__holdout=HOLDOUT, eval__every=STEPS, checkpoint__every=STEPS, **model)
        logged = [m for m in support.read_lines(run / "metrics.jsonl") if "eval_loss" in m]
        ours = logged[-1]["eval_loss"]
        theirs = self.held_out_loss(run / f"checkpoints/step-{STEPS:08d}")
        self.assertLess(abs(ours - theirs) / theirs, TOLERANCE)

    def test_untied_head_and_grouped_queries(self):
        self.check(model__preset="tiny", model__layers=3)

    def test_tied_head_another_theta_and_epsilon(self):
        self.check(model__dim=48, model__layers=2, model__heads=4, model__kv_heads=4, model__ffn_dim=100,
                   model__vocab=256, model__tied="true", model__rope_theta=500.0, model__norm_eps=1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
