#!/usr/bin/env python3
"""Tests the model of crash_states.py on handmade records."""
import os
import random
import tempfile
import unittest

from crash_states import Disk, Loss, PAGE, Record


class CrashStates(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = self.folder.name
        self.disk = Disk(self.root)
        self.root_inode = os.stat(self.root).st_ino
        self.rng = random.Random(1)

    def tearDown(self):
        self.folder.cleanup()

    def do(self, kind, inode=0, path="", second="", offset=0, data=b"", error=0):
        place = lambda p: f"{self.root}/{p}" if p else ""
        self.disk.replay(Record(kind, 1, 1, inode, offset, place(path), place(second), data, error))

    def found(self, loss):
        return self.disk.after_power_cut(loss, self.rng)

    def test_a_synced_file_in_a_folder_that_was_not_synced_is_lost(self):
        self.do("m", 10, "a")
        self.do("c", 11, "a/f")
        self.do("w", 11, data=b"hello")
        self.do("s", 11)
        self.do("s", 10)
        self.assertEqual(self.found(Loss.ALL), {})
        self.do("s", self.root_inode)
        self.assertEqual(self.found(Loss.ALL), {"a": None, "a/f": b"hello"})

    def test_a_synced_name_of_a_file_that_was_not_synced_leads_to_an_empty_file(self):
        self.do("c", 11, "f")
        self.do("w", 11, data=b"hello")
        self.do("s", self.root_inode)
        self.assertEqual(self.found(Loss.ALL), {"f": b""})
        self.assertEqual(self.found(Loss.ZEROS), {"f": bytes(5)})

    def test_a_rename_happens_whole_or_not_at_all(self):
        self.do("c", 11, "old")
        self.do("s", self.root_inode)
        self.do("r", path="old", second="new")
        self.assertEqual(self.found(Loss.ALL), {"old": b""})
        seen = {tuple(self.found(Loss.PART)) for _ in range(50)}
        self.assertEqual(seen, {("old",), ("new",)})
        self.do("s", self.root_inode)
        self.assertEqual(self.found(Loss.ALL), {"new": b""})

    def test_an_exchange_keeps_both_names(self):
        for inode, name in ((11, "one"), (12, "two")):
            self.do("c", inode, name)
            self.do("w", inode, data=name.encode())
            self.do("s", inode)
        self.do("s", self.root_inode)
        self.do("x", path="one", second="two")
        self.assertEqual(self.found(Loss.ALL), {"one": b"one", "two": b"two"})
        self.do("s", self.root_inode)
        self.assertEqual(self.found(Loss.ALL), {"one": b"two", "two": b"one"})

    def test_a_removed_file_may_come_back(self):
        self.do("c", 11, "f")
        self.do("s", self.root_inode)
        self.do("u", path="f")
        self.assertEqual(self.found(Loss.ALL), {"f": b""})
        self.assertEqual(self.found(Loss.ZEROS), {})

    def test_an_inode_that_is_used_again_is_another_file(self):
        self.do("c", 11, "f")
        self.do("w", 11, data=b"first")
        self.do("s", 11)
        self.do("s", self.root_inode)
        self.do("u", path="f")
        self.do("c", 11, "g")
        self.do("w", 11, data=b"second")
        self.do("s", 11)
        self.assertEqual(self.found(Loss.ALL), {"f": b"first"})

    def test_pages_are_lost_one_by_one(self):
        self.do("c", 11, "f")
        self.do("a", 11, offset=2 * PAGE)
        self.do("s", 11)
        self.do("s", self.root_inode)
        self.do("w", 11, data=b"x" * 2 * PAGE)
        seen = {data[:1] + data[PAGE:PAGE + 1] for data in (self.found(Loss.PART)["f"] for _ in range(200))}
        self.assertTrue({b"\0x", b"x\0", b"xx", b"\0\0"} <= seen, seen)

    def test_a_failed_operation_changes_nothing(self):
        self.do("c", 11, "f", error=28)
        self.assertEqual(self.found(Loss.ZEROS), {})


if __name__ == "__main__":
    unittest.main()
