"""Measures the time of an operation on a device at a sustained rate. Needs torch."""
import statistics
import time

import torch

WARMUP = 3
BATCHES = 7  # timed batches of calls; the median counts


class Stopwatch:
    """Times operations. `seconds` is the time that one measurement may take."""

    def __init__(self, device, seconds):
        self.device = device
        self.seconds = seconds

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def host_seconds(self, call, count):
        """Returns the seconds that the host needs for `count` calls, without waiting for the device after them."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - begin
        self.wait()
        return seconds

    def device_seconds(self, call, count):
        """Returns the seconds that the device needs for `count` calls."""
        if self.device == "cpu":
            return self.host_seconds(call, count)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def measure(self, call):
        """Returns the median seconds of a call. The first calls, which load and choose kernels, are left out; the
        number of calls is chosen so that all batches together take about `seconds`."""
        for _ in range(WARMUP):
            call()
        self.wait()
        once = max(self.device_seconds(call, 1), 1e-6)
        count = max(1, int(self.seconds / BATCHES / once))
        return statistics.median(self.device_seconds(call, count) for _ in range(BATCHES)) / count
