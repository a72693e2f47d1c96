#!/usr/bin/env python3
"""Checks label masks and separate documents against transformers, which gets each document alone: ten steps of AdamW and
the held-out loss, for each family."""
import unittest

from hf_models import WeightsTest

import numpy as np
import torch
import transformers

SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False, "max_position_embeddings": 64}
END = ord("e")  # of documents of about ten bytes
IGNORED = -100


class Documents(WeightsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        size = cls.text.stat().st_size
        cls.counts = cls.text.with_suffix(".mask")
        np.random.default_rng(3).choice([0, 1], size, p=[0.3, 0.7]).astype(np.uint8).tofile(cls.counts)

    def batch(self, read):
        tokens, targets = super().batch(read)
        _, counts = read(self.windows(self.counts))
        return tokens, targets.masked_fill((counts == 0) | (tokens == END), IGNORED)

    def logits(self, model, tokens):
        rows = []
        for row in tokens:
            ends = [int(i) + 1 for i in (row == END).nonzero()]
            if not ends or ends[-1] < len(row):
                ends.append(len(row))
            lengths = np.diff([0, *ends]).tolist()
            rows.append(torch.cat([model(document[None]).logits[0] for document in row.split(lengths)]))
        return torch.stack(rows)

    def check(self, name, config, ranks=1, **layout):
        model, folder = self.make(name, config)
        self.check_training(model, folder, ranks, data__mask="required", data__documents="separate",
                            data__document_end=END, **layout)

    def test_llama(self):
        self.check("llama", transformers.LlamaConfig(**SMALL), 2, dp_shards=2)
        self.check("llama-cp", transformers.LlamaConfig(**SMALL), 2, cp_degree=2)

    def test_qwen_2(self):
        self.check("qwen2-windows", transformers.Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=5,
                                                             max_window_layers=1), 2, tp_degree=2)

    def test_qwen_3(self):
        self.check("qwen3", transformers.Qwen3Config(**SMALL, head_dim=16))

    def test_mistral(self):
        self.check("mistral-window", transformers.MistralConfig(**SMALL, sliding_window=7))

    def test_gpt2(self):
        self.check("gpt2", transformers.GPT2Config(n_embd=48, n_layer=2, n_head=6, vocab_size=320, n_positions=64,
                                                   embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
