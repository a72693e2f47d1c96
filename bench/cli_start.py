#!/usr/bin/env python3
"""Compares the wall time of `yoke --help` with that of /bin/true: median and range of 50 interleaved starts of each.

    bench/cli_start.py [build/release/bin/yoke]
"""
import os
import sys
import time

from harness import DEFAULT_YOKE, machine, require_yoke, spread

STARTS = 50


def start_ms(command):
    """Returns the milliseconds from start to end of a program; its output is discarded."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    begin = time.perf_counter()
    child = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    _, status = os.waitpid(child, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return 1e3 * seconds


def main():
    yoke = sys.argv[1] if len(sys.argv) > 1 else str(DEFAULT_YOKE)
    require_yoke(yoke)
    commands = {"/bin/true": ["/bin/true"], "yoke --help": [yoke, "--help"]}
    print(machine())
    times = {name: [] for name in commands}
    for _ in range(STARTS):
        for name, command in commands.items():
            times[name].append(start_ms(command))
    for name, values in times.items():
        print(f"{name:12} {spread(values)} ms")
    print("target: yoke --help below 50 ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
