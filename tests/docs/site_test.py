#!/usr/bin/env python3
"""Tests the documentation site and what writes its pages. Usage: site_test.py YOKE"""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
YOKE = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "docs/site"))
import pages  # noqa: E402

loader = importlib.machinery.SourceFileLoader("docs", str(ROOT / "scripts/docs"))
docs = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs", loader))
loader.exec_module(docs)


class Pages(unittest.TestCase):
    def test_anchors_are_those_of_the_repository(self):
        for heading, anchor in (("A model, and data", "a-model-and-data"), ("TP & SP", "tp--sp"), ("`yoke plan`", "yoke-plan"),
                                ("pp_degree", "pp_degree")):
            self.assertEqual(pages.github_slug(heading, "-"), anchor)

    def test_a_link_to_a_source_file_leads_to_a_page(self):
        text = "[a](examples/serial.c) [b](README.md) [c](https://x.org/a.c) [d](#e) [f](missing.c)"
        self.assertEqual(pages.source_files("sdk/README.md", text), [("examples/serial.c", "sdk/examples/serial.c")])

    def test_a_reference_page_is_a_link_only_on_the_site(self):
        text = "See `reference/keys.md`, `reference/other.md`."
        self.assertEqual(pages.link_generated("docs/README.md", text, ["reference/keys.md"]),
                         "See [`reference/keys.md`](../reference/keys.md), `reference/other.md`.")

    def test_a_page_shows_a_source_file_whole(self):
        page = pages.source_page("sdk/examples/serial.c")
        self.assertIn((ROOT / "sdk/examples/serial.c").read_text(), page)
        self.assertIn("```c\n", page)

    def test_a_bar_does_not_end_a_cell(self):
        self.assertEqual(pages.table(("x",), [("a|b",)]).splitlines()[-1], "| a&#124;b |")
        self.assertEqual(pages.code("a|b"), "<code>a&#124;b</code>")


class Site(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="yoke-docs-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def build(self, out):
        return subprocess.run([ROOT / "scripts/docs", "-o", out, "--yoke", YOKE], capture_output=True, text=True, check=False)

    def test_has_every_page_and_no_dead_link(self):
        done = self.build(self.folder / "site")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for name, words in (("index.html", "yoke train configs/novels.toml"), ("reference/keys.html", "global_batch"),
                            ("docs/index.html", 'href="../reference/keys.html"'),
                            ("reference/options.html", "unit_bytes"), ("reference/commands.html", "yoke checkpoint export"),
                            ("sdk/include/yoke/parallel_backend.h.html", "parallel_backend_entry_v1")):
            self.assertIn(words, (self.folder / "site" / name).read_text(encoding="utf-8"), name)

    def test_does_not_replace_a_folder_of_other_files(self):
        (self.folder / "precious").touch()
        done = self.build(self.folder)
        self.assertEqual((done.returncode, (self.folder / "precious").exists()), (2, True))
        self.assertIn("choose a new folder", done.stderr)


if __name__ == "__main__":
    if not docs.MKDOCS.exists():
        print("SKIPPED: scripts/setup --docs was not run")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
