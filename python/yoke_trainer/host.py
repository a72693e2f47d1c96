"""Drives a backend from Python, without LibTorch: one rank, a model in numpy.

    backend = Backend("/absolute/path/of/serial.so")
    with backend.start(model, global_batch=8, learning_rate=0.05) as training:
        result = training.step([{"tokens": tokens, "targets": targets}])

This module makes the calls of a run in their order and owns what they point to; model.py turns the callbacks of the
contract into calls of a Model.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from . import contract as c
from .model import Arrays, MicroBatch, Model, ModelCallbacks

OptionValue = str | int | float | bool


class BackendError(RuntimeError):
    """A call of the contract that failed, with the text of the backend."""


@dataclass
class AdamW:
    """The settings of AdamW. `clip` bounds the norm of the gradient; 0 = no clipping."""

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0


class StepResult(NamedTuple):
    """The mean loss of a step, and the norm of its gradient before clipping."""

    loss: float
    grad_norm: float


class Backend:
    """A backend that is loaded into this process, where it stays until the process ends.

    A backend that links LibTorch can be loaded after `import torch`. It can train here if it uses the neutral model.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Loads a shared library. Raises OSError if it cannot be loaded, BackendError if it is not a backend."""
        self.path = fspath(path)
        library = ctypes.CDLL(self.path)
        if not hasattr(library, "parallel_backend_entry_v1"):
            raise BackendError(f"{self.path} is not a backend: it does not export parallel_backend_entry_v1")
        entry = library.parallel_backend_entry_v1
        entry.restype, entry.argtypes = c.pointer(c.ParallelBackend), [ctypes.c_uint32, c.pointer(c.Error)]
        error = c.Error()
        table = entry(0, ctypes.byref(error))
        if not table:
            raise BackendError(f"{self.path} returns no table of functions: {error.text.decode(errors='replace')}")
        self._table = table.contents
        if self._table.abi_major != 1 or self._table.min_host_minor > 0:
            major, minor, least = self._table.abi_major, self._table.abi_minor, self._table.min_host_minor
            raise BackendError(f"{self.path} has ABI {major}.{minor} and needs a host of at least {major}.{least}; "
                               "this host has ABI 1.0")
        described = c.pointer(c.Description)()
        self._call("describe", ctypes.byref(described))
        self._description = described.contents

    @property
    def name(self) -> str:
        """The name of the backend."""
        return str(self._description.name)

    @property
    def version(self) -> str:
        """The version of the backend."""
        return str(self._description.version)

    @property
    def summary(self) -> str:
        """One line that says what the backend does."""
        return str(self._description.summary)

    @property
    def options(self) -> dict[str, str]:
        """The keys of the options and their defaults."""
        return {str(info.key): str(info.default_value) for info in self._option_infos()}

    def start(self, model: Model, *, global_batch: int, learning_rate: float, optimizer: AdamW | None = None,
              options: Mapping[str, OptionValue] | None = None) -> "Training":
        """Plans a run of one rank, and wraps the model.

        global_batch: the number of sequences in a step.
        options: values for some of the backend's options; the others keep their defaults. That of a file is its path.

        Raises BackendError with all refusals if the backend does not accept the plan.
        """
        return Training(self, model, self._option_values(options or {}),
                        _plan(optimizer or AdamW(), global_batch, learning_rate))

    def _call(self, function: str, *arguments: Any) -> None:
        """Calls a function of the table that can fail. Raises BackendError with the backend's text."""
        error = c.Error()
        code = getattr(self._table, function)(*arguments, ctypes.byref(error))
        if code != c.OK:
            raise BackendError(f"{self.path}: {function}: {error.text.decode(errors='replace') or f'code {code}'}")

    def _destroy(self, function: str, handle: ctypes.c_void_p) -> None:
        """Calls destroy_model or destroy."""
        getattr(self._table, function)(ctypes.byref(handle))

    def _option_infos(self) -> Iterator[Any]:
        for i in range(self._description.num_options):
            yield self._description.options[i].contents

    def _option_values(self, given: Mapping[str, OptionValue]) -> Any:
        for key in given:
            if key not in self.options:
                raise ValueError(f"{self.path} has no option '{key}'; it has: {', '.join(self.options)}")
        values = (c.Option * self._description.num_options)()
        for value, info in zip(values, self._option_infos(), strict=True):
            key = str(info.key)
            _set_option(value, info, given.get(key, str(info.default_value)), key in given)
        return values


class Training:
    """A model that a backend trains. A context manager, which frees the model at its end."""

    def __init__(self, backend: Backend, model: Model, options: Any, plan: c.Plan) -> None:
        self._backend, self._callbacks, self._steps = backend, ModelCallbacks(model), 0
        self._learning_rate = plan.optimizer.contents.lr
        self._plan_run(options, plan)
        self._host = c.Host(rank=0, world_size=1, device=c.Device(c.CPU, 0), log=c.Log(_print_line),
                            check_cancel=c.CheckCancel(lambda ctx: int(self._callbacks.failure is not None)),
                            get_service=c.GetService(lambda ctx, name, size: None))
        self._init_args = c.InitArgs(plan=ctypes.pointer(plan), options=options, num_options=len(options),
                                     host=ctypes.pointer(self._host))
        self._context, self._model = ctypes.c_void_p(), ctypes.c_void_p()
        backend._call("init", ctypes.byref(self._init_args), ctypes.byref(self._context))
        wrapped = c.WrapResult()
        try:
            self._call("wrap_model", self._context, ctypes.byref(self._callbacks.struct), ctypes.byref(wrapped))
        except BaseException:
            self.close()
            raise
        self._model.value = wrapped.model

    def step(self, micro_batches: Sequence[Arrays], learning_rate: float | None = None) -> StepResult:
        """Makes one update with the micro-batches of one global batch.

        Each micro-batch contains the inputs of the model by their roles. All arrays have one row for each sequence, and
        "targets" has one element for each target. learning_rate: that of this step; None = that of start().
        """
        rate = self._learning_rate if learning_rate is None else learning_rate
        result = self._run(micro_batches, c.StepArgs(step=self._steps + 1, lr=rate))
        self._steps += 1
        return result

    def evaluate(self, micro_batches: Sequence[Arrays]) -> float:
        """Returns the mean loss of the micro-batches and changes nothing."""
        return self._run(micro_batches, c.StepArgs(step=self._steps, flags=c.STEP_FORWARD_ONLY)).loss

    def close(self) -> None:
        """Frees the model and the context. Raises BackendError if the backend has kept tensors of the model."""
        self._backend._destroy("destroy_model", self._model)
        self._backend._destroy("destroy", self._context)
        if self._callbacks.unfreed:
            raise BackendError(f"{self._backend.path} did not free {self._callbacks.unfreed} tensors or saved states")

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _plan_run(self, options: Any, plan: c.Plan) -> None:
        refusals: list[str] = []

        def refuse(ctx: int, refusal: Any) -> None:
            if not refusal.contents.note:
                refusals.append(_refusal_text(refusal.contents))

        plan.param_dtype = self._callbacks.dtype
        args = c.PlanArgs(model=self._callbacks.struct.summary, options=options, num_options=len(options),
                          refuse=c.Refuse(refuse))
        try:
            self._backend._call("plan", ctypes.byref(args), ctypes.byref(plan))
        except BackendError as error:
            raise BackendError("\n".join([str(error), *refusals])) from None

    def _run(self, micro_batches: Sequence[Arrays], args: c.StepArgs) -> StepResult:
        if not micro_batches:
            raise ValueError("a step needs at least one micro-batch")
        micros = [MicroBatch(inputs) for inputs in micro_batches]
        pointers = (c.pointer(c.MicroBatch) * len(micros))(*[ctypes.pointer(micro.struct) for micro in micros])
        batch = c.Batch(micros=pointers, num_micros=len(micros), token_weight=sum(micro.targets for micro in micros))
        args.batch, result = ctypes.pointer(batch), c.StepResult()
        self._call("step", self._model, ctypes.byref(args), ctypes.byref(result))
        return StepResult(result.loss_sum / result.loss_weight, result.grad_norm)

    def _call(self, function: str, *arguments: Any) -> None:
        """Calls a function that calls the model. An exception of the model is the cause of the one that is raised."""
        self._callbacks.failure = None
        try:
            self._backend._call(function, *arguments)
        except BackendError as error:
            failure = self._callbacks.failure
            if failure is not None and not isinstance(failure, Exception):
                raise failure from None  # Ctrl-C, or the end of the program
            raise error from failure


def _plan(optimizer: AdamW, global_batch: int, learning_rate: float) -> c.Plan:
    settings = c.Optimizer(kind=c.ADAMW, beta1=optimizer.beta1, beta2=optimizer.beta2, eps=optimizer.eps,
                           weight_decay=optimizer.weight_decay, clip=optimizer.clip, lr=learning_rate)
    return c.Plan(optimizer=ctypes.pointer(settings), world_size=1, global_batch=global_batch)


def _check_option(info: Any, value: OptionValue) -> None:
    """Raises ValueError if the option does not allow a value. Checks what the host of the contract checks."""
    key, numbers = str(info.key), info.type in (c.OPTION_INT, c.OPTION_DOUBLE)
    types = {c.OPTION_INT: (int,), c.OPTION_DOUBLE: (int, float), c.OPTION_BOOL: (bool,)}.get(info.type, (str,))
    if not isinstance(value, types) or (numbers and isinstance(value, bool)):
        raise ValueError(f"{key} = {value!r}; allowed: {' or '.join(kind.__name__ for kind in types)}")
    if numbers and info.min <= info.max and not info.min <= float(value) <= info.max:
        raise ValueError(f"{key} = {value}; allowed: {info.min:g} to {info.max:g}")
    choices = str(info.choices).split("|")
    if info.type == c.OPTION_STRING and choices != [""] and value not in choices:
        raise ValueError(f"{key} = {value!r}; allowed: {', '.join(choices)}")


def _set_option(option: c.Option, info: Any, value: OptionValue, given: bool) -> None:
    """Fills in an option. A number without a default that is not given stays 0, which the contract allows."""
    if given:
        _check_option(info, value)
    option.key, option.type, option.given = info.key, info.type, int(given)
    if info.type == c.OPTION_DOUBLE:
        option.double_value = float(value or 0)
    elif info.type == c.OPTION_INT:
        option.int_value = int(value or 0)
    elif info.type == c.OPTION_BOOL:
        option.int_value = int(value in (True, "true"))
    else:
        option.string_value = c.string(str(value))
        if info.type == c.OPTION_FILE and value:
            option.content = c.string(Path(str(value)).read_text())


def _refusal_text(refusal: Any) -> str:
    return f"{refusal.key} = {refusal.given}; allowed: {refusal.allowed}"


def _print_line(ctx: int, level: int, line: c.String) -> None:
    print(line)
