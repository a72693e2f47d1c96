"""Queries of the driver's library of measurements (NVML). Uses only the standard library."""
import ctypes

CLOCKS = {"sm": 1, "memory": 2}  # nvmlClockType_t
MOST_PROCESSES = 64
NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of version 2, which nvmlDeviceGetComputeRunningProcesses_v3 fills."""

    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint)]


class Nvml:
    """The driver's library of measurements. Every query returns None if it is not supported."""

    def __init__(self):
        self.device = None
        try:
            self.library = self.load()
        except OSError:
            return
        device = ctypes.c_void_p()
        if self.library.nvmlInit_v2() == 0 and self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0:
            self.device = device

    @staticmethod
    def load():
        return ctypes.CDLL("libnvidia-ml.so.1")

    def number(self, function, *arguments):
        value = ctypes.c_uint(0)
        if self.device is None or getattr(self.library, function)(self.device, *arguments, ctypes.byref(value)) != 0:
            return None
        return value.value

    def driver(self):
        text = ctypes.create_string_buffer(96)
        if self.device is None or self.library.nvmlSystemGetDriverVersion(text, 96) != 0:
            return ""
        return text.value.decode()

    def state(self):
        """Returns clocks in MHz, power in W and temperature in degrees Celsius."""
        found = {}
        for name, kind in CLOCKS.items():
            found[f"{name}_clock"] = self.number("nvmlDeviceGetClockInfo", kind)
            found[f"{name}_clock_max"] = self.number("nvmlDeviceGetMaxClockInfo", kind)
        for name, function in (("power", "nvmlDeviceGetPowerUsage"), ("power_limit", "nvmlDeviceGetEnforcedPowerLimit")):
            milliwatts = self.number(function)
            found[name] = None if milliwatts is None else milliwatts / 1000
        found["temperature"] = self.number("nvmlDeviceGetTemperature", 0)
        return found

    def processes(self):
        """Returns the processes that compute on the device: number, name, and bytes of memory, as far as they are
        known."""
        count, found = ctypes.c_uint(MOST_PROCESSES), (ProcessInfo * MOST_PROCESSES)()
        query = "nvmlDeviceGetComputeRunningProcesses_v3"
        if self.device is None or getattr(self.library, query)(self.device, ctypes.byref(count), found) != 0:
            return None
        return [{"pid": info.pid, "name": self.process_name(info.pid),
                 "bytes": None if info.bytes == NOT_AVAILABLE else info.bytes} for info in found[:count.value]]

    def process_name(self, pid):
        text = ctypes.create_string_buffer(256)
        return text.value.decode(errors="replace") if self.library.nvmlSystemGetProcessName(pid, text, 256) == 0 else ""
