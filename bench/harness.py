"""Shared by the benchmark drivers: finds programs, runs them, writes results, and prints medians with ranges."""
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_YOKE = REPOSITORY / "build/release/bin/yoke"


def require_yoke(path):
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{path} does not exist; build it (cmake --preset release && cmake --build --preset release), "
                         "or name another one")


def find_peers_python():
    """Returns the interpreter of `scripts/setup --peers`; cmake/FindTorchWheel.cmake searches in the same way."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("YOKE_DEPS") or os.path.join(cache, "yoke")) / "venv/bin/python"


def peers_python():
    python = find_peers_python()
    if not python.exists():
        raise SystemExit(f"{python} does not exist; run scripts/setup --peers (YOKE_DEPS names its folder)")
    return python


def run_program(name, command, log, is_complete=lambda: False, threads=1):
    """Runs a command in a separate process session, so that all its processes can be ended at an interrupt or the time
    limit. A failure ends this program, unless is_complete() returns True because all results are written. Such a
    failure is only printed: torch sometimes aborts while it destroys its process groups."""
    command = [str(part) for part in command]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with open(log, "w", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        code = child.wait(timeout=600)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    if code != 0 and is_complete():
        print(f"{name} ended with {code} after its last step; its figures count")
    elif code != 0:
        with open(log, encoding="utf-8", errors="replace") as lines:
            tail = "".join(lines.readlines()[-15:])
        raise SystemExit(f"{name} ended with {code}: {' '.join(command)}\n{tail}")


def make_text(path):
    subprocess.run([REPOSITORY / "scripts/generate_text", path], check=True, stdout=subprocess.DEVNULL)


def write_json(path, results):
    """Replaces a file as a whole, so that a program that is killed leaves the results it wrote before."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def machine():
    """Returns date, processor and load, to be printed with every result."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{datetime.date.today()}, {os.cpu_count()} x {model}, load {os.getloadavg()[0]:.1f}"


def spread(values, form=".2f"):
    """Returns "median (min .. max)"."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"
