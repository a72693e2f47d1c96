"""Checks the program `yoke` of the wheel, as pip installs it: what it contains, how it starts, and what it reports."""
import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

import support
import yoke_trainer

PACKAGE = pathlib.Path(yoke_trainer.__file__).parent
PREFIX = PACKAGE / "prefix"
PROGRAM = PREFIX / "bin/yoke"


class Contents(support.WheelTest):
    def test_it_requires_the_version_of_pytorch_that_it_was_built_with(self):
        version = re.search(r"torch_version=(\S+)", (support.SOURCE / "scripts/setup").read_text())[1]
        self.assertIn(f"torch=={version}", importlib.metadata.requires("yoke-trainer"))

    def test_it_is_a_wheel_for_any_python_3_on_debian_12(self):
        wheels = list(support.VENV.parent.glob("dist/*.whl"))
        self.assertEqual([w.name.split("-", 2)[2] for w in wheels], ["py3-none-manylinux_2_35_x86_64.whl"])

    def test_it_contains_what_an_install_contains(self):
        prefix = self.folder / "prefix"
        subprocess.run([support.SOURCE / "tests/sdk/make_install", support.BUILD, prefix], check=True,
                       capture_output=True)
        installed = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
        packed = {str(path.relative_to(PREFIX)) for path in PREFIX.rglob("*") if path.is_file()}
        self.assertGreater(len(installed), 50)
        self.assertEqual({name for name in packed if "__pycache__" not in name}, installed)

    def test_no_program_knows_where_it_was_built(self):
        programs = [path for path in PREFIX.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreater(len(programs), 4)
        for path in programs:
            for place in (support.SOURCE, support.BUILD):
                self.assertNotIn(str(place).encode(), path.read_bytes(), path)
            dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            self.assertNotRegex(dynamic, r"R(UN)?PATH.*\[/", path)


class Starting(support.WheelTest):
    def test_doctor_finds_libtorch_and_the_backends(self):
        done = self.yoke("doctor")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"ok +LibTorch +torch-2\.11\.0")
        self.assertRegex(done.stdout, r"ok +backends .*deepspeed_stub.*ptd")

    def test_it_trains_with_two_ranks(self):
        run = self.train("run", "train.steps=3")
        self.assertEqual((run / "metrics.jsonl").read_text().count("\n"), 3)

    def test_without_the_entry_point_it_finds_pytorch_beside_the_package(self):
        done = self.yoke("backends", "list", program=PROGRAM)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ptd", done.stdout)

    def test_output_and_exit_codes_are_those_of_the_program(self):
        for words in (["--help"], ["config", "schema"], ["train", "no.toml"], ["checkpoint", "verify", "nothing"]):
            through_python, itself = self.yoke(*words), self.yoke(*words, program=PROGRAM)
            self.assertEqual(through_python.stdout, itself.stdout)
            self.assertEqual(through_python.stderr, itself.stderr)
            self.assertEqual(through_python.returncode, itself.returncode)
        self.assertEqual(self.yoke("train", "no.toml").returncode, 2)

    def test_ctrl_c_ends_a_run_cleanly(self):
        words = self.train_words("stopped", "train.steps=100000")
        run = subprocess.Popen([support.YOKE, *words], cwd=self.folder, env=self.variables(), stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
        for line in run.stdout:
            if line.startswith("step:"):
                break
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=support.HANG)
        self.assertEqual(run.returncode, 130)

    def test_no_signal_is_ignored_that_the_program_would_not_ignore(self):
        place = self.folder / "ignored"
        (place / "yoke_trainer/prefix/bin").mkdir(parents=True)
        shutil.copy(PACKAGE / "__init__.py", place / "yoke_trainer")
        shutil.copy(PACKAGE / "_program.py", place / "yoke_trainer")
        program = place / "yoke_trainer/prefix/bin/yoke"
        program.write_text("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
        program.chmod(0o755)
        self.assertEqual(start(place).stdout.split(), ["SigIgn:", "0" * 16])

    def test_it_does_not_import_pytorch_or_numpy(self):
        code = ("import sys, yoke_trainer._program; yoke_trainer._program.environment();"
                "print('torch' in sys.modules, 'numpy' in sys.modules)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "False False\n")

    def test_a_libtorch_that_the_user_has_chosen_is_kept(self):
        done = subprocess.run([support.YOKE, "backends", "list"], env={**os.environ, "YOKE_TORCH_LIB": "/no/such"},
                              capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('YOKE_TORCH_LIB = "/no/such" is not a folder', done.stderr)


class Tutorials(support.WheelTest):
    def test_need_only_the_wheel(self):
        """Runs the commands of two pages one after the other, as they are printed, in a folder that is empty."""
        printed = ""
        for page in ("first_run.md", "choose_a_backend.md"):
            text = (support.SOURCE / "docs" / page).read_text()
            for language, title, block in re.findall(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
                if title:
                    (self.folder / title).write_text(block)
                elif not language:
                    printed += self.run_commands(block)
        self.assertIn("held-out loss: ", printed)
        self.assertRegex(printed, "Take (ddp|fsdp|zero1|zero3|naive): |No clear winner: ")
        self.assertIn("<svg", (self.folder / "report.html").read_text())

    def run_commands(self, commands):
        variables = {**self.variables(), "PATH": f"{support.VENV}/bin:/usr/bin:/bin"}
        done = subprocess.run(["bash", "-euxc", commands], cwd=self.folder, env=variables, capture_output=True, text=True,
                              timeout=3 * support.HANG, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr


def start(site, *words, more=()):
    """Runs the entry point of a copy of the package in the folder `site`. Python finds the packages there and in `more`."""
    path = [str(site), *map(str, more)]
    code = f"import sys; sys.path[:0] = {path!r}; from yoke_trainer._program import main; main()"
    return subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", code, *words], capture_output=True, text=True,
                          check=False, env={"PATH": "/usr/bin:/bin", "HOME": str(site)})


class PyTorchElsewhere(support.WheelTest):
    """The package in a folder with another PyTorch, or with none."""

    def setUp(self):
        self.site = self.folder / self._testMethodName
        shutil.copytree(PACKAGE, self.site / "yoke_trainer")

    def test_it_is_in_another_folder_of_python(self):
        done = start(self.site, "backends", "list", more=[PACKAGE.parent])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ptd", done.stdout)

    def refused(self, *texts):
        for words in (["train", "no.toml"], ["backends", "list"]):
            done = start(self.site, *words)
            self.assertIn(done.returncode, (2, 3), done.stderr)
        for text in (*texts, "pip install torch==2.11.0"):
            self.assertIn(text, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(start(self.site, "--help").returncode, 0)

    def test_none_is_installed(self):
        self.refused("does not find LibTorch")

    def test_another_version_is_installed(self):
        torch = self.site / "torch"
        torch.mkdir()
        (torch / "__init__.py").write_text("raise ImportError('the entry point must not import torch')\n")
        (torch / "version.py").write_text("__version__ = '2.10.0+cpu'\n")
        (torch / "lib").symlink_to(next(support.VENV.glob("lib/python3*/site-packages/torch")).resolve() / "lib")
        self.refused("is version 2.10.0, but this Yoke needs 2.11.0")


class OwnBackend(support.WheelTest):
    def test_a_new_backend_is_built_and_checked(self):
        self.assertEqual(self.yoke("backends", "new", "mine", "--lang", "c").returncode, 0)
        for words in (["cmake", "-S", "mine", "-B", "build"], ["cmake", "--build", "build"]):
            done = self.yoke(*words[1:], program=words[0])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.yoke("-R", "^check$", "--output-on-failure", "--test-dir", "build", program="ctest")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("100% tests passed", done.stdout)

    def test_a_project_with_libtorch_finds_that_of_the_environment(self):
        (self.folder / "worker").mkdir()
        (self.folder / "worker/CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(mine LANGUAGES CXX)\n"
            "find_package(yoke REQUIRED COMPONENTS torch)\nmessage(STATUS \"found in ${TorchWheel_DIR}\")\n")
        done = self.yoke("-S", "worker", "-B", "worker/build", f"-DCMAKE_PREFIX_PATH={PREFIX}", program="cmake")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"found in {PACKAGE.parent}/torch\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
