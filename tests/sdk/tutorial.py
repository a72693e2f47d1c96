#!/usr/bin/env python3
"""Runs the shell blocks of sdk/README.md as a reader would: in order, in an empty folder. A block that is marked
`fails` must end with exit code 1. Usage: tutorial.py README BIN"""
import os
import re
import subprocess
import sys
import tempfile


def main(readme, programs):
    blocks = re.findall(r"^```sh( fails)?\n(.*?)^```$", open(readme).read(), re.M | re.S)
    if len(blocks) < 3:
        sys.exit(f"{readme}: {len(blocks)} shell blocks, at least 3 expected")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        env = {**os.environ, "PATH": programs + ":" + os.environ["PATH"]}
        for fails, script in blocks:
            run = subprocess.run(["bash", "-euo", "pipefail", "-c", "umask 022\n" + script], cwd=folder, env=env,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print(script + run.stdout)
            expected = 1 if fails else 0
            if run.returncode != expected:
                sys.exit(f"this block ended with {run.returncode}, not {expected}:\n{script}")


if __name__ == "__main__":
    main(*sys.argv[1:])
