"""Starts the program `yoke` that this package contains.

The program needs LibTorch, which is a part of the package torch. Importing torch takes seconds, and the program reports
a missing or wrong LibTorch itself, so this module only finds the folder of torch, names it in YOKE_TORCH_LIB, and then
replaces the process: signals, exit codes and output are those of the program.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

PREFIX = Path(__file__).resolve().parent / "prefix"
"""Folder with bin, lib, include and share of the installed Yoke."""


def environment() -> dict[str, str]:
    """Returns the variables of this process, with YOKE_TORCH_LIB set if the package torch is installed."""
    variables = dict(os.environ)
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        variables.setdefault("YOKE_TORCH_LIB", str(Path(torch.origin).parent / "lib"))
    return variables


def main() -> NoReturn:
    """Becomes `yoke` with the arguments of this process."""
    # Python ignores these signals, and a program inherits what is ignored.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    program = str(PREFIX / "bin/yoke")
    os.execve(program, [program, *sys.argv[1:]], environment())
