#!/usr/bin/env python3
"""Checks that commands_test.py runs every command of the documents, or that a comment says why it does not."""
import subprocess
import unittest

from blocks import PAGES, ROOT, blocks_of, blocks_of_page

# Documents without commands for a reader of the site, and those of a folder that has its own test.
OTHER = {"ARCHITECTURE.md", "CHANGELOG.md", "sdk/examples/README.md"}


class Blocks(unittest.TestCase):
    def test_are_found_with_their_reasons(self):
        text = ("```\nyoke a\n```\n<!-- not run: needs a GPU -->\n```sh\nexport A=1\n```\n\n```toml\nyoke = 1\n```\n```text\nstep 1\n```\n"
                "<!-- not run: old -->\nwords\n  ```sh fails\n  yoke b\n  ```\n```toml title=\"a.toml\"\nx = 1\n```\n")
        self.assertEqual([(b.line, b.text, b.reason, b.file, b.fails) for b in blocks_of("p", text)],
                         [(1, "yoke a", "", "", False), (5, "export A=1", "needs a GPU", "", False),
                          (17, "  yoke b", "", "", True), (20, "x = 1\n", "", "a.toml", False)])

    def test_are_commands_or_say_what_they_are(self):
        for page in PAGES:
            for block in blocks_of_page(page):
                if not block.file and not block.reason:
                    self.assertTrue(block.begins_with_a_program(),
                                    f"{page}:{block.line} is not run. If it is not a list of commands, give it a language, "
                                    f"such as `text`:\n{block.text}")

    def test_of_all_documents_are_covered(self):
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            self.skipTest("this is not a git repository")
        for page in set(listed.stdout.split()) - set(PAGES) - OTHER:
            self.assertEqual([], [block.line for block in blocks_of_page(page) if not block.file], f"{page} has commands; add it to PAGES")


if __name__ == "__main__":
    unittest.main(verbosity=2)
