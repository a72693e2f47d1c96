#!/usr/bin/env python3
"""Runs the commands that the README and the guides print. Usage: commands_test.py YOKE [PAGE ...]

blocks.py finds them. The blocks of a page are run or written one after the other in a copy of the repository, as they
are printed; except on the pages AS_PRINTED, the environment makes models and runs small. A line that begins with one of
DONE is left out, because the build under test is what these commands lead to.
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import blocks
from blocks import ROOT, blocks_of_page

YOKE = pathlib.Path(sys.argv[1]).resolve()
PAGES = sys.argv[2:] or blocks.PAGES
DONE = ("scripts/setup", "scripts/demo", "scripts/test", "cmake --preset", "cmake --build --preset", "export PATH=")
# Small models and short runs. Commands that name a step find it in the run folder that prepare() makes.
SMALL = {"YOKE_MODEL_LAYERS": "4", "YOKE_DATA_SEQ_LEN": "32", "YOKE_TRAIN_GLOBAL_BATCH": "8", "YOKE_TRAIN_STEPS": "4",
         "YOKE_CHECKPOINT_EVERY": "2", "YOKE_METRICS_EVERY": "1", "YOKE_DEVICE": "cpu"}
# These pages print their own, small runs, and what they print about them is what a reader should see.
AS_PRINTED = ("docs/first_run.md", "docs/choose_a_backend.md")
# These commands need the dimensions that they print: files that describe a whole run, a pipeline of eight stages, and a
# comparison whose bounds are for the whole model.
WHOLE_RUN = re.compile(r"import configs/(megatron|nanotron|torchtitan)/|plan configs/llama_150m|--case \"gw_hp:")
LIMIT = 1800  # seconds of a block, against hangs


def runnable(text):
    lines = "\n".join(line for line in text.splitlines() if not line.startswith(DONE))
    return re.sub(r"tps>=[0-9.]+", "tps>=0.001", lines)  # whether a gate of speed holds depends on the load of the machine


def prepare(folder):
    """Makes a copy of the repository with a text, a run file and the run folder of the demo."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name.startswith(("configs/", "scripts/", "bench/", "sdk/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(YOKE.parents[1])
    (folder / "data").mkdir()
    subprocess.run([ROOT / "scripts/generate_text", folder / "data/novels.txt"], check=True, capture_output=True)
    shutil.copy(folder / "configs/parity.toml", folder / "run.toml")
    shutil.copy(folder / "data/novels.txt", folder / "my.txt")
    # Other tutorials use the run file of the first one.
    for block in blocks_of_page("docs/first_run.md"):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    (folder / "raw.bin").write_bytes(bytes(1 << 16))
    (folder / "tokens.bin").write_bytes(b"YOKETOK1" + struct.pack("<IIQ", 2, 256, 1 << 15) + bytes(1 << 16))
    run(folder, "yoke train configs/novels.toml --nproc 2", {"YOKE_TRAIN_STEPS": "300", "YOKE_CHECKPOINT_EVERY": "100"})
    run(folder, "yoke train run.toml run.dir=runs/run", {"YOKE_TRAIN_STEPS": "300", "YOKE_CHECKPOINT_EVERY": "300"})
    run(folder, "yoke checkpoint export runs/run/checkpoints/step-00000300 -o my-llama; cp -r my-llama my-model")
    run(folder, "yoke train run.toml model.preset= model.from=my-model lora.rank=16 lora.alpha=32 'lora.targets=[\"q_proj\", \"v_proj\"]' "
        "run.dir=runs/lora", {"YOKE_TRAIN_STEPS": "100", "YOKE_CHECKPOINT_EVERY": "100"})
    prepare_text(folder)


def use_own_run_file(folder, text):
    """Makes the first run file that a page prints the one of its commands, and trains with it."""
    (folder / "run.toml").write_text(re.search(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1])
    shutil.rmtree(folder / "runs/run")
    run(folder, "yoke train run.toml", {"YOKE_TRAIN_STEPS": "100", "YOKE_CHECKPOINT_EVERY": "50"})


def write_tokenizer(folder, end, controls):
    """Writes a byte-level tokenizer without merges. end: the token of the end of text. controls: further added tokens."""
    visible = [byte for byte in range(256) if chr(byte).isprintable() and byte not in (32, 173)]
    hidden = [byte for byte in range(256) if byte not in visible]
    names = {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + n) for n, byte in enumerate(hidden)}}
    added = [{"id": 256 + n, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for n, text in enumerate([end, *controls])]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {names[byte]: byte for byte in range(256)}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "bos_token": controls[0] if controls else end}))


def prepare_text(folder):
    """Makes what docs/text.md names: models with tokenizers, documents, conversations and a run."""
    for name, end, controls in (("models/qwen", "<|endoftext|>", []), ("chat-model", "</s>", ["<s>", "<|user|>", "<|assistant|>", "<|system|>"]),
                                ("models/llama", "<|end_of_text|>", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])):
        shutil.copytree(folder / "my-llama", folder / name)
        write_tokenizer(folder / name, end, controls)
    text = (folder / "my.txt").read_text()
    parts = [text[begin : begin + 500] for begin in range(0, 50000, 500)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    (folder / "chats.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": part}]}) + "\n"
        for part in parts))
    run(folder, "yoke data prepare --tokenizer models/qwen -o novel.bin my.txt; "
        "yoke train run.toml model.preset= model.from=models/qwen data.path=novel.bin run.dir=runs/r",
        {"YOKE_TRAIN_STEPS": "300", "YOKE_CHECKPOINT_EVERY": "300"})


def run(folder, text, more=None, small=SMALL, code=0):
    path = f"{YOKE.parent}:{os.environ['PATH']}"
    if WHOLE_RUN.search(text):
        small = {name: value for name, value in small.items() if not name.startswith(("YOKE_MODEL", "YOKE_DATA", "YOKE_TRAIN_G"))}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, capture_output=True, text=True, timeout=LIMIT,
                          check=False, env={**os.environ, **small, **(more or {}), "PATH": path, "HOME": str(folder),
                               "YOKE_BACKEND_PATH": str(folder / "mine/build")})
    if done.returncode != code:
        raise AssertionError(f"ended with {done.returncode}, not {code}:\n{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="yoke-commands-")
        cls.base = pathlib.Path(cls.temporary.name) / "base"
        cls.base.mkdir()
        prepare(cls.base)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_every_block_runs_or_has_a_reason(self):
        ran, left_out = 0, 0
        for page in PAGES:
            folder = self.base.parent / page.replace("/", "_")
            shutil.copytree(self.base, folder, symlinks=True)
            if page in ("docs/models.md", "docs/text.md"):  # their runs take their dimensions from a folder
                (folder / "run.toml").write_text((folder / "run.toml").read_text().replace('preset = "tiny"\n', ""))
            if page == "docs/run_file.md":
                use_own_run_file(folder, (ROOT / page).read_text(encoding="utf-8"))
            for block in blocks_of_page(page):
                if block.reason:
                    left_out += 1
                    continue
                if block.file:
                    (folder / block.file).write_text(block.text, encoding="utf-8")
                    continue
                with self.subTest(f"{block.page}:{block.line}"):
                    begin = time.monotonic()
                    run(folder, runnable(block.text), small={} if page in AS_PRINTED else SMALL,
                        code=1 if block.fails else 0)
                    ran += 1
                    print(f"{block.page}:{block.line} {time.monotonic() - begin:.1f} s", flush=True)
        print(f"{ran} blocks ran, {left_out} are marked as not run")


class Runnable(unittest.TestCase):
    def test_leaves_out_what_leads_to_the_build(self):
        self.assertEqual(runnable("scripts/setup && x\nyoke a"), "yoke a")

    def test_asks_for_no_speed(self):
        self.assertEqual(runnable("yoke a --gate \"tps>=0.95\""), "yoke a --gate \"tps>=0.001\"")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
