#!/usr/bin/env python3
"""Fine-tunes a Qwen 3 of random weights from end to end, as a user would: conversations from Parquet to token ids, adapters
over two ranks, PEFT and transformers on the exports, an answer of `yoke generate`, and a mixture of three files. Also
checks that Parquet files give the token ids of the same documents in .jsonl."""
import json
import os
import random
import subprocess
import unittest

from hf_models import WeightsTest

import support

import pyarrow
import pyarrow.parquet
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]
END, TURN = "<|endoftext|>", "<|im_end|>"
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
QWEN3 = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True}


def yoke(*words, **options):
    result = subprocess.run([os.environ["YOKE_BIN"] + "/yoke", *map(str, words)], capture_output=True, text=True,
                            timeout=support.HANG, check=False, **options)
    if result.returncode != 0:
        raise AssertionError(f"{words}\n{result.stdout}\n{result.stderr}")
    return result.stdout


class FineTuning(WeightsTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train(str(cls.text), vocab_size=400, special_tokens=[END, "<|im_start|>", TURN], show_progress=False)
        cls.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=TURN,
                                                             chat_template=TEMPLATE)
        rng = random.Random(5)
        words = cls.text.read_text().split()
        some = lambda most: " ".join(rng.choices(words, k=rng.randint(1, most)))  # noqa: E731
        cls.documents = [some(60) for _ in range(300)]
        # Answers that are easy to learn, so that a short training changes the answers of the model.
        answer = lambda: f"{words[0]} {words[1]} {rng.choice(words[:4])}"  # noqa: E731
        cls.chats = [[{"role": role, "content": some(12) if role == "user" else answer()}
                      for _ in range(rng.randint(1, 3)) for role in ("user", "assistant")] for _ in range(300)]

    def base(self):
        """Returns the folder of a model with its tokenizer."""
        _, folder = self.make("base", transformers.Qwen3Config(vocab_size=len(self.tokenizer), **QWEN3))
        self.tokenizer.save_pretrained(folder)
        return folder

    def lines(self, name, objects):
        (self.folder / name).write_text("".join(json.dumps(o) + "\n" for o in objects))
        return self.folder / name

    def parquet(self, name, columns, **options):
        pyarrow.parquet.write_table(pyarrow.table(columns), self.folder / name, **options)
        return self.folder / name

    def prepared(self, model, name, source, *flags):
        yoke("data", "prepare", "--tokenizer", model, "-o", self.folder / name, source, *flags)
        return self.folder / name

    def test_parquet_has_the_tokens_of_jsonl(self):
        model = self.base()
        expected = self.prepared(model, "lines.bin", self.lines("texts.jsonl", [{"body": d} for d in self.documents]),
                                 "--field", "body").read_bytes()
        table = {"id": list(range(300)), "body": self.documents, "more": self.chats}
        for number, codec in enumerate(CODECS):
            path = self.parquet(f"{codec}.parquet", table, compression=codec, row_group_size=1 + 90 * (number % 4),
                                data_page_version="2.0" if number % 2 else "1.0", use_dictionary=number % 3 == 0,
                                data_page_size=1000)
            found = self.prepared(model, f"{codec}.bin", path, "--field", "body", "--threads", 1 + number % 3)
            self.assertEqual(found.read_bytes(), expected, codec)
        for kind in (pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
            path = self.parquet("other.parquet", {"text": pyarrow.array(self.documents).cast(kind)})
            self.assertEqual(self.prepared(model, f"{kind.id}.bin", path).read_bytes(), expected, kind)

    def test_conversations_in_parquet_are_those_of_transformers(self):
        model = self.base()
        ids = [self.tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False) for chat in self.chats]
        flags = ["--chat", "--template", "chatml"]
        rows = self.prepared(model, "rows.bin", self.parquet("rows.parquet", {"messages": self.chats}), *flags)
        lines = self.prepared(model, "objects.bin", self.lines("c.jsonl", [{"messages": c} for c in self.chats]), *flags)
        self.assertEqual(rows.read_bytes(), lines.read_bytes())
        self.assertEqual(rows.with_suffix(".mask").read_bytes(), lines.with_suffix(".mask").read_bytes())
        found = memoryview(rows.read_bytes())[-2 * sum(map(len, ids)):].cast("H").tolist()
        self.assertEqual(found, sum(ids, []))

    def answers(self, folder, question):
        """Returns the answer of transformers and the one of Yoke."""
        messages = [{"role": "user", "content": question}]
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                                    return_dict=False)
        model = self.open(folder, torch.float32).eval()
        with torch.no_grad():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=40,
                                 eos_token_id=self.tokenizer.eos_token_id, pad_token_id=0)
        theirs = self.tokenizer.decode(out[0, prompt.shape[1]:], skip_special_tokens=True)
        ours = yoke("generate", folder, "--chat", "--template", "chatml", "--prompt", question, "--temperature", 0,
                    "--tokens", 40)
        return theirs, ours.removesuffix("\n")

    def test_adapters_are_trained_merged_and_answer(self):
        import peft

        base = self.base()
        chats = self.prepared(base, "chats.bin", self.parquet("chats.parquet", {"messages": self.chats}), "--chat",
                              "--template", "chatml", "--end-token", END)
        run = self.train(2, model__from=base, data__path=chats, data__seq_len=64, data__documents="separate",
                         data__mask="required", lora__rank=8, lora__alpha=16, train__steps=30, train__global_batch=8,
                         train__lr=2e-2, lora__targets='["q_proj", "v_proj", "down_proj"]', checkpoint__every=30,
                         dp_shards=2, eval__every=30)
        losses = [line["loss"] for line in support.read_lines(run / "metrics.jsonl") if "loss" in line]
        self.assertLess(losses[-1], 0.9 * losses[0])
        checkpoint = run / "checkpoints/step-00000030"
        merged = self.export(checkpoint, "merged")
        self.check_logits(self.open(merged, torch.float32), merged)
        adapters = self.export(checkpoint, "adapters", "--adapter")
        wrapped = peft.PeftModel.from_pretrained(self.open(base, torch.float32), adapters).eval()
        tokens = torch.tensor([self.tokenizer.encode(self.documents[0])])
        with torch.no_grad():
            ours, theirs = self.open(merged, torch.float32).eval()(tokens).logits, wrapped(tokens).logits
        self.assertLess(float((ours - theirs).abs().max() / theirs.abs().max()), 1e-5)
        for question in (chat[0]["content"] for chat in self.chats[:3]):
            theirs, ours = self.answers(merged, question)
            print(f"{question!r}: {ours!r}", flush=True)
            self.assertEqual(ours, theirs)
            self.assertGreater(len(ours), 5)

    def test_a_mixture_of_three_files_with_masks(self):
        base = self.base()
        flags = ["--end-token", END]
        texts = self.prepared(base, "m-texts.bin", self.lines("m.jsonl", [{"text": d} for d in self.documents]), *flags)
        rows = self.prepared(base, "m-rows.bin", self.parquet("m.parquet", {"text": self.documents[::-1]}), *flags)
        chats = self.prepared(base, "m-chats.bin", self.parquet("mc.parquet", {"messages": self.chats}), *flags, "--chat",
                              "--template", "chatml")
        keys = {"model__config": base / "config.json", "data__path": json.dumps([str(p) for p in (texts, rows, chats)]),
                "data__weights": "[0.5, 0.3, 0.2]", "data__seq_len": 64, "data__documents": "separate",
                "train__steps": 10, "train__global_batch": 10}
        losses = []
        for ranks, layout in ((1, {}), (2, {"dp_shards": 2})):
            lines = support.read_lines(self.train(ranks, **keys, **layout) / "metrics.jsonl")
            losses.append([line["loss"] for line in lines if "loss" in line])
        self.assertLess(losses[0][-1], losses[0][0])
        for a, b in zip(*losses, strict=True):
            self.assertLess(abs(a - b) / a, 2e-6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
