"""Runs Yoke for the oracle tests, and finds the Python in which they run."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "bench"), str(REPOSITORY / "bench/peers")]
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
HANG = 900  # seconds after which a program counts as hung; a busy machine is many times slower than an idle one

from harness import find_peers_python  # noqa: E402


def use_peers():
    """Restarts in the Python of `scripts/setup --peers`; exits with 77 and a reason if it is missing."""
    python = find_peers_python()
    if pathlib.Path(sys.prefix).resolve() != python.parents[1].resolve():
        if not python.exists():
            print(f"SKIPPED: {python} does not exist; scripts/setup --peers creates it")
            sys.exit(SKIPPED)
        os.execv(python, [str(python), *sys.argv])
    try:
        import numpy, safetensors, torch, transformers  # noqa: E401, F401
    except ImportError as error:
        print(f"SKIPPED: {error}; scripts/setup --peers installs it")
        sys.exit(SKIPPED)
    torch.set_num_threads(1)


class OracleTest(unittest.TestCase):
    """Base class of the oracle tests. Each class has its own folder with a text of about 200 kB."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="yoke-oracle-")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        cls.text = cls.folder / "text.txt"
        subprocess.run([REPOSITORY / "scripts/generate_text", cls.text, "200000"], check=True, stdout=subprocess.DEVNULL)

    def train(self, ranks, **overrides):
        """Runs `yoke train` with the given keys (a__b means a.b); returns the run folder."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        keys = {"parallel_backend": "ptd", "device": "cpu", "run__dir": run, "data__path": self.text,
                "data__order": "sequential", "metrics__every": 1, **overrides}
        run_file = run.parent / "run.toml"
        run_file.write_text("")
        command = [os.environ["YOKE_BIN"] + "/yoke", "train", str(run_file), "--nproc", str(ranks)]
        command += [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return run


def read_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
