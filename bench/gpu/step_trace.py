"""Reads a trace of `profile.steps` and determines whether the host waits for the device inside a step, how long the
device is idle, and which kernels take its time. The trace is the Chrome trace of LibTorch's profiler. Needs only the
standard library."""
import collections
import dataclasses
import json
import re

STEP = re.compile(r"ProfilerStep#(\d+)$")
HOST_CALLS = {"cuda_runtime", "cuda_driver", "cuda_sync"}
DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = re.compile(r"cu(da)?(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)")
# Calls in which the host waits. cudaFree waits until the device has finished all work.
WAITS = {"cudaStreamSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cudaMemcpy",
         "cudaMemcpy2D", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cudaFree", "Stream Sync", "Event Sync"}
DEVICE_WIDE_WAITS = {"cudaDeviceSynchronize", "cuCtxSynchronize", "Context Sync"}
TOP = 25  # rows of a table of kernels
# Which attention ran, by the names of its kernels. The first pattern that matches applies.
ATTENTION = (("cuDNN", re.compile(r"cudnn.*(sdpa|attention|fmha)|sdpa_sm\d+", re.IGNORECASE)),
             ("flash", re.compile(r"flash_(fwd|bwd)|pytorch_flash")),
             ("efficient", re.compile(r"fmha_cutlass|AttentionKernel")))


@dataclasses.dataclass
class Step:
    """One ProfilerStep of the trace; times are in microseconds."""

    number: int
    launches: int = 0
    waits_inside: list = dataclasses.field(default_factory=list)  # texts like "cudaStreamSynchronize at 812 us"
    waits_at_end: int = 0  # waits after the last launch, which read the results
    work: list = dataclasses.field(default_factory=list)  # intervals (begin, end) of work on the device
    kernels: list = dataclasses.field(default_factory=list)  # (name, duration) of each kernel, copy and fill


def read_trace(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def is_wait(event, pageable):
    name = event["name"]
    return name in WAITS or name in DEVICE_WIDE_WAITS or correlation(event) in pageable


def correlation(event):
    return event.get("args", {}).get("correlation")


def judge_step(span, calls, pageable):
    """Examines the host's calls during a step. A wait is inside the step if something is launched
    after it, or if it waits for the whole device."""
    step = Step(int(STEP.match(span["name"]).group(1)))
    mine = [e for e in calls if span["ts"] <= e["ts"] < span["ts"] + span["dur"]]
    launches = [e["ts"] for e in mine if LAUNCH.match(e["name"])]
    step.launches = len(launches)
    last_launch = max(launches, default=span["ts"])
    for event in mine:
        if not is_wait(event, pageable):
            continue
        if event["ts"] < last_launch or event["name"] in DEVICE_WIDE_WAITS:
            kind = " of pageable memory" if correlation(event) in pageable else ""
            step.waits_inside.append(f"{event['name']}{kind} at {event['ts'] - span['ts']:.0f} us")
        else:
            step.waits_at_end += 1
    return step, {correlation(e) for e in mine} - {None}


def steps_of(events):
    """Returns all steps in the order of the trace."""
    calls = sorted((e for e in events if e.get("cat") in HOST_CALLS), key=lambda e: e["ts"])
    device = [e for e in events if e.get("cat") in DEVICE_WORK]
    # An asynchronous copy from or to memory that is not pinned also makes the host wait.
    pageable = {correlation(e) for e in device if "Pageable" in e["name"]} - {None}
    work = collections.defaultdict(list)
    for event in device:
        work[correlation(event)].append(event)
    steps = []
    for span in events:
        if span.get("cat") == "user_annotation" and STEP.match(span.get("name", "")):
            step, started = judge_step(span, calls, pageable)
            own = [event for key in started for event in work[key]]
            step.work = [(event["ts"], event["ts"] + event["dur"]) for event in own]
            step.kernels = [(event["name"], event["dur"]) for event in own]
            steps.append(step)
    return steps


def idle_share(steps):
    """Returns the share of the time, between the first and the last piece of work of all steps, in which the device was
    idle. None means that there was no work."""
    work = sorted(interval for step in steps for interval in step.work)
    if not work:
        return None
    busy, reached = 0.0, work[0][0]
    for begin, end in work:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - work[0][0])


def kernel_table(steps):
    """Returns the kernels that took the most time in all steps together, None without work of a device. Times of
    kernels that ran at the same time are added, so the sum can be more than the time of the steps."""
    times = collections.defaultdict(list)
    for step in steps:
        for name, duration in step.kernels:
            times[name].append(duration)
    if not times:
        return None
    rows = sorted(({"name": name, "count": len(of_name), "total_us": sum(of_name)} for name, of_name in times.items()),
                  key=lambda row: -row["total_us"])
    return {"kinds": len(rows), "count": sum(row["count"] for row in rows),
            "total_us": sum(row["total_us"] for row in rows), "top": rows[:TOP]}


def attention_of(steps):
    """Returns which attention ran, such as "cuDNN", or several with commas; "" if no kernel of attention was found."""
    names = {name for step in steps for name, _ in step.kernels}
    first = (next((kind for kind, pattern in ATTENTION if pattern.search(name)), None) for name in names)
    return ", ".join(sorted(set(first) - {None}))


def summary(path):
    """Returns a dict of a trace file: steps, launches per step, idle share, waits inside steps, waits at the end per
    step, table of kernels, attention."""
    steps = steps_of(read_trace(path))
    waits = [f"step {step.number}: {wait}" for step in steps for wait in step.waits_inside]
    return {"steps": len(steps), "launches": [step.launches for step in steps], "idle_share": idle_share(steps),
            "waits_inside": waits, "waits_at_end": [step.waits_at_end for step in steps],
            "kernels": kernel_table(steps), "attention": attention_of(steps)}
