"""Computes the states in which a power cut may leave a folder. It reads the records of fault_recorder.c and rebuilds
the folder as it may be found after a power cut at any moment of a run.

The model is the least that POSIX promises. What a file holds is durable after fsync or fdatasync of the file; a name in
a folder (made, renamed, removed) is durable after fsync of the folder. Later changes may or may not be on the disk. A
rename within one folder is atomic."""
import dataclasses
import enum
import os
import pathlib
import struct

HEADER = struct.Struct("<IiQQQIIII")


@dataclasses.dataclass
class Record:
    kind: str
    pid: int
    number: int
    inode: int
    offset: int
    path: str
    second: str
    data: bytes
    error: int


def read_records(file):
    raw = pathlib.Path(file).read_bytes()
    records, at = [], 0
    while at < len(raw):
        kind, pid, number, inode, offset, path, second, data, error = HEADER.unpack_from(raw, at)
        at += HEADER.size
        parts = []
        for size in (path, second, data):
            parts.append(raw[at:at + size])
            at += size
        records.append(Record(chr(kind), pid, number, inode, offset, parts[0].decode(), parts[1].decode(), parts[2],
                              error))
    return records


class Loss(enum.Enum):
    """Which of the changes that were not synced a power cut loses."""
    ALL = "all"  # all of them
    PART = "part"  # a part: a random prefix of each folder's changes and random pages of each file are kept
    ZEROS = "zeros"  # only the data: all names and lengths are kept, but the data are zeros


PAGE = 4096


class File:
    """A file's bytes as the program sees them, and as they are on the disk."""

    def __init__(self):
        self.now = bytearray()
        self.durable = b""
        self.pending = []  # (offset, data) not synced yet

    def write(self, offset, data):
        if len(self.now) < offset:
            self.resize(offset)
        self.now[offset:offset + len(data)] = data
        self.pending.append((offset, data))

    def resize(self, size):
        self.now = self.now[:size] + bytearray(max(0, size - len(self.now)))

    def sync(self):
        self.durable = bytes(self.now)
        self.pending = []

    def after(self, loss, rng):
        if not self.pending and len(self.now) == len(self.durable) or loss is Loss.ALL:
            return self.durable
        found = bytearray(self.durable[:len(self.now)]) + bytearray(max(0, len(self.now) - len(self.durable)))
        if loss is Loss.PART:
            for offset, data in self.pending:
                for begin in range(0, len(data), PAGE):
                    if rng.random() < 0.5:
                        found[offset + begin:offset + begin + PAGE] = data[begin:begin + PAGE]
            if rng.random() < 0.5:
                del found[rng.randrange(len(found) + 1):]
        else:
            for offset, data in self.pending:
                end = min(offset + len(data), len(found))
                found[offset:end] = bytes(max(0, end - offset))
        return bytes(found)


class Folder:
    """The names in a folder, each with its object's number. A change is a dict: name -> number, or None = removed."""

    def __init__(self):
        self.now = {}
        self.durable = {}
        self.pending = []

    def change(self, names):
        self.pending.append(names)
        self._apply(self.now, names)

    def sync(self):
        self.durable = dict(self.now)
        self.pending = []

    def after(self, loss, rng):
        found = dict(self.durable)
        keep = {Loss.ALL: 0, Loss.ZEROS: len(self.pending)}.get(loss)
        for names in self.pending[:rng.randrange(len(self.pending) + 1) if keep is None else keep]:
            self._apply(found, names)
        return found

    @staticmethod
    def _apply(names, change):
        for name, number in change.items():
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number


class Disk:
    """The folder `root` with everything below it, to which records are applied."""

    def __init__(self, root):
        self.root = Folder()
        self.prefix = str(root)
        self.root_inode = os.stat(root).st_ino
        self.objects = {}  # number -> File or Folder; names point to numbers
        self.number_of = {}  # inode -> number; a file system gives the inodes of removed files to new ones

    def _folder(self, path):
        """Returns the folder that contains `path`, and the name of `path` in it."""
        parts = path[len(self.prefix):].strip("/").split("/")
        at = self.root
        for part in parts[:-1]:
            at = self.objects[at.now[part]]
        return at, parts[-1]

    def _object(self, record):
        return self.root if record.inode == self.root_inode else self.objects.get(self.number_of.get(record.inode))

    def replay(self, record):
        if record.error != 0:
            return
        if record.kind in "cm":
            number = self.number_of[record.inode] = len(self.objects) + 1
            self.objects[number] = Folder() if record.kind == "m" else File()
            folder, name = self._folder(record.path)
            folder.change({name: number})
        elif record.kind in "rx":
            self._rename(record)
        elif record.kind == "u":
            folder, name = self._folder(record.path)
            folder.change({name: None})
        else:
            self._change_contents(record)

    def _rename(self, record):
        source, old = self._folder(record.path)
        target, new = self._folder(record.second)
        moved = source.now[old]
        replaced = target.now[new] if record.kind == "x" else None
        if source is target:
            source.change({old: replaced, new: moved})
        else:
            target.change({new: moved})
            source.change({old: replaced})

    def _change_contents(self, record):
        thing = self._object(record)
        if thing is None:
            return
        if record.kind == "s":
            thing.sync()
        elif record.kind == "w":
            thing.write(record.offset, record.data)
        elif record.kind == "t":
            thing.resize(record.offset)
        elif record.kind == "a":
            thing.resize(max(record.offset, len(thing.now)))

    def after_power_cut(self, loss, rng):
        """Returns what a power cut at this moment leaves: {relative path: bytes, or None for a folder}."""
        found = {}
        self._collect(self.root, "", loss, rng, found)
        return found

    def _collect(self, folder, path, loss, rng, found):
        for name, number in sorted(folder.after(loss, rng).items()):
            thing = self.objects[number]
            if isinstance(thing, Folder):
                found[path + name] = None
                self._collect(thing, path + name + "/", loss, rng, found)
            else:
                found[path + name] = thing.after(loss, rng)


def write_state(found, folder):
    """Writes the files of a state into a new folder."""
    os.makedirs(folder)
    for path, data in found.items():
        to = pathlib.Path(folder) / path
        if data is None:
            to.mkdir()
        else:
            to.write_bytes(data)
