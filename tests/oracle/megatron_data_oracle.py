#!/usr/bin/env python3
"""Checks that data.order = "megatron" gives the samples of Megatron Core, in its order.

Megatron's own builder writes the datasets, and its own datasets read them.
"""
import json
import logging
import os
import subprocess
import unittest

import support

support.use_peers()

import numpy as np  # noqa: E402
import torch  # noqa: E402

SEED, SEQ_LEN, BATCH = 1234, 24, 4
END = 0  # the id that ends a document


class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = 100_000, END, -1, {"class": "ids"}


class MegatronData(support.OracleTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        logging.disable(logging.WARNING)
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        if not torch.distributed.is_initialized():  # a blend asks for its rank
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        # Ids of 2 and of 4 bytes; documents of one and of several sequences.
        cls.a = cls.write("a", np.uint16, 1000, sequences=1)
        cls.b = cls.write("b", np.int32, 100_000, sequences=3)

    @classmethod
    def write(cls, name, dtype, vocab, sequences, documents=400):
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        random = np.random.default_rng(len(name) + vocab)
        prefix = str(cls.folder / name)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
        for _ in range(documents):
            lengths = random.integers(1, 90, sequences)
            builder.add_document(torch.from_numpy(random.integers(1, vocab, int(lengths.sum()))), lengths.tolist())
        builder.finalize(prefix + ".idx")
        return prefix

    def theirs(self, prefixes, weights, split, sizes):
        """Returns Megatron's datasets for training, evaluation and test."""
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        config = GPTDatasetConfig(
            random_seed=SEED, sequence_length=SEQ_LEN, blend=(prefixes, weights), split=split,
            path_to_cache=str(self.folder / "cache"), reset_position_ids=False, reset_attention_mask=False,
            eod_mask_loss=False, create_attention_mask=False, tokenizer=Tokenizer())
        return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()

    def ours(self, part, count, steps, prefixes, **overrides):
        keys = {"parallel_backend": "serial", "data__order": "megatron", "data__seq_len": SEQ_LEN, "seed": SEED,
                "train__steps": steps, "train__global_batch": BATCH, "model__preset": "tiny", **overrides}
        run_file = self.folder / "run.toml"
        run_file.write_text(f"[data]\npath = {json.dumps(prefixes)}\n")
        command = [os.environ["YOKE_BIN"] + "/yoke", "data", "samples", str(run_file), "--part", part, "--count", str(count)]
        command += [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in keys.items()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=support.HANG)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["tokens"] for line in done.stdout.splitlines()]

    def expect_equal(self, ours, theirs):
        for i, tokens in enumerate(ours):
            expected = [*theirs[i]["tokens"].tolist(), theirs[i]["labels"][-1].item()]
            self.assertEqual(tokens, expected, f"sample {i}")
        print(f"{len(ours)} samples are equal", flush=True)

    def test_one_dataset(self):
        """A part of an epoch; and several epochs, the last of which is shuffled with the others or apart."""
        per_epoch = self.theirs([self.a], None, "900,80,20", [1, 1, 0])[0]
        windows = len(per_epoch)
        for samples in (windows // 2 // BATCH * BATCH, 1000, int(1.95 * windows) // BATCH * BATCH,
                        int(2.4 * windows) // BATCH * BATCH):
            with self.subTest(samples=samples, windows=windows):
                theirs = self.theirs([self.a], None, "900,80,20", [samples, 1, 0])[0]
                self.expect_equal(
                    self.ours("train", samples, samples // BATCH, [self.a], data__split=[900, 80, 20]), theirs)

    def test_evaluation(self):
        # Megatron counts (steps / interval + 1) evaluations of so many batches.
        steps, every, batches = 25, 10, 9
        samples = (steps // every + 1) * batches * BATCH
        theirs = self.theirs([self.b], None, "969,30,1", [steps * BATCH, samples, 0])[1]
        ours = self.ours("eval", 50, steps, [self.b], eval__every=every, eval__batches=batches)
        self.expect_equal(ours, theirs)

    def test_blend(self):
        """The order depends on the last bits of the shares. NumPy adds up eight or more weights in another order."""
        for weights in ([1], [0.7, 0.3], [1, 1], [3, 10], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1],
                        [0.1, 0.2, 0.3, 0.1, 0.1, 0.7, 0.3, 0.2, 0.6]):
            prefixes = [(self.a, self.b)[i % 2] for i in range(len(weights))]
            with self.subTest(weights=weights):
                theirs = self.theirs(prefixes, weights, "900,80,20", [1000, 80, 0])
                keys = {"data__weights": weights, "data__split": [900, 80, 20]}
                self.expect_equal(self.ours("train", 1000, 1000 // BATCH, prefixes, **keys), theirs[0])
                # 250 steps and one evaluation after each 250 make two evaluations of ten batches.
                keys |= {"eval__every": 250, "eval__batches": 10}
                self.expect_equal(self.ours("eval", 80, 1000 // BATCH, prefixes, **keys), theirs[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
