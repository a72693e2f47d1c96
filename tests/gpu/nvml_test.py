#!/usr/bin/env python3
"""Tests bench/gpu/nvml.py with a library made for these tests."""
import pathlib
import sys
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import nvml  # noqa: E402

SUCCESS, NOT_SUPPORTED, NOT_FOUND = 0, 3, 6  # nvmlReturn_t


class Library:
    """The functions of libnvidia-ml that are called, on a device with the given processes {number: (name, bytes)}."""

    def __init__(self, processes):
        self.running = processes

    def nvmlInit_v2(self):
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, _index, device):
        device._obj.value = 1
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _device, count, found):
        if self.running is None:
            return NOT_SUPPORTED
        count._obj.value = len(self.running)
        for info, (pid, (_, size)) in zip(found, self.running.items()):
            info.pid, info.bytes = pid, size
        return SUCCESS

    def nvmlSystemGetProcessName(self, pid, text, _length):
        text.value = self.running[pid][0]
        return SUCCESS if text.value else NOT_FOUND


class Processes(unittest.TestCase):
    def processes(self, running):
        with unittest.mock.patch.object(nvml.Nvml, "load", staticmethod(lambda: Library(running))):
            return nvml.Nvml().processes()

    def test_are_listed_with_their_names_and_memory(self):
        self.assertEqual(self.processes({7: (b"python3", 5 << 30), 9: (b"", nvml.NOT_AVAILABLE)}),
                         [{"pid": 7, "name": "python3", "bytes": 5 << 30}, {"pid": 9, "name": "", "bytes": None}])
        self.assertEqual(self.processes({}), [])

    def test_are_not_known_without_a_driver_or_if_the_query_is_not_supported(self):
        self.assertIsNone(self.processes(None))
        with unittest.mock.patch.object(nvml.Nvml, "load", side_effect=OSError):
            self.assertIsNone(nvml.Nvml().processes())


if __name__ == "__main__":
    unittest.main()
