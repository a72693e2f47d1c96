#!/usr/bin/env python3
"""Runs small jobs on several machines, made of namespaces, and lets something go wrong.

  door      the machines do not run the same job: all ranks refuse before the first step
  death     processes are killed: the others end and name a process that was killed
  silence   processes or machines stop, or a cable is cut: the same
  hang      a rank stands still but answers: all end, and name the rank that is behind
  calm      slow networks and busy machines: the run continues, with the losses of an undisturbed one
  signal    signals to some of the ranks: all ranks save and end with the same code
  meeting   what can be wrong with names, ports and secrets when the ranks meet, and strangers at the port
  launcher  the launcher of some ranks is killed
  elastic   yoke train --nnodes MIN:MAX: machines are lost and come back

  node_faults.py list
  node_faults.py run [--only PATTERN,...] [--short] [--repeat N] [--seed S] [--minutes M] [--with KEY=VALUE]
  node_faults.py prove    runs the cases of silence without beats and without the kernel's own time limit for
                          connections, and requires that all of them fail

Prints one line for each case and a summary with times. They are measured with one monotonic clock, from the fault to
the end of the last process that must end. Exits with 1 if a case failed, and with 77 if namespaces are refused.

Variables: YOKE_BIN (folder of yoke)."""
import argparse
import fnmatch
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import elastic_cases  # noqa: F401, registers its cases
import run_cases  # noqa: F401
import start_cases  # noqa: F401
from node_bench import CASES, Bench
from node_job import BIN, Skipped, Wrong

SKIPPED = 77
NO_USER_TIMEOUT = BIN.parent / "lib/libyoke_no_user_timeout.so"


def run_case(bench, one):
    """Returns what is wrong, or None, and what was measured: a time, a text or None."""
    try:
        return None, one.function(bench, *one.arguments)
    except Wrong as wrong:
        return str(wrong), None
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return f"the harness failed: {error!r}", None
    finally:
        bench.clean_up()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def run(bench, names, options):
    """Runs the cases, in a random order if they are repeated. Returns what is wrong with those that failed, by name."""
    order = [name for name in names for _ in range(options.repeat)]
    if options.repeat > 1:
        bench.rng.shuffle(order)
    failed, failures, skipped, times = {}, 0, 0, {}
    begin = time.monotonic()
    for name in order:
        started = time.monotonic()
        try:
            wrong, measured = run_case(bench, CASES[name])
        except Skipped as reason:
            skipped += 1
            print(f"skipped  {name}: {reason}", flush=True)
            continue
        if wrong is not None:
            failures += 1
            failed[name] = wrong
        if isinstance(measured, float):
            times.setdefault(CASES[name].group, []).append(measured)
            measured = f"{measured:.2f} s"
        print(f"{'FAILED' if wrong else 'passed'} {measured or '':>9}  {name}  "
              f"(all of it {time.monotonic() - started:.1f} s)" + (f": {wrong}" if wrong else ""), flush=True)
    for group, values in times.items():
        print(f"{group}: {len(values)} times, median {percentile(values, 50):.2f} s, "
              f"99 % below {percentile(values, 99):.2f} s, longest {max(values):.2f} s")
    print(f"{len(order)} cases, {len(order) - failures - skipped} passed, {failures} failed, {skipped} skipped; "
          f"{time.monotonic() - begin:.0f} s", flush=True)
    return failed


def selected(options):
    patterns = options.only.split(",")
    return [name for name, one in CASES.items()
            if any(fnmatch.fnmatch(name, p) for p in patterns) and (one.short or not options.short)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "run", "prove"])
    parser.add_argument("--only", default="*", help="names of cases, separated by commas, with * and ?")
    parser.add_argument("--short", action="store_true", help="only the most important cases")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="length of the runs that must not be disturbed")
    parser.add_argument("--with", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="an override for all ranks")
    options = parser.parse_args()
    if options.command == "prove":
        options.overrides.append("launch.lost_after=0")
        options.only = "silence*"
    names = selected(options)
    if options.command == "list":
        print("\n".join(names))
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ranks inherit this; nohup ignores the signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the nodes are removed
    with tempfile.TemporaryDirectory(prefix="yoke-nodes-jobs-") as folder:
        try:
            bench = Bench(pathlib.Path(folder).resolve(), options)
        except Skipped as reason:
            print(f"SKIPPED: {reason}")
            sys.exit(SKIPPED)
        if options.command == "prove":
            if not NO_USER_TIMEOUT.exists():
                sys.exit(f"{NO_USER_TIMEOUT} is missing")
            bench.environment = {"LD_PRELOAD": str(NO_USER_TIMEOUT)}
        try:
            failed = run(bench, names, options)
        finally:
            bench.nodes.stop()
    if options.command == "prove":
        others = [name for name in names if "has not ended" not in failed.get(name, "")]
        print(f"these cases need no beats: {others}" if others else "without beats, all cases fail as they should")
        sys.exit(1 if others else 0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
