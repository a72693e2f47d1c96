"""What the tests of the wheel share: the environment with the wheel, and runs of `yoke`."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["YOKE_SOURCE"])
BUILD = pathlib.Path(os.environ["YOKE_BIN"]).parent
VENV = pathlib.Path(sys.prefix)
YOKE = VENV / "bin/yoke"
HANG = 900  # seconds; only ends hangs


class WheelTest(unittest.TestCase):
    """A test with a temporary folder, which contains a text to train on."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "text.txt").write_text("".join(f"the ox {i * i % 97} pulls; " for i in range(2000)))

    @classmethod
    def yoke(cls, *words, program=YOKE, **more):
        """Runs the program in the temporary folder, with few variables, and returns code and output."""
        return subprocess.run([program, *map(str, words)], cwd=cls.folder, env=cls.variables(), capture_output=True,
                              text=True, timeout=HANG, check=False, **more)

    @classmethod
    def variables(cls):
        return {"PATH": "/usr/bin:/bin", "HOME": str(cls.folder), "YOKE_DEVICE": "cpu"}

    @classmethod
    def train_words(cls, name, *overrides):
        """Returns the command line of a small run that writes the folder `name`."""
        (cls.folder / "run.toml").write_text('[model]\npreset = "tiny"\nlayers = 1\n[data]\npath = "text.txt"\n'
                                             "seq_len = 32\n[train]\nglobal_batch = 4\n[metrics]\nevery = 1\n")
        return ["train", "run.toml", f"run.dir={name}", "parallel_backend=ptd", "--nproc", "2", *overrides]

    @classmethod
    def train(cls, name, *overrides):
        """Trains with two ranks and returns the folder of the run."""
        done = cls.yoke(*cls.train_words(name, *overrides))
        assert done.returncode == 0, done.stderr
        return cls.folder / name
