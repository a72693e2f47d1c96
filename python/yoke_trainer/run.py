"""Run folders: what `yoke train` writes."""

import json
import math
import tomllib
from collections.abc import Iterator
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .checkpoint import Checkpoint

Columns = dict[str, npt.NDArray[np.float64]]
Row = dict[str, float]


class Run:
    """One run folder.

    The run may still be going on. Configuration, environment and backends are read once; metrics, evaluations,
    checkpoints and the ending are read anew each time.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Opens a folder. Raises FileNotFoundError if it is not the folder of a run."""
        self.path = Path(path)
        if not (self.path / "config.resolved.toml").is_file():
            raise FileNotFoundError(f"{path} is not the folder of a run: it contains no config.resolved.toml")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every key of the run with its value, as tables of tables: config["train"]["lr"]."""
        return tomllib.loads((self.path / "config.resolved.toml").read_text())

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The versions, the machine and the time at which the run started."""
        return self._object("env.json")

    @cached_property
    def backends(self) -> list[dict[str, str]]:
        """The backend of the run, and the backends that it has opened."""
        found: list[dict[str, str]] = json.loads((self.path / "backends.json").read_text())
        return found

    @property
    def ending(self) -> dict[str, Any] | None:
        """Exit code, reason and last step; None while the run is going on."""
        return self._object("exit.json") if (self.path / "exit.json").exists() else None

    @property
    def metrics(self) -> Columns:
        """The logged steps as columns of equal length; {} before the first. A value that a step lacks is NaN."""
        return _columns([row for row in self.rows() if "eval_loss" not in row])

    @property
    def evaluations(self) -> Columns:
        """The evaluations as columns of equal length: step, eval_loss, eval_tokens and eval_seconds."""
        return _columns([row for row in self.rows() if "eval_loss" in row])

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, in the order of their steps."""
        return [Checkpoint(folder.parent) for folder in sorted(self.path.glob("checkpoints/step-*/manifest.json"))]

    def rows(self) -> Iterator[Row]:
        """Yields the logged steps and evaluations in the order of the file.

        Names of inner values are joined by dots: comm.dp_shard.bytes. Only numbers are kept; null is NaN. A last line
        that is not yet complete is left out.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():  # a run that has not begun its first step
            return
        with path.open() as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith("\n"):
                    return
                try:
                    yield dict(_numbers("", json.loads(line)))
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}:{number} is not a line of JSON: {error}") from None

    def _object(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.path / name).read_text())
        return value


def _numbers(prefix: str, tree: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}.", value)
        elif value is None:
            yield prefix + name, math.nan
        elif isinstance(value, int | float):
            yield prefix + name, float(value)


def _columns(rows: list[Row]) -> Columns:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
