"""Checkpoints of runs, as numpy arrays."""

import json
import subprocess
from os import PathLike
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import safe_open

from ._program import PREFIX


class Checkpoint:
    """One checkpoint folder. A tensor is read from its file when it is asked for."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Reads the manifest. Raises FileNotFoundError if there is none."""
        self.path = Path(path)
        manifest = self.path / "manifest.json"
        if not manifest.is_file():
            raise FileNotFoundError(f"{path} is not a checkpoint: it contains no manifest.json")
        self._manifest: dict[str, Any] = json.loads(manifest.read_text())
        self._files = {(entry["name"], entry["kind"]): entry["file"] for entry in self._manifest["tensors"]}

    @property
    def step(self) -> int:
        """Number of steps that the run had made."""
        return int(self._manifest["step"])

    @property
    def finished(self) -> bool:
        """True if the run had made all of its steps."""
        return bool(self._manifest["finished"])

    @property
    def kinds(self) -> list[str]:
        """The kinds of tensors: "param", and those of the optimizer, such as "exp_avg"."""
        return sorted({kind for _, kind in self._files})

    def names(self, kind: str = "param") -> list[str]:
        """The names of the tensors of a kind, in alphabetical order."""
        return sorted(name for name, of_kind in self._files if of_kind == kind)

    def tensor(self, name: str, kind: str = "param") -> npt.NDArray[Any]:
        """Reads a tensor: a parameter, or a kind of state that the optimizer keeps for it."""
        if (name, kind) not in self._files:
            kinds = [of_kind for of_name, of_kind in self._files if of_name == name]
            has = f"it has the kinds {', '.join(kinds)}" if kinds else "names() lists all"
            raise KeyError(f"{self.path} has no tensor '{name}' of kind '{kind}'; {has}")
        with safe_open(self.path / self._files[name, kind], framework="numpy") as file:
            array: npt.NDArray[Any] = file.get_tensor(name if kind == "param" else f"{name}.{kind}")
        return array

    def verify(self) -> None:
        """Reads the whole checkpoint and checks every checksum. Raises ValueError with what is damaged."""
        done = subprocess.run([PREFIX / "bin/yoke", "checkpoint", "verify", self.path], capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(done.stderr.strip())
