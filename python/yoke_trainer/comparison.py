"""Results of `yoke compare --json-file`."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Case:
    """One case of a comparison: a backend in a layout, or another program."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        """All that the file says about the case."""

    @property
    def name(self) -> str:
        """The name of the case."""
        return str(self.fields["name"])

    @property
    def passed(self) -> bool:
        """True if the case ran and agrees with the reference at the level that it must reach."""
        return bool(self.fields["passed"])

    @property
    def failure(self) -> str:
        """Why the case could not run; "" if it ran."""
        return str(self.fields["failure"])

    def steps(self, column: str) -> npt.NDArray[np.float64]:
        """A column of the steps: step, loss, grad_norm or seconds. Raises ValueError if the case failed."""
        if self.failure:
            raise ValueError(f"case '{self.name}' has no steps: {self.failure}")
        return np.array([step[column] for step in self.fields["steps"]], dtype=np.float64)


class Comparison:
    """What `yoke compare` found."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Reads the file that --json-file has written."""
        self.fields: dict[str, Any] = json.loads(Path(path).read_text())
        if "judged_against" not in self.fields:
            raise ValueError(f"{path} was not written by yoke compare --json-file")
        self.cases = {case["name"]: Case(case) for case in self.fields["cases"]}

    @property
    def passed(self) -> bool:
        """True if every case agrees and every gate holds."""
        return bool(self.fields["exit_code"] == 0)

    @property
    def recommended(self) -> dict[int | None, Case]:
        """The case to take by number of ranks; the key None stands for all cases. A number of ranks is missing if its
        repeats do not show which case is the fastest, and all are for less than three repeats."""
        return {answer["ranks"]: self.cases[answer["take"]] for answer in self.fields["recommendations"]
                if answer["take"] is not None}

    @property
    def reference(self) -> Case | None:
        """The case with which all others were compared; None if every case failed."""
        added: dict[str, Any] | None = self.fields["reference"]
        if added is not None and added["name"] == self.fields["judged_against"]:
            return Case(added)
        return self.cases.get(self.fields["judged_against"])
