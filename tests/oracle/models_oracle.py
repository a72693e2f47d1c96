#!/usr/bin/env python3
"""Checks every model family against transformers: logits, ten steps of AdamW, held-out loss, and exports."""
import unittest

from hf_models import SEQ_LEN, WeightsTest

import safetensors.torch
import torch
import transformers

SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False, "max_position_embeddings": 64}
# As many tokens as in a sequence of the tests would be a length without scaling.
SHORT = SEQ_LEN // 2


def rope(kind, theta=500.0, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


def llama(**keys):
    return transformers.LlamaConfig(**{**SMALL, **keys})


class Models(WeightsTest):
    def check(self, name, config, ranks=1, **layout):
        model, folder = self.make(name, config)
        self.check_logits(model, folder)
        # Some models of transformers remember the longest sequence, so a fresh one is trained.
        checkpoint = self.check_training(self.open(folder, torch.float32), folder, ranks, **layout)
        exported = self.open(self.export(checkpoint, name + "-out"))
        self.assertIs(type(exported), type(model))
        self.check_logits(exported, checkpoint)

    def test_llama_3(self):
        scaling = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=SHORT)
        self.check("llama3", llama(**scaling), 2, dp_shards=2)
        self.check("llama3-tied", llama(**scaling, tie_word_embeddings=True, head_dim=12))

    def test_llama_with_linear_positions(self):
        self.check("linear", llama(**rope("linear", factor=4.0)))

    def test_llama_with_dynamic_positions(self):
        self.check("dynamic", llama(**rope("dynamic", factor=2.0), max_position_embeddings=SHORT))
        self.check("dynamic-short", llama(**rope("dynamic", factor=2.0)))

    def test_llama_with_yarn(self):
        self.check("yarn", llama(**rope("yarn", factor=4.0, original_max_position_embeddings=SHORT)))
        self.check("yarn-all-keys",
                   llama(**rope("yarn", factor=3.0, original_max_position_embeddings=SHORT, beta_fast=8.0, beta_slow=0.5,
                                mscale=0.7, mscale_all_dim=0.3, truncate=False)))

    def test_llama_with_a_head_dim_of_its_own(self):
        self.check("wide-heads", llama(head_dim=32), 2, dp_shards=2)
        self.check("narrow-heads", llama(head_dim=4, num_key_value_heads=6))

    def test_llama_with_biases(self):
        self.check("attention-bias", llama(attention_bias=True), 2, dp_shards=2)
        self.check("all-biases", llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True))

    def test_qwen_2(self):
        self.check("qwen2", transformers.Qwen2Config(**SMALL, **rope("default")), 2, dp_shards=2)
        self.check("qwen2-windows", transformers.Qwen2Config(**{**SMALL, "tie_word_embeddings": True}, **rope("default"),
                                                             use_sliding_window=True, sliding_window=5, max_window_layers=1))

    def test_qwen_3(self):
        self.check("qwen3", transformers.Qwen3Config(**SMALL, **rope("default"), head_dim=16), 2, dp_shards=2)
        self.check("qwen3-yarn-bias",
                   transformers.Qwen3Config(**{**SMALL, "tie_word_embeddings": True}, head_dim=12, attention_bias=True,
                                            **rope("yarn", factor=4.0, original_max_position_embeddings=SHORT)))

    def test_mistral(self):
        self.check("mistral", transformers.MistralConfig(**SMALL, **rope("default"), sliding_window=None, head_dim=16))
        self.check("mistral-window", transformers.MistralConfig(**SMALL, **rope("default"), sliding_window=7), 2,
                   dp_shards=2)

    def test_gpt2(self):
        shape = {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 320, "n_positions": 64,
                 "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
        self.check("gpt2", transformers.GPT2Config(**shape), 2, dp_shards=2)
        self.check("gpt2-untied", transformers.GPT2Config(**shape, n_inner=80, activation_function="gelu",
                                                          tie_word_embeddings=False))

    def test_the_published_files_of_gpt2(self):
        """They have no head, no prefix before the names, and the causal mask of each layer."""
        model, folder = self.make("gpt2-published", transformers.GPT2Config(n_embd=48, n_layer=2, n_head=6, vocab_size=321,
                                                                            n_positions=64))
        tensors = {key: value.clone() for key, value in model.transformer.state_dict().items()}
        tensors |= {f"h.{n}.attn.bias": torch.ones(64, 64).tril()[None, None] for n in range(2)}
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.check_logits(model, folder)


if __name__ == "__main__":
    unittest.main(verbosity=2)
