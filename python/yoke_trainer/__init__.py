"""Reads what Yoke writes, and drives its backends, from Python.

    from yoke_trainer import Run

    run = Run("runs/novels")
    print(run.metrics["step"], run.metrics["loss"])

The classes are imported when they are first used, because the entry point `yoke` imports this package, too.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import Checkpoint as Checkpoint
    from .comparison import Comparison as Comparison
    from .host import Backend as Backend
    from .run import Run as Run

_MODULES = {"Backend": "host", "Checkpoint": "checkpoint", "Comparison": "comparison", "Run": "run"}
__all__ = ["Backend", "Checkpoint", "Comparison", "Run"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'yoke_trainer' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
