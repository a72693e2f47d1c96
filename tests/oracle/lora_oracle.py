#!/usr/bin/env python3
"""Checks low-rank adapters against PEFT: ten steps of AdamW, and exports that PEFT and transformers open."""
import json
import os
import subprocess
import sys
import unittest
import warnings

from hf_models import LOGITS, IDS, WeightsTest

import support

try:
    import peft
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup --peers installs it")
    sys.exit(support.SKIPPED)
import safetensors.torch
import torch
import transformers

SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "vocab_size": 320, "tie_word_embeddings": False, "max_position_embeddings": 64}
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "vocab_size": 320, "embd_pdrop": 0.0,
        "resid_pdrop": 0.0, "attn_pdrop": 0.0}
RANK, ALPHA = 4, 6.0
# At this rate the adapters lower the loss by some percent in ten steps.
LR = 1e-2


def keys(targets, **more):
    return {"lora__rank": RANK, "lora__alpha": ALPHA, "lora__targets": json.dumps(targets), **more}


class Lora(WeightsTest):
    def adapters(self, model, name, targets):
        """Returns a folder with adapters of PEFT that change the model."""
        torch.manual_seed(3)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets))
        for key, value in wrapped.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(value, 0.0, 0.1)
        wrapped.save_pretrained(self.folder / name, save_embedding_layers=False)
        return self.folder / name

    def wrapped(self, folder, adapters, train=False):
        return peft.PeftModel.from_pretrained(self.open(folder, torch.float32), adapters, is_trainable=train)

    def logits_of_ids(self, model):
        model.eval()
        with torch.no_grad():
            return model(torch.tensor([IDS])).logits[0]

    def check_equal(self, name, a, b, bound=LOGITS):
        worst = float((a - b).abs().max() / b.abs().max())
        print(f"{name}: {worst:.2g} (bound {bound:g})", flush=True)
        self.assertLess(worst, bound)

    def check(self, name, config, targets, ranks=1, **layout):
        model, folder = self.make(name, config)
        start = self.adapters(model, name + "-start", targets)
        theirs = self.wrapped(folder, start, train=True)
        checkpoint = self.check_training(theirs, folder, ranks, LR, 0.98, **keys(targets, lora__from=start), **layout)
        ours = self.wrapped(folder, self.export(checkpoint, name + "-adapters", "--adapter"))
        # Ten steps of rounding lie between the two.
        self.check_equal(name + ", adapters", self.logits_of_ids(ours), self.logits_of_ids(theirs), 1e-4)
        merged = self.export(checkpoint, name + "-merged")
        self.assertFalse((merged / "adapter_config.json").exists())
        self.check_equal(name + ", merged", self.logits_of_ids(self.open(merged)), self.logits_of_ids(ours))
        self.check_logits(self.open(merged), merged)
        half = self.open(self.export(checkpoint, name + "-bf16", "--dtype", "bf16"))
        for (key, a), b in zip(self.open(merged).state_dict().items(), half.state_dict().values(), strict=True):
            self.assertTrue(torch.equal(a.to(torch.bfloat16), b), key)

    def test_attention(self):
        self.check("llama", transformers.LlamaConfig(**SMALL), ["q_proj", "v_proj"])

    def test_all_matrices_of_biased_layers(self):
        self.check("qwen2", transformers.Qwen2Config(**SMALL),
                   ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
                   2, dp_shards=2)

    def test_one_layer_with_tensor_parallelism(self):
        self.check("qwen3", transformers.Qwen3Config(**SMALL, head_dim=16),
                   ["layers.1.self_attn.o_proj", "layers.1.mlp.down_proj", "gate_proj"], 2, tp_degree=2)

    def test_gpt2(self):
        self.check("gpt2", transformers.GPT2Config(**GPT2), ["c_attn"])

    def test_all_matrices_of_gpt2_with_tensor_parallelism(self):
        self.check("gpt2-all", transformers.GPT2Config(**GPT2, n_inner=80, tie_word_embeddings=False),
                   ["c_attn", "h.1.attn.c_proj", "c_fc", "mlp.c_proj", "lm_head"], 2, tp_degree=2)

    def test_adapters_of_gpt2_are_described_as_peft_does(self):
        model, folder = self.make("described", transformers.GPT2Config(**GPT2))
        theirs = json.loads((self.adapters(model, "described-start", ["c_attn"]) / "adapter_config.json").read_text())
        run = self.train(1, model__from=folder, train__steps=0, checkpoint__every=1, data__seq_len=32, **keys(["c_attn"]))
        exported = self.export(run / "checkpoints/step-00000000", "described-ours", "--adapter")
        ours = json.loads((exported / "adapter_config.json").read_text())
        self.assertTrue(ours["fan_in_fan_out"])
        for key, value in ours.items():
            if key not in ("base_model_name_or_path", "task_type"):
                self.assertEqual(theirs[key], value, key)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self.wrapped(folder, exported)
        # PEFT warns if it has to correct the key.
        self.assertEqual([w for w in seen if "fan_in_fan_out" in str(w.message)], [])

    def test_new_adapters_change_nothing_and_start_like_those_of_peft(self):
        _, folder = self.make("new", transformers.LlamaConfig(**SMALL))
        run = self.train(1, model__from=folder, train__steps=0, checkpoint__every=1, data__seq_len=32, **keys(["o_proj"]))
        exported = self.export(run / "checkpoints/step-00000000", "new-adapters", "--adapter")
        values = safetensors.torch.load_file(exported / "adapter_model.safetensors")
        for key, value in values.items():
            self.assertEqual(bool((value == 0).all()), "lora_B" in key)
            if "lora_A" in key:
                bound = value.shape[1] ** -0.5
                self.assertLessEqual(float(value.abs().max()), bound)
                self.assertGreater(float(value.abs().max()), 0.9 * bound)
        self.assertEqual(len(values), 4)
        self.check_equal("new", self.logits_of_ids(self.wrapped(folder, exported)), self.logits_of_ids(self.open(folder)), 1e-12)

    def refused(self, **overrides):
        run = {"parallel_backend": "ptd", "device": "cpu", "run__dir": self.folder / "refused",
               "data__path": self.text, "data__seq_len": 32, "train__steps": 1, **overrides}
        run_file = self.folder / "run.toml"
        run_file.write_text("")
        command = [os.environ["YOKE_BIN"] + "/yoke", "train", run_file]
        command += [f"{key.replace('__', '.')}={value}" for key, value in run.items()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=support.HANG)
        self.assertEqual(result.returncode, 2, result.stderr)
        return result.stderr

    def test_misuse_is_refused(self):
        model, folder = self.make("base", transformers.LlamaConfig(**{**SMALL, "tie_word_embeddings": True}))
        start = self.adapters(model, "start", ["q_proj"])

        def check(text, targets, source="model__from", **more):
            self.assertIn(text, self.refused(**{source: folder}, **keys(targets, **more)))

        check('"q_porj" names no matrix of a linear layer; did you mean \'q_proj\'?', ["q_porj"])
        check("lm_head shares its matrix with the embedding", ["lm_head"])
        check("lora.rank = 8, but", ["q_proj"], lora__from=start, lora__rank=8)
        check("lora.alpha = 1, but", ["q_proj"], lora__from=start, lora__alpha=1)
        check("has other adapters", ["k_proj"], lora__from=start)
        check("lora.from", ["q_proj"], "model__config", lora__from=start)
        config = json.loads((start / "adapter_config.json").read_text())
        (start / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        check("use_dora = true; allowed: false", ["q_proj"], lora__from=start)


if __name__ == "__main__":
    unittest.main(verbosity=2)
