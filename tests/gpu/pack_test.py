#!/usr/bin/env python3
"""Tests that scripts/gpu_test packs a build, and that the package works without the rest of the repository.
Usage: pack_test.py BUILD TORCH_LIB"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from harness import find_peers_python  # noqa: E402

BUILD, TORCH_LIB = sys.argv[1:3]
PEERS = find_peers_python()  # the only Python that has torch on a machine that builds
CLEAN = ["env", "-i", "PATH=/usr/bin:/bin", f"YOKE_TORCH_LIB={TORCH_LIB}", f"YOKE_DEPS={PEERS.parents[2]}", "/usr/bin/python3"]


def run(words, folder=None):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, cwd=folder, check=False)


def has_gpu():
    sys.path.insert(0, str(ROOT / "tests/gpu"))
    sys.dont_write_bytecode = True
    import steps

    return steps.no_gpu() == ""


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="yoke-pack-")
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.prefix = cls.folder / "a place"
        cls.packed = run([ROOT / "scripts/gpu_test", "--pack", cls.prefix, "--build", BUILD])

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def gpu_test(self, *words):
        return run([*CLEAN, self.prefix / "share/yoke/scripts/gpu_test", *words], self.folder)

    def test_makes_a_small_prefix_and_says_how_to_use_it(self):
        self.assertEqual(self.packed.returncode, 0, self.packed.stderr)
        self.assertRegex(self.packed.stdout, r"MiB of 50; copy it .*\n  share/yoke/scripts/gpu_test")

    def test_skips_in_one_sentence_without_a_gpu(self):
        if has_gpu():
            self.skipTest("this machine has a GPU")
        done = self.gpu_test()
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (77, "", 1), done.stderr)
        self.assertRegex(done.stderr, r"^scripts/gpu_test: .*: nothing was tested$")
        self.assertEqual(self.gpu_test("--require").returncode, 1)

    def test_rehearses_on_the_cpu_with_files_that_all_may_write_to(self):
        for path in self.prefix.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o022)
        measured = "ok" if PEERS.exists() else "not possible here"
        expected = {"doctor": "ok", "card": measured, "nccl": "not possible here", "two_ranks": "ok", "atlas": measured,
                    "kernels": measured, "losses": "ok"}
        done = self.gpu_test("--rehearse", *(word for step in expected for word in ("--only", step)), "-o", "r.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        verdicts = {row["step"]: row["verdict"] for row in json.loads((self.folder / "r.json").read_text())["steps"]}
        self.assertEqual(verdicts, expected)

    def test_refuses_a_folder_that_is_not_empty_and_an_unknown_step(self):
        self.assertEqual(run([ROOT / "scripts/gpu_test", "--pack", ROOT / "scripts"]).returncode, 2)
        self.assertIn("two_ranks", self.gpu_test("--only", "nonsense").stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
