"""Models in numpy, and the callbacks through which a backend runs them."""

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from . import contract as c

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
_DTYPES = {"int64": c.I64, "float32": c.F32, "float64": c.F64}


class Loss(NamedTuple):
    """The output of the last block: the sum of the losses, and the number of targets."""

    sum: float
    targets: int


class Model(Protocol):
    """A model as a sequence of blocks. A backend decides when which block runs, and owns the parameters."""

    @property
    def parameters(self) -> Arrays:
        """The initial values, which are rounded to fp32. All have one dtype, fp32 or fp64, which is that of the run."""

    @property
    def blocks(self) -> Sequence[Sequence[str]]:
        """The names of the parameters that each block uses."""

    @property
    def sequence_length(self) -> int:
        """Number of positions of a sequence."""

    def forward(self, block: int, parameters: Arrays, inputs: Arrays,
                carry: Array | None) -> tuple[Array | Loss, object]:
        """Runs a block on a micro-batch.

        carry: what the previous block has returned; None for the first block. It stays valid until the backward.

        Returns the output, or the loss of the last block, and an object that backward() needs.
        """

    def backward(self, block: int, parameters: Arrays, saved: object,
                 grad: Array | float) -> tuple[Arrays, Array | None]:
        """Runs a block backward.

        grad: the gradient of the output, or the factor of Loss.sum.

        Returns the gradient of each parameter of the block, and that of the carry; None for the first block.
        """


def tensor_of(array: Array) -> c.Tensor:
    """Returns a tensor over the memory of a compact array, which the caller keeps alive."""
    code = _DTYPES[str(array.dtype)]
    sizes = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    return c.Tensor(array.ctypes.data, c.Device(c.CPU, 0), array.ndim, c.DataType(code >> 8, code & 0xFF, 1), sizes)


def array_of(tensor: Any) -> Array:
    """Returns a view of a compact tensor, whose memory is borrowed."""
    code = tensor.dtype.code << 8 | tensor.dtype.bits
    dtype = next(np.dtype(name) for name, of_name in _DTYPES.items() if of_name == code)
    shape = tensor.shape[: tensor.ndim]
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(tensor.data + tensor.byte_offset)
    return np.frombuffer(memory, dtype).reshape(shape)


class MicroBatch:
    """The inputs of a micro-batch, as a struct of the contract and the arrays that it points to."""

    def __init__(self, inputs: Arrays) -> None:
        if "targets" not in inputs:
            raise ValueError(f"a micro-batch needs an input 'targets'; it has: {', '.join(inputs)}")
        self._arrays = {role: np.asarray(array, order="C") for role, array in inputs.items()}
        for role, array in self._arrays.items():
            if str(array.dtype) not in _DTYPES:
                raise ValueError(f"the input '{role}' has the dtype {array.dtype}; allowed: {', '.join(_DTYPES)}")
        items = [c.Input(c.string(role), tensor_of(array)) for role, array in self._arrays.items()]
        self.targets = self._arrays["targets"].size
        self.struct = c.MicroBatch(inputs=(c.Input * len(items))(*items), num_inputs=len(items),
                                   token_weight=self.targets)


class ModelCallbacks:
    """The callbacks of YokeModel for a Model: the backend owns the memory of the parameters, the model computes."""

    def __init__(self, model: Model) -> None:
        self._model, self._names = model, list(model.parameters)
        dtypes = {str(array.dtype) for array in model.parameters.values()}
        if dtypes not in ({"float32"}, {"float64"}):
            raise ValueError(f"parameters of {', '.join(sorted(dtypes))}; allowed: all float32 or all float64")
        self.dtype = _DTYPES[dtypes.pop()]
        self.failure: BaseException | None = None  # what the model has raised
        self._initial = [np.ascontiguousarray(array, np.float32).ravel() for array in model.parameters.values()]
        self._bound: dict[str, Array] = {}  # views of the backend's memory
        self._kept: dict[int, object] = {}  # saved states, and tensors that the backend owns, by handle
        self._handles = itertools.count(1)
        self._deleter = c.Deleter(lambda tensor: self._drop(None, tensor.contents.manager_ctx))
        self.struct = c.Model(summary=ctypes.pointer(self._summary()),
                              init_param=c.InitParam(self._guard(self._init_param)),
                              bind_param=c.BindParam(self._guard(self._bind_param)),
                              block_forward=c.Forward(self._guard(self._forward)),
                              block_backward=c.Backward(self._guard(self._backward)),
                              drop_saved=c.DropSaved(self._drop))

    @property
    def unfreed(self) -> int:
        """Number of tensors and saved states that the backend has not freed."""
        return len(self._kept)

    def _summary(self) -> c.ModelSummary:
        params = [c.Parameter(name=c.string(name), shape=(ctypes.c_int64 * max(1, array.ndim))(*array.shape),
                              ndim=array.ndim, dtype=self.dtype, trainable=1, decay=1)
                  for name, array in self._model.parameters.items()]
        blocks = [c.Block(name=c.string(f"block {i}"), num_params=len(names), activation_bytes=-1, carry_bytes=-1,
                          params=(ctypes.c_int64 * len(names))(*[self._names.index(name) for name in names]))
                  for i, names in enumerate(self._model.blocks)]
        return c.ModelSummary(params=_pointers(c.Parameter, params), num_params=len(params),
                              blocks=_pointers(c.Block, blocks), num_blocks=len(blocks),
                              seq_len=self._model.sequence_length)

    def _guard(self, callback: Callable[..., int | None]) -> Callable[..., int]:
        """Returns the callback with a code in place of an exception, which cannot pass through the backend."""
        def call(ctx: int, *arguments: Any) -> int:
            try:
                return callback(*arguments) or c.OK
            except BaseException as failure:  # noqa: BLE001 - not even Ctrl-C can pass
                self.failure = failure
                if arguments[-1]:
                    arguments[-1].contents.code = c.INTERNAL
                    arguments[-1].contents.text = f"{type(failure).__name__}: {failure}".encode()[:4000]
                return c.INTERNAL
        return call

    def _keep(self, thing: object) -> int:
        handle = next(self._handles)
        self._kept[handle] = thing
        return handle

    def _drop(self, ctx: int | None, handle: int) -> None:
        del self._kept[handle]

    def _give(self, array: Array) -> Any:
        """Returns a tensor that the backend owns until it calls the deleter."""
        managed = c.ManagedTensor(1, 0, None, self._deleter, 0)
        compact = np.asarray(array, order="C")
        managed.tensor = tensor_of(compact)
        managed.manager_ctx = self._keep((managed, compact))
        return ctypes.pointer(managed)

    def _init_param(self, param: int, begin: int, count: int, dst: Any, error: Any) -> None:
        ctypes.memmove(dst, self._initial[param][begin : begin + count].ctypes.data, count * 4)

    def _bind_param(self, param: int, view: Any, error: Any) -> None:
        if view:
            self._bound[self._names[param]] = array_of(view.contents)
        else:
            self._bound.pop(self._names[param], None)

    def _forward(self, args: Any, out: Any, error: Any) -> None:
        a, result = args.contents, out.contents
        micro = a.micro.contents
        inputs = {str(item.role): array_of(item.tensor) for item in micro.inputs[: micro.num_inputs]}
        carry = array_of(a.carry_in.contents) if a.carry_in else None
        output, saved = self._model.forward(a.block, self._bound, inputs, carry)
        if isinstance(output, Loss):
            result.loss_sum, result.loss_weight = output
        else:
            result.carry_out = self._give(output)
        if a.save:
            result.saved = self._keep(saved)

    def _backward(self, args: Any, grad_in: Any, error: Any) -> int:
        a = args.contents
        saved = self._kept.pop(a.saved)
        grad = array_of(a.grad_out.contents) if a.grad_out else a.loss_grad
        gradients, grad_carry = self._model.backward(a.block, self._bound, saved, grad)
        for name in self._model.blocks[a.block]:
            compact = np.asarray(gradients[name], self._bound[name].dtype, order="C")
            if compact.shape != self._bound[name].shape:
                raise ValueError(f"the gradient of {name} has the shape {compact.shape}, not {self._bound[name].shape}")
            view = tensor_of(compact)
            code: int = a.on_grad_ready(a.on_grad_ctx, self._names.index(name), ctypes.byref(view), error)
            if code != c.OK:
                return code
        if grad_carry is not None:
            grad_in[0] = self._give(grad_carry)
        return c.OK


def _pointers(kind: Any, items: list[Any]) -> Any:
    return (c.pointer(kind) * len(items))(*[ctypes.pointer(item) for item in items])
