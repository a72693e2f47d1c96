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


class Summary(unittest.TestCase):
    def test_names_the_step_of_a_violation(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"traceEvents": GOOD + [event("cuda_runtime", "cudaMemcpy", 6, 1)]}, file)
            file.flush()
            found = step_trace.summary(file.name)
        self.assertEqual(found["waits_inside"], ["step 7: cudaMemcpy at 6 us"])
        self.assertEqual((found["steps"], found["launches"], found["waits_at_end"]), (2, [2, 1], [2, 0]))


if __name__ == "__main__":
    unittest.main()
