#!/usr/bin/env python3
"""Checks weights in both directions: Yoke loads and trains models of transformers, and transformers loads exports."""
import json
import unittest

from hf_models import BATCH, SEQ_LEN, WeightsTest

import torch
import transformers

LLAMA = transformers.LlamaConfig
UNTIED = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
          "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False, "rms_norm_eps": 1e-4,
          "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}
TIED = {**UNTIED, "num_hidden_layers": 2, "num_key_value_heads": 6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


class Weights(WeightsTest):
    def test_untied_grouped_queries_in_shards(self):
        model, folder = self.make("untied", LLAMA(**UNTIED), shard="50KB")
        self.assertGreater(len(list(folder.glob("*.safetensors"))), 1)
        self.check_logits(model, folder)
        self.check_training(model, folder, 2, dp_shards=2)

    def test_tied(self):
        model, folder = self.make("tied", LLAMA(**TIED))
        self.check_logits(model, folder)
        self.check_training(model, folder, 1)

    def test_weights_of_half_the_size(self):
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            model, folder = self.make(name, LLAMA(**TIED), dtype=dtype)
            self.check_logits(model, folder)

    def test_a_config_of_transformers_4(self):
        model, folder = self.make("old", LLAMA(**UNTIED))
        config = json.loads((folder / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None
        config["torch_dtype"] = config.pop("dtype")
        (folder / "config.json").write_text(json.dumps(config))
        self.check_logits(model, folder)

    def test_exports_open_there_with_equal_logits(self):
        for name, shape in (("from-untied", UNTIED), ("from-tied", TIED)):
            model, folder = self.make(name, LLAMA(**shape))
            checkpoint = self.check_training(model, folder, 1)
            plain = self.open(self.export(checkpoint, name + "-out"))
            self.assertEqual(plain.dtype, torch.float32)
            self.check_logits(plain, checkpoint)
            sharded = self.open(self.export(checkpoint, name + "-shards", "--max-shard-size", "50KB"))
            half = self.open(self.export(checkpoint, name + "-bf16", "--dtype", "bf16"))
            self.assertEqual(half.dtype, torch.bfloat16)
            for key, value in plain.state_dict().items():
                self.assertTrue(torch.equal(value, sharded.state_dict()[key]), key)
                self.assertTrue(torch.equal(value.bfloat16(), half.state_dict()[key]), key)

    def test_step_0_is_what_the_run_starts_from(self):
        model, folder = self.make("start", LLAMA(**UNTIED))
        run = self.train(2, model__from=folder, dp_shards=2, data__seq_len=SEQ_LEN, train__steps=0, train__global_batch=BATCH,
                         checkpoint__every=1)
        exported = self.open(self.export(run / "checkpoints/step-00000000", "start-out"))
        for key, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, exported.state_dict()[key]), key)


if __name__ == "__main__":
    unittest.main(verbosity=2)
