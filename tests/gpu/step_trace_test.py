#!/usr/bin/env python3
"""Tests bench/gpu/step_trace.py on handmade traces."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import step_trace  # noqa: E402


def event(category, name, begin, length, correlation=None):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, "args": args}


def step(number, begin):
    return event("user_annotation", f"ProfilerStep#{number}", begin, 100)


# Two steps. The first one has two kernels of 40 us with a gap of 10 us, after which the results are read.
GOOD = [
    {"ph": "M", "name": "process_name", "args": {}},
    step(7, 0),
    event("cuda_runtime", "cudaMemcpyAsync", 1, 1, 1),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 2, 1, 1),
    event("cuda_runtime", "cudaLaunchKernel", 5, 2, 2),
    event("kernel", "gemm", 10, 40, 2),
    event("cuda_runtime", "cudaLaunchKernel", 8, 2, 3),
    event("kernel", "norm", 60, 40, 3),
    event("cuda_runtime", "cudaMemcpyAsync", 11, 1, 4),
    event("cuda_runtime", "cudaStreamSynchronize", 12, 80),
    event("cuda_runtime", "cudaStreamSynchronize", 95, 1),
    event("cuda_runtime", "cudaDeviceSynchronize", 150, 10),  # the profiler, between the steps
    step(8, 200),
    event("cuda_driver", "cuLaunchKernelEx", 205, 2, 9),
    event("kernel", "gemm", 210, 40, 9),
]


class StepsOf(unittest.TestCase):
    def waits(self, *more):
        return [wait for s in step_trace.steps_of(GOOD + list(more)) for wait in s.waits_inside]

    def test_reading_the_results_at_the_end_is_no_violation(self):
        steps = step_trace.steps_of(GOOD)
        self.assertEqual([s.number for s in steps], [7, 8])
        self.assertEqual([s.launches for s in steps], [2, 1])
        self.assertEqual([s.waits_at_end for s in steps], [2, 0])
        self.assertEqual(self.waits(), [])

    def test_waiting_before_a_launch_is_one(self):
        for name in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree"):
            self.assertEqual(self.waits(event("cuda_runtime", name, 7, 1)), [f"{name} at 7 us"])

    def test_waiting_for_the_whole_device_is_one_everywhere_in_a_step(self):
        self.assertEqual(self.waits(event("cuda_runtime", "cudaDeviceSynchronize", 97, 1)),
                         ["cudaDeviceSynchronize at 97 us"])

    def test_an_asynchronous_copy_of_pageable_memory_waits(self):
        copy = (event("cuda_runtime", "cudaMemcpyAsync", 3, 1, 5), event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 4, 1, 5))
        self.assertEqual(self.waits(*copy), ["cudaMemcpyAsync of pageable memory at 3 us"])

    def test_a_graph_is_a_launch_too(self):
        launch = event("cuda_runtime", "cudaGraphLaunch", 97, 1, 6)
        self.assertEqual(len(self.waits(launch)), 2)


class IdleShare(unittest.TestCase):
    def test_is_what_no_work_of_any_stream_covers(self):
        overlapping = [event("cuda_runtime", "cudaLaunchKernel", 9, 1, 5), event("kernel", "copy", 20, 10, 5)]
        steps = step_trace.steps_of(GOOD[:-3] + overlapping)
        self.assertAlmostEqual(step_trace.idle_share(steps), 1 - 81 / 98)  # busy for 1 + 40 + 40 us of those from 2 to 100

    def test_is_unknown_without_a_device(self):
        self.assertIsNone(step_trace.idle_share(step_trace.steps_of([step(1, 0)])))


class KernelTable(unittest.TestCase):
    def test_adds_up_the_times_of_a_kernel_over_all_steps(self):
        table = step_trace.kernel_table(step_trace.steps_of(GOOD))
        self.assertEqual((table["kinds"], table["count"], table["total_us"]), (3, 4, 121))
        self.assertEqual(table["top"][:2], [{"name": "gemm", "count": 2, "total_us": 80}, {"name": "norm", "count": 1, "total_us": 40}])

    def test_lists_the_longest_but_counts_all(self):
        many = [e for i in range(40) for e in (event("cuda_runtime", "cudaLaunchKernel", 20 + i, 1, 100 + i),
                                               event("kernel", f"k{i}", 300 + i, 1 + i, 100 + i))]
        table = step_trace.kernel_table(step_trace.steps_of(GOOD + many))
        self.assertEqual((table["kinds"], table["count"], len(table["top"])), (43, 44, step_trace.TOP))
        self.assertEqual(table["total_us"], 121 + sum(range(1, 41)))
        self.assertEqual([row["name"] for row in table["top"][:4]], ["gemm", "norm", "k39", "k38"])

    def test_has_no_kernels_that_were_launched_between_steps(self):
        outside = (event("cuda_runtime", "cudaLaunchKernel", 160, 1, 50), event("kernel", "late", 165, 9, 50))
        table = step_trace.kernel_table(step_trace.steps_of(GOOD + list(outside)))
        self.assertNotIn("late", [row["name"] for row in table["top"]])

    def test_has_every_kernel_of_a_graph(self):
        graph = [event("cuda_runtime", "cudaGraphLaunch", 20, 1, 60)] + [event("kernel", "node", 30 + i, 1, 60) for i in range(5)]
        table = step_trace.kernel_table(step_trace.steps_of(GOOD + graph))
        self.assertIn({"name": "node", "count": 5, "total_us": 5}, table["top"])

    def test_is_none_without_a_device(self):
        self.assertIsNone(step_trace.kernel_table(step_trace.steps_of([step(1, 0)])))


class Attention(unittest.TestCase):
    def attention(self, *names):
        kernels = [e for i, name in enumerate(names) for e in (event("cuda_runtime", "cudaLaunchKernel", 20 + i, 1, 100 + i),
                                                               event("kernel", name, 30 + i, 1, 100 + i))]
        return step_trace.attention_of(step_trace.steps_of(GOOD + kernels))

    def test_is_recognised_by_its_kernels(self):
        self.assertEqual(self.attention(), "")
        self.assertEqual(self.attention("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128"), "cuDNN")
        self.assertEqual(self.attention("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>"), "flash")
        self.assertEqual(self.attention("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "flash_bwd_dot_do_o_kernel"), "efficient, flash")


class Summary(unittest.TestCase):
    def test_names_the_step_of_a_violation(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"traceEvents": GOOD + [event("cuda_runtime", "cudaMemcpy", 6, 1)]}, file)
            file.flush()
            found = step_trace.summary(file.name)
        self.assertEqual(found["waits_inside"], ["step 7: cudaMemcpy at 6 us"])
        self.assertEqual((found["steps"], found["launches"], found["waits_at_end"]), (2, [2, 1], [2, 0]))
        self.assertEqual((found["kernels"]["count"], found["attention"]), (4, ""))


if __name__ == "__main__":
    unittest.main()
