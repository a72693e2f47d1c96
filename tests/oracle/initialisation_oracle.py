#!/usr/bin/env python3
"""Checks that the initial parameters equal the formula bit for bit in every layout."""
import unittest

import support

support.use_peers()

import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from llama import initial_values  # noqa: E402

LAYERS, SEED = 3, 12345


class Initialisation(support.OracleTest):
    def parameters(self, ranks, **overrides):
        """Returns the parameters after one step. Its learning rate is too small to change any bit."""
        run = self.train(ranks, seed=SEED, train__steps=1, train__lr=1e-30, train__global_batch=4, data__seq_len=16,
                         checkpoint__every=1, model__dim=36, model__layers=LAYERS, model__heads=6, model__kv_heads=2,
                         model__ffn_dim=50, model__vocab=259, **overrides)
        return load_file(run / "checkpoints/step-00000001/model.safetensors")

    def check(self, parameters, count):
        self.assertEqual(len(parameters), count)
        for name, values in parameters.items():
            expected = initial_values(name, values.size, LAYERS, SEED).reshape(values.shape)
            self.assertEqual(values.dtype, np.float32, name)
            self.assertTrue(np.array_equal(values.view(np.uint32), expected.view(np.uint32)), name)

    def test_single_rank_has_the_bits_of_the_formula(self):
        self.check(self.parameters(1, model__tied="false"), 9 * LAYERS + 3)

    def test_two_shards_of_uneven_sizes_have_the_same_bits(self):
        self.check(self.parameters(2, dp_shards=2, model__tied="false"), 9 * LAYERS + 3)

    def test_a_tied_head_is_stored_once(self):
        self.check(self.parameters(2, dp_shards=2, model__tied="true"), 9 * LAYERS + 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
