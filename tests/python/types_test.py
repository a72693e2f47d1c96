"""Checks that mypy --strict accepts the package, whose types users see."""
import os
import subprocess
import sys
import tempfile
import unittest

import support


class Types(unittest.TestCase):
    def test_mypy_accepts_the_package(self):
        with tempfile.TemporaryDirectory() as cache:
            words = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", cache]
            done = subprocess.run(words, cwd=support.SOURCE, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_package_tells_type_checkers_that_it_has_types(self):
        import yoke_trainer
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(yoke_trainer.__file__), "py.typed")))


if __name__ == "__main__":
    unittest.main()
