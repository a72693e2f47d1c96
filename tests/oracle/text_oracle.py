#!/usr/bin/env python3
"""Compares the ids and the decoded texts of Yoke's tokenizers with those of Hugging Face's `tokenizers` and of
sentencepiece. The vocabularies are trained here on made-up text."""
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest

from support import HANG, REPOSITORY, use_peers

use_peers()

import sentencepiece  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

STRINGS = 100_000  # for all tokenizers together
FAILED = 0xFFFFFFFF
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + r"?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + r"?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [Regex(r"\p{N}{1,3}"), Regex("[一-龥぀-ゟ゠-ヿ]+"),
            Regex(r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")]

# Added tokens: special ones, one that takes white space on both sides, and one that is found in normalized text only.
SPECIAL = ["<|begin|>", "<|end|>", "<|end_of|>"]
ADDED = [AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False), AddedToken("Ordinary", normalized=True),
         AddedToken("caf\u00e9", normalized=True), AddedToken("  ", normalized=False)]
# Characters that the normalization of `tokenizers` does not know: it follows an older version of Unicode than its patterns.
NOT_NORMALIZED = {0x1DF6, 0x32FF, 0xA7F2, 0xA7F3, 0xA7F4, 0xAB69, *range(0x10781, 0x107BB), 0x1F16C, *range(0x1FBF0, 0x1FBFA)}


def corpus():
    path = pathlib.Path(tempfile.mkdtemp(prefix="yoke-text-")) / "text.txt"
    subprocess.run([REPOSITORY / "scripts/generate_text", path, "300000"], check=True, stdout=subprocess.DEVNULL)
    text = path.read_text()
    path.unlink()
    path.parent.rmdir()
    rng = random.Random(1)
    # The trainer is slow on long words, and some pre-tokenizers do not split a text at all.
    return [text[at:at + 100] for at in range(0, len(text), 100)] + [random_text(rng) for _ in range(3000)]


def byte_level(pre=None, normalizer=None, prefix_space=False, gpt2_pattern=False, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=pre is None or gpt2_pattern)
    tokenizer.pre_tokenizer = last if pre is None else pre_tokenizers.Sequence([*pre, last])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer, trainers.BpeTrainer(vocab_size=2000, special_tokens=SPECIAL, show_progress=False,
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def characters(pre=None, normalizer=None, strip=False):
    """BPE over characters, with tokens <0xNN> for the bytes of other characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    if isinstance(pre, pre_tokenizers.Metaspace) and pre.split:
        tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", *SPECIAL]
    return tokenizer, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False, limit_alphabet=200,
                                          max_token_length=12)


def isolated(pattern, **options):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", **options)


SPACES = normalizers.Replace(" ", "▁")
TOKENIZERS = {
    "GPT-2": lambda: byte_level(),
    "GPT-2 with a prefix space": lambda: byte_level(prefix_space=True),
    "Llama 3": lambda: byte_level([isolated(LLAMA3)], ignore_merges=True),
    "Qwen": lambda: byte_level([isolated(QWEN)], normalizers.NFC()),
    "o200k": lambda: byte_level([isolated(O200K)]),
    "DeepSeek": lambda: byte_level([pre_tokenizers.Split(p, behavior="isolated") for p in DEEPSEEK]),
    "StarCoder": lambda: byte_level([pre_tokenizers.Digits(individual_digits=True)], gpt2_pattern=True),
    "NFKC": lambda: byte_level(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("ab", "b")])),
    "runs of digits": lambda: byte_level([pre_tokenizers.Digits(individual_digits=False)]),
    "removed matches": lambda: byte_level([pre_tokenizers.Split(Regex(r"\s+"), behavior="removed")]),
    "the inverse of removed matches": lambda: byte_level([pre_tokenizers.Split(Regex(QWEN), behavior="removed", invert=True)]),
    "merged with previous": lambda: byte_level([pre_tokenizers.Split("e", behavior="merged_with_previous")]),
    "merged with next": lambda: byte_level([pre_tokenizers.Split(Regex("[aeiou]"), behavior="merged_with_next")]),
    "contiguous": lambda: byte_level([pre_tokenizers.Split(Regex("[aeiou]"), behavior="contiguous")]),
    "contiguous, inverted": lambda: byte_level([pre_tokenizers.Split(Regex("[aeiou]"), behavior="contiguous", invert=True)]),
    "scripts": lambda: byte_level([isolated(r"[\p{Han}\s]+|\P{Greek}|\d+|[^\s\p{Cyrillic}]+")]),
    "words": lambda: byte_level([isolated(r"\w+|[^\w\s]+|\W")]),
    "Llama 2": lambda: characters(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), SPACES]), strip=True),
    "Mistral": lambda: characters(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), strip=True),
    "Metaspace": lambda: characters(pre_tokenizers.Metaspace(prepend_scheme="always", split=True)),
    "Gemma": lambda: characters(pre_tokenizers.Split(" ", behavior="merged_with_previous"), SPACES),
}

PIECES = [" ", "  ", "\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\u180e", "\u200b", "'s", "'T", "'LL", "'ve", "'\u017f",
          "don't", "we'll", "0", "12", "345678", "\u0664", "\u00bd", "\u2167", "Hello", "world", "ab", "CamelCase", "e\u0301", "caf\u00e9",
          "cafe\u0301", "Ordinary", "\u212b", "\u1e9b\u0323", "\uac00", "\u1100\u1161", "漢字", "かな", "Ελλάδα", "Привет", "שלום", "!?", "...",
          "$%&", "\U0001F469\u200d\U0001F680", "\U0001F600", "<both>", "<left>", "<right>", "\u2581", "<0x41>", "<unk>", "\x00", "\ufeff",
          "\ufb01", *SPECIAL]


def random_character(rng):
    """Returns a character that Unicode 14 assigns, or one that no version assigns. PCRE2 of Debian 12, and this Python,
    know Unicode 14; `tokenizers` knows a later one."""
    while True:
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= code < 0xE000 and code not in NOT_NORMALIZED and (
                unicodedata.category(chr(code)) != "Cn" or code >= 0x40000):
            return chr(code)


def random_text(rng):
    kind = rng.random()
    parts = []
    for _ in range(rng.randrange(1, 30)):
        if rng.random() < kind:
            parts.append(rng.choice(PIECES))
        elif rng.random() < 0.5:
            parts.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyz E") for _ in range(rng.randrange(1, 12))))
        else:
            parts.append(random_character(rng))
    return "".join(parts)


def ask_yoke(folder, texts):
    """Returns, for each text (in bytes), the ids, the decoded and the streamed text; or the error."""
    request = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    program = pathlib.Path(os.environ["YOKE_BIN"]).parent / "tests/print_tokens"
    answer = subprocess.run([program, folder], input=request, capture_output=True, timeout=HANG)
    if answer.returncode != 0:
        raise AssertionError(answer.stderr.decode())
    at = 0

    def take(unit):
        nonlocal at
        size, = struct.unpack_from("<I", answer.stdout, at)
        at += 4
        if size == FAILED:
            return None
        at += size * unit
        return answer.stdout[at - size * unit:at]

    results = []
    for _ in texts:
        ids = take(4)
        results.append(take(1).decode() if ids is None else
                       (list(struct.unpack(f"<{len(ids) // 4}i", ids)), take(1).decode(), take(1).decode()))
    return results


# The layouts of the families, in the language of transformers.
TURN = "{% for m in messages %}"
CHATS = {
    "chatml": (TURN + "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"),
    "llama3": ("{{ bos_token }}" + TURN + "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + (m['content'] | trim)"
               " + '<|eot_id|>' }}{% endfor %}"),
    "mistral": ("{{ bos_token }}" + TURN + "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
                "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"),
    "zephyr": TURN + "{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}",
}
CHAT_TOKENS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.corpus = corpus()

    def compare(self, name, tokenizer, texts):
        with tempfile.TemporaryDirectory(prefix="yoke-text-") as folder:
            tokenizer.save(folder + "/tokenizer.json")
            answers = ask_yoke(folder, [t.encode() for t in texts])
        for text, answer in zip(texts, answers):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids)
            expected = (ids, decoded, decoded)
            if "\ufffd" in decoded:  # a stream writes U+FFFD once where the whole text may have it for each byte
                expected, answer = expected[:2], answer[:2]
            # unittest would need minutes to show how long lists differ.
            if answer != expected:
                self.fail(f"{name}: {text[:200]!r}: {str(answer)[:400]} instead of {str(expected)[:400]}")

    def test_ids_and_texts_are_equal(self):
        rng = random.Random(7)
        for name, make in TOKENIZERS.items():
            with self.subTest(name):
                tokenizer, trainer = make()
                tokenizer.train_from_iterator(self.corpus, trainer)
                if name in ("Llama 2", "Mistral"):
                    document = json.loads(tokenizer.to_str())
                    vocab = document["model"]["vocab"]
                    for byte in range(256):
                        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
                    tokenizer = Tokenizer.from_str(json.dumps(document))
                # The decoder of tokenizers 0.23 writes the text that Llama 2's normalizer prepends to such tokens.
                tokenizer.add_tokens([t for t in ADDED if name != "Llama 2" or not t.normalized])
                self.compare(name, tokenizer, [random_text(rng) for _ in range(STRINGS // len(TOKENIZERS))] + ["".join(self.corpus), "", " "])

    def test_models_of_sentencepiece_are_equal(self):
        rng = random.Random(5)
        for options in ({"byte_fallback": True}, {"add_dummy_prefix": False}, {"bos_id": -1, "control_symbols": ["<end>"]}):
            with self.subTest(str(options)), tempfile.TemporaryDirectory(prefix="yoke-text-") as folder:
                pathlib.Path(folder, "text.txt").write_text("\n".join(t.replace("\n", " ") for t in self.corpus if "\0" not in t))
                sentencepiece.SentencePieceTrainer.train(
                    input=folder + "/text.txt", model_prefix=folder + "/tokenizer", model_type="bpe", vocab_size=1500,
                    character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
                    **options)
                peer = sentencepiece.SentencePieceProcessor(model_file=folder + "/tokenizer.model")
                # sentencepiece itself never finds the names of tokens in a text, and ends it at a zero byte.
                names = ("\0", "<unk>", "<s>", "</s>", "<end>")
                texts = [t for t in (random_text(rng) for _ in range(5000)) if not any(n in t for n in names)]
                for text, (ids, *_) in zip(texts, ask_yoke(folder, [t.encode() for t in texts])):
                    if ids != peer.encode(text):
                        self.fail(f"{options}: {text[:200]!r}: {ids[:99]} instead of {peer.encode(text)[:99]}")

    def test_conversations_are_equal(self):
        rng = random.Random(9)
        for name, template in CHATS.items():
            for family in ("Qwen", "Mistral"):
                with self.subTest(f"{name}, {family}"), tempfile.TemporaryDirectory(prefix="yoke-text-") as folder:
                    tokenizer, trainer = TOKENIZERS[family]()
                    tokenizer.train_from_iterator(self.corpus, trainer)
                    tokenizer.add_special_tokens(CHAT_TOKENS)
                    tokenizer.save(folder + "/tokenizer.json")
                    ends = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
                    pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(ends))
                    chats = [[{"role": ("user", "assistant")[turn % 2], "content": random_text(rng)}
                              for turn in range(rng.randrange(1, 7))] for _ in range(300)]
                    self.compare_chats(folder, name, chats, PreTrainedTokenizerFast(
                        tokenizer_object=tokenizer, chat_template=template, **ends))

    def test_the_guide_trains_a_tokenizer_that_prepares_a_corpus(self):
        guide = (REPOSITORY / "docs/text.md").read_text()
        with tempfile.TemporaryDirectory(prefix="yoke-text-") as folder:
            pathlib.Path(folder, "my.txt").write_text("".join(self.corpus))
            code = re.search("```python\n(.*?)```", guide, re.DOTALL)[1]
            subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=HANG)
            subprocess.run([os.environ["YOKE_BIN"] + "/yoke", "data", "prepare", "--tokenizer", ".", "-o", "corpus.bin", "my.txt"],
                           cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=HANG)
            info = json.loads(pathlib.Path(folder, "corpus.json").read_text())
            self.assertEqual((info["documents"], info["document_end"]), (1, 0))

    def compare_chats(self, folder, name, chats, peer):
        lines = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
        pathlib.Path(folder, "chats.jsonl").write_text(lines)
        subprocess.run([os.environ["YOKE_BIN"] + "/yoke", "data", "prepare", "--tokenizer", folder, "--chat", "--template", name,
                        "--no-append-eos", "-o", folder + "/chats.bin", folder + "/chats.jsonl"], check=True, stdout=subprocess.DEVNULL)
        data = pathlib.Path(folder, "chats.bin").read_bytes()[24:]
        ids = list(struct.unpack(f"<{len(data) // 2}H", data))
        expected = [id for chat in chats for id in peer.apply_chat_template(chat, return_dict=False)]
        if ids != expected:
            self.fail(f"{name}: {len(ids)} ids instead of {len(expected)}")
        # chat_template_test.cpp tests which tokens are targets.
        mask = pathlib.Path(folder, "chats.mask").read_bytes()
        self.assertEqual(len(mask), len(ids))
        self.assertGreater(sum(mask), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
