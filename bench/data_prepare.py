#!/usr/bin/env python3
"""Measures `yoke data prepare` beside Hugging Face's `tokenizers`, which encodes in batches with as many threads.

    bench/data_prepare.py [--yoke build/release/bin/yoke] [--megabytes 100] [--pairs 3] [--threads 2] [TEXT]

TEXT is cut into documents at its blank lines, numbered, and repeated until there are as many megabytes of .jsonl. The
tokenizer, byte-level BPE with the pattern of Qwen and 16,000 tokens, is trained on it. The two programs run in turn, and
their tokens must be equal. Needs scripts/setup --peers.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from harness import DEFAULT_YOKE, REPOSITORY, find_peers_python, machine, peers_python, require_yoke

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BATCH = 1000


def make_job(folder, text, size):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    documents = [d for d in text.split("\n\n") if d.strip()]
    tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=16000, special_tokens=["<|end|>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    written = 0
    with open(folder / "text.jsonl", "w", encoding="utf-8") as out:
        for i in range(sys.maxsize):
            if written >= size:
                return
            some = [documents[(5 * i + k) % len(documents)] for k in range(5)]
            written += out.write(json.dumps({"text": "\n\n".join(some) + f" {i}"}, ensure_ascii=False) + "\n")


def run_peer(folder):
    """What the peer process does: writes the ids as uint16."""
    import numpy
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end|>")
    with open(folder / "text.jsonl", encoding="utf-8") as lines, open(folder / "peer.bin", "wb") as out:
        batch = []

        def flush():
            ids = []
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids.extend(encoding.ids)
                ids.append(end)
            numpy.array(ids, dtype=numpy.uint16).tofile(out)
            batch.clear()

        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == BATCH:
                flush()
        flush()


def seconds(command, env=None):
    start = time.monotonic()
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoke", type=pathlib.Path, default=DEFAULT_YOKE)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("text", nargs="?", type=pathlib.Path, default=REPOSITORY / "data/novels.txt")
    options = parser.parse_args()
    if options.peer:
        return run_peer(options.peer)
    python = peers_python()
    if pathlib.Path(sys.prefix).resolve() != find_peers_python().parents[1].resolve():
        os.execv(python, [str(python), *sys.argv])
    require_yoke(options.yoke)
    with tempfile.TemporaryDirectory(prefix="yoke-prepare-") as name:
        folder = pathlib.Path(name)
        make_job(folder, options.text.read_text(encoding="utf-8"), options.megabytes * 1_000_000)
        size = (folder / "text.jsonl").stat().st_size / 1e6
        print(f"{machine()}\n{size:.0f} MB of {options.text.name}, {options.threads} threads")
        ratios = []
        for pair in range(options.pairs):
            for old in folder.glob("yoke.*"):
                old.unlink()
            ours = seconds([options.yoke, "data", "prepare", "--tokenizer", folder, "-o", folder / "yoke.bin",
                            "--threads", options.threads, folder / "text.jsonl"])
            theirs = seconds([python, __file__, "--peer", folder],
                             {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"})
            if (folder / "yoke.bin").read_bytes()[24:] != (folder / "peer.bin").read_bytes():
                raise SystemExit("the two programs wrote different tokens")
            ratios.append(theirs / ours)
            print(f"pair {pair + 1}: yoke {ours:.1f} s ({size / ours:.1f} MB/s), tokenizers {theirs:.1f} s, {ratios[-1]:.1f}x")
        print(f"yoke is {statistics.median(ratios):.1f}x as fast ({min(ratios):.1f} .. {max(ratios):.1f}); the tokens are equal")


if __name__ == "__main__":
    main()
