#!/usr/bin/env python3
"""Measures how long a new user waits for the first loss: from the file of the wheel to the first line of a run.

    bench/from_nothing.py yoke_trainer-*.whl

Each command runs with an empty home folder and a PATH on which nothing is but Python and the tools of the base system
that the tutorial uses; there is no compiler. pip loads PyTorch and its CUDA libraries from the package index, which
takes most of the time.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from harness import machine

TOOLS = ("env", "sh", "cat", "ls")
RUN_FILE = """run.dir = "runs/first"
model.preset = "novels"
data.path = "my.txt"
data.seq_len = 128
train.steps = 1
train.global_batch = 8
metrics.every = 1
"""
TARGET = 120  # seconds


def main():
    if len(sys.argv) != 2 or not os.path.isfile(sys.argv[1]):
        raise SystemExit(__doc__)
    wheel = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="yoke-nothing-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        tools = folder / "bin"
        tools.mkdir()
        for tool in TOOLS:
            (tools / tool).symlink_to(shutil.which(tool))
        kept = {key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "SSL_")) or key.endswith("_proxy")}
        env = {**kept, "HOME": name, "PATH": f"{folder}/venv/bin:{tools}", "PIP_NO_CACHE_DIR": "1", "LANG": "C.UTF-8"}

        begin = time.perf_counter()

        def run(what, *command):
            start = time.perf_counter()
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
            print(f"{what:34} {time.perf_counter() - start:7.1f} s", flush=True)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout

        print(machine())
        run("an environment", os.path.realpath(sys.executable), "-m", "venv", "venv")
        run("pip install, with torch and CUDA", "venv/bin/pip", "install", "-q", wheel)
        installed = time.perf_counter()
        run("a text", "venv/bin/python", "-c",
            "from pydoc_data.topics import topics; open('my.txt', 'w').write('\\n'.join(topics.values()))")
        (folder / "first.toml").write_text(RUN_FILE, encoding="utf-8")
        out = run("yoke train, one step, 2 ranks", "venv/bin/yoke", "train", "first.toml", "--nproc", "2")
        end = time.perf_counter()
        loss = next((line for line in out.splitlines() if "loss:" in line), None)
        if loss is None:
            raise SystemExit(f"the run printed no loss:\n{out}")
        print(loss)
        print(f"{end - begin:.1f} s in all, {end - installed:.1f} s after the installation; target: {TARGET} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
