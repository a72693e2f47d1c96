#!/usr/bin/env python3
"""Tests how bench/gpu/bench.py orders, leaves out and reports its rows, with runs whose figures are known."""
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/gpu"), str(ROOT / "bench")]
import bench  # noqa: E402
import report  # noqa: E402
import runs  # noqa: E402
import workloads  # noqa: E402

CARD = {"name": "H200", "driver": "580", "torch": "2.11", "data_sheet_tflops": 989, "gemm_size": 8192, "gemm_tflops": 800.0,
        "gemm_range": [790.0, 810.0]}
TOKENS, SECONDS, FLOPS = 1000, 0.5, 4e11


class Fake:
    """A Runner that runs nothing."""

    def __init__(self, failing=()):
        self.failing = failing
        self.real = runs.Runner("yoke", "cuda", False, tempfile.gettempdir())
        self.real.data = lambda vocab: "tokens"

    def version(self):
        return "yoke 1"

    def logged(self, workload, keys):
        if workload.name in self.failing:
            raise SystemExit("no room")
        return runs.Logged({50: 2.0, 51: 9.0}, [SECONDS] * 3, 97, FLOPS, TOKENS)

    def eager(self, workload, compiled):
        return runs.Logged({50: 2.5, 51: 2.5}, [(1.5 if compiled else 2) * SECONDS] * 3, 200)

    def config(self, workload, keys):
        return self.real.config(workload, keys)

    def predicted(self, workload, keys):
        return 100


class Bench(unittest.TestCase):
    def measure(self, part, budget=1e9, failing=(), rounds=1):
        options = types.SimpleNamespace(device="cuda", tiny=False, budget=budget, parts=[part], rounds=rounds, json_file=None)
        own = bench.Bench(options, Fake(failing))
        own.card = lambda: CARD
        return own.measure()

    def test_measures_every_workload_in_every_variant_the_valuable_ones_first(self):
        rows = [(row["workload"], row["variant"]) for row in self.measure("mfu")["mfu"]]
        self.assertEqual(rows, [(name, variant) for variant in workloads.VARIANTS for name in workloads.WORKLOADS])
        self.assertEqual(rows[0], ("8b blocks, 4 micro-batches", "eager"))
        self.assertEqual(len(rows), 35)

    def test_computes_the_mfu_of_both_conventions(self):
        row = self.measure("mfu")["mfu"][0]
        rate = TOKENS / SECONDS
        self.assertEqual(row["tokens_per_second"], rate)
        self.assertAlmostEqual(row["tflops"]["full"], FLOPS * rate / 1e12)
        self.assertAlmostEqual(row["tflops"]["causal"], (FLOPS - 6 * 8 * 4096 * 8192) * rate / 1e12)
        printed = report.mfu_row(row, CARD)
        self.assertEqual(printed[6].split(",")[0], f"{100 * 800 / 989:.1f} %")
        self.assertEqual(printed[7:], ["100.0 %", "65 %", "0.00 GiB of 0.00 GiB: 0.970"])

    def test_has_targets_for_rows_without_recomputation(self):
        targets = {row["variant"]: row["target"] for row in self.measure("mfu")["mfu"] if row["workload"] == "1b, 32k tokens"}
        self.assertEqual(targets, {"eager": 0.57, "captured": 0.57, "captured, tuned": 0.57, "eager, recompute": None,
                                   "captured, recompute": None})

    def test_marks_the_tables_if_other_processes_use_the_device(self):
        busy = {**CARD, "other_processes": [{"pid": 7, "name": "python3", "bytes": 1 << 30}]}
        results = {**self.measure("mfu"), "card": busy}
        self.assertIn("NOT ALONE: other processes compute on the device: python3 (7, 1.00 GiB)", report.tables(results, 1e-2))
        self.assertNotIn("NOT ALONE", "".join(self.measure("mfu")["table"]))

    def test_leaves_out_and_lists_what_does_not_fit_into_the_budget(self):
        results = self.measure("mfu", budget=20)
        fitting = [name for name, workload in workloads.WORKLOADS.items() if workload.seconds < 20]
        self.assertEqual(results["left_out"][0], "8b blocks, 4 micro-batches, eager")
        self.assertEqual({row["workload"] for row in results["mfu"]}, set(fitting))
        self.assertIn("left out, because the budget ended: 8b blocks, 4 micro-batches, eager", results["table"])

    def test_continues_after_a_row_that_fails(self):
        results = self.measure("mfu", failing=("1b, 32k tokens",))
        self.assertEqual((len(results["failed"]), len(results["mfu"])), (5, 30))
        self.assertIn("FAILED: 1b, 32k tokens, eager: no room", results["table"])

    def test_compares_with_the_peer_and_tells_the_rows_apart(self):
        results = self.measure("peer", rounds=3)
        launches, throughput = (results["peer"][name] for name in ("150m, 1k tokens", "150m, 64k tokens"))
        self.assertEqual(launches["captured"]["ratio"], [2.0] * 3)
        self.assertEqual((launches["captured"]["target"], throughput["captured"]["target"]), (2.0, 1.0))
        self.assertAlmostEqual(launches["eager"]["loss_difference"], 0.2)

    def test_compares_with_the_compiled_peer_last(self):
        results = self.measure("peer", rounds=2)
        self.assertEqual(list(results["peer"])[-1], "150m, 1k tokens, compiled")
        compiled = results["peer"]["150m, 1k tokens, compiled"]
        self.assertEqual({program: (own["ratio"], own["target"]) for program, own in compiled.items()},
                         {"PyTorch, compiled": ([1.0] * 2, None), "eager": ([1.5] * 2, None),
                          "captured": ([1.5] * 2, 1.0), "captured, tuned": ([1.5] * 2, 1.0)})
        printed = [line for line in results["table"] if line.startswith("| 150m, 1k tokens, compiled | ")]
        self.assertEqual([line.split(" | ")[1] for line in printed],
                         ["PyTorch, compiled", "yoke, eager", "yoke, captured", "yoke, captured, tuned"])

    def test_leaves_out_the_compiled_peer_if_there_is_no_time_to_compile(self):
        results = self.measure("peer", budget=100)
        self.assertEqual(results["left_out"], ["150m, 1k tokens against PyTorch, compiled, round 1"])
        self.assertEqual(list(results["peer"]), ["150m, 1k tokens", "150m, 64k tokens"])


class PeerProgram(unittest.TestCase):
    def command(self, compiled):
        commands = []
        runner = runs.Runner("yoke", "cuda", False, "/tmp")
        runner.data = lambda vocab: "tokens"
        with unittest.mock.patch.object(runs, "run_program", lambda name, command, *_, **__: commands.append(command)), \
                unittest.mock.patch.object(runs, "read_log"):
            runner.eager(workloads.WORKLOADS["150m, 1k tokens"], compiled)
        return commands[0]

    def test_is_compiled_on_request(self):
        self.assertIn("--compile", self.command(compiled=True))
        self.assertNotIn("--compile", self.command(compiled=False))


class Workloads(unittest.TestCase):
    def test_have_the_stated_numbers_of_tokens(self):
        fake = Fake()
        tokens = {}
        for name, workload in workloads.WORKLOADS.items():
            config = fake.config(workload, {})
            tokens[name] = config["train.global_batch"] * config["data.seq_len"]
            self.assertGreater(config["train.steps"] // config["metrics.every"], runs.WARMUP_LINES, name)
        self.assertEqual(tokens, {"8b blocks, 4 micro-batches": 4 * 8192, "8b blocks, 4 micro-batches, fp8": 4 * 8192,
                                  "1b, 32k tokens": 32768, "150m, 64k tokens": 65536, "150m, 1k tokens": 1024,
                                  "8b blocks, 1 micro-batch": 8192, "150m, 8k tokens": 8192})

    def test_run_in_the_stated_number_of_micro_batches(self):
        for name, workload in workloads.WORKLOADS.items():
            config = Fake().config(workload, {})
            micro_batches = -(-config["train.global_batch"] // config["train.max_micro_batch"])
            self.assertEqual(micro_batches, 4 if "4 micro" in name else 1, name)

    def test_are_captured_on_a_gpu_only(self):
        self.assertEqual(list(workloads.variants("cuda")), list(workloads.VARIANTS))
        self.assertEqual(list(workloads.variants("cpu")), ["eager", "eager, recompute"])


if __name__ == "__main__":
    unittest.main()
