"""Version 1.0 of yoke/parallel_backend.h in Python: the structs that a host needs, declared with ctypes.

The classes have the names of the header's structs without "Yoke", and fields of the same names, order and types. The
header documents them. tests/python compares the layouts with the frozen table of the contract.
"""

import ctypes as c
from typing import Any, ClassVar

OK, INTERNAL = 0, 13
I64, F32, F64 = 0x040, 0x220, 0x240
CPU = 1
OPTION_INT, OPTION_DOUBLE, OPTION_BOOL, OPTION_STRING, OPTION_FILE = 1, 2, 3, 4, 5
ADAMW = 2
NUM_AXES = 5
STEP_FORWARD_ONLY = 1
pointer = c.POINTER


class Header(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("struct_id", c.c_uint32), ("next", c.c_void_p)]


HEADER = ("header", Header)


class Growing(c.Structure):
    """A struct that starts with a header, which the constructor fills in.

    Subclasses declare the field `header` themselves: ctypes numbers inherited and own fields alike, and would free what
    the first own field points to.
    """

    ID: ClassVar[int]

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.header = Header(c.sizeof(self), self.ID, None)


class String(c.Structure):
    _fields_ = [("data", c.c_char_p), ("size", c.c_uint64)]

    def __str__(self) -> str:
        # The bytes need not end with a zero, but reading the field `data` would search for one.
        return c.string_at(c.c_void_p.from_buffer(self), self.size).decode() if self.size else ""


def string(text: str) -> String:
    """Returns a string. The struct that it is stored in keeps its bytes alive."""
    data = text.encode()
    return String(data, len(data))


class Error(Growing):
    ID = 1
    _fields_ = [HEADER, ("code", c.c_int32), ("rank", c.c_int32), ("step", c.c_int64), ("text", c.c_char * 4096)]


class DataType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Device(c.Structure):
    _fields_ = [("type", c.c_int32), ("id", c.c_int32)]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device", Device), ("ndim", c.c_int32), ("dtype", DataType),
                ("shape", pointer(c.c_int64)), ("strides", pointer(c.c_int64)), ("byte_offset", c.c_uint64)]


class ManagedTensor(c.Structure):
    pass


Deleter = c.CFUNCTYPE(None, pointer(ManagedTensor))
ManagedTensor._fields_ = [("dlpack_major", c.c_uint32), ("dlpack_minor", c.c_uint32), ("manager_ctx", c.c_void_p),
                          ("deleter", Deleter), ("flags", c.c_uint64), ("tensor", Tensor)]


class OptionInfo(Growing):
    ID = 4
    _fields_ = [HEADER, ("key", String), ("default_value", String), ("choices", String), ("doc", String),
                ("min", c.c_double), ("max", c.c_double), ("type", c.c_int32), ("reserved", c.c_int32)]


class Description(Growing):
    ID = 3
    _fields_ = [HEADER, ("name", String), ("version", String), ("vendor", String), ("summary", String),
                ("torch_tag", String), ("options", pointer(pointer(OptionInfo))), ("num_options", c.c_uint64),
                ("param_dtypes", pointer(c.c_int32)), ("num_param_dtypes", c.c_uint64), ("axes", c.c_uint32),
                ("zero_stages", c.c_uint32), ("traits", c.c_uint32), ("devices", c.c_uint32)]


class Parameter(Growing):
    ID = 9
    _fields_ = [HEADER, ("name", String), ("shape", pointer(c.c_int64)), ("ndim", c.c_int32), ("dtype", c.c_int32),
                ("trainable", c.c_int32), ("decay", c.c_int32), ("tp_cut", c.c_int32), ("reserved", c.c_int32),
                ("tp_parts", c.c_int64)]


class Block(Growing):
    ID = 10
    _fields_ = [HEADER, ("name", String), ("params", pointer(c.c_int64)), ("num_params", c.c_uint64),
                ("activation_bytes", c.c_int64), ("carry_bytes", c.c_int64)]


class ModelSummary(Growing):
    ID = 11
    _fields_ = [HEADER, ("params", pointer(pointer(Parameter))), ("num_params", c.c_uint64),
                ("blocks", pointer(pointer(Block))), ("num_blocks", c.c_uint64), ("seq_len", c.c_int64)]


class Input(c.Structure):
    _fields_ = [("role", String), ("tensor", Tensor)]


class MicroBatch(Growing):
    ID = 27
    _fields_ = [HEADER, ("inputs", pointer(Input)), ("num_inputs", c.c_uint64), ("token_weight", c.c_double)]


GradReady = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, pointer(Tensor), pointer(Error))


class ForwardArgs(Growing):
    ID = 19
    _fields_ = [HEADER, ("block", c.c_uint64), ("micro", pointer(MicroBatch)), ("carry_in", pointer(Tensor)),
                ("save", c.c_int32), ("reserved", c.c_int32)]


class ForwardResult(Growing):
    ID = 20
    _fields_ = [HEADER, ("carry_out", pointer(ManagedTensor)), ("saved", c.c_void_p), ("loss_sum", c.c_double),
                ("loss_weight", c.c_double)]


class BackwardArgs(Growing):
    ID = 21
    _fields_ = [HEADER, ("block", c.c_uint64), ("saved", c.c_void_p), ("grad_out", pointer(Tensor)),
                ("loss_grad", c.c_double), ("on_grad_ready", GradReady), ("on_grad_ctx", c.c_void_p)]


InitParam = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, pointer(c.c_float), pointer(Error))
BindParam = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, pointer(Tensor), pointer(Error))
Forward = c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(ForwardArgs), pointer(ForwardResult), pointer(Error))
Backward = c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(BackwardArgs), pointer(pointer(ManagedTensor)), pointer(Error))
DropSaved = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)


class Model(Growing):
    ID = 12
    _fields_ = [HEADER, ("summary", pointer(ModelSummary)), ("ctx", c.c_void_p), ("init_param", InitParam),
                ("bind_param", BindParam), ("block_forward", Forward), ("block_backward", Backward),
                ("drop_saved", DropSaved)]


class Option(c.Structure):
    _fields_ = [("key", String), ("string_value", String), ("content", String), ("double_value", c.c_double),
                ("int_value", c.c_int64), ("type", c.c_int32), ("given", c.c_int32)]


class Optimizer(Growing):
    ID = 8
    _fields_ = [HEADER, ("kind", c.c_int32), ("reserved", c.c_int32), ("beta1", c.c_double), ("beta2", c.c_double),
                ("eps", c.c_double), ("momentum", c.c_double), ("weight_decay", c.c_double), ("clip", c.c_double),
                ("lr", c.c_double)]


class Plan(Growing):
    ID = 5
    _fields_ = [HEADER, ("optimizer", pointer(Optimizer)), ("world_size", c.c_int32), ("degree", c.c_int32 * NUM_AXES),
                ("global_batch", c.c_int32), ("micro_batch", c.c_int32), ("param_dtype", c.c_int32),
                ("reduce_dtype", c.c_int32)]


class Refusal(Growing):
    ID = 7
    _fields_ = [HEADER, ("key", String), ("given", String), ("allowed", String), ("hint", String), ("note", c.c_int32),
                ("reserved", c.c_int32)]


Refuse = c.CFUNCTYPE(None, c.c_void_p, pointer(Refusal))


class PlanArgs(Growing):
    ID = 6
    _fields_ = [HEADER, ("model", pointer(ModelSummary)), ("options", pointer(Option)), ("num_options", c.c_uint64),
                ("refuse", Refuse), ("refuse_ctx", c.c_void_p)]


Log = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, String)
CheckCancel = c.CFUNCTYPE(c.c_int32, c.c_void_p)
GetService = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p, c.c_uint64)


class Host(Growing):
    ID = 13
    _fields_ = [HEADER, ("ctx", c.c_void_p), ("rank", c.c_int32), ("world_size", c.c_int32), ("device", Device),
                ("log", Log), ("check_cancel", CheckCancel), ("get_service", GetService), ("stream", c.c_void_p)]


class InitArgs(Growing):
    ID = 14
    _fields_ = [HEADER, ("plan", pointer(Plan)), ("options", pointer(Option)), ("num_options", c.c_uint64),
                ("host", pointer(Host))]


class WrapResult(Growing):
    ID = 15
    _fields_ = [HEADER, ("model", c.c_void_p), ("param_bytes", c.c_int64), ("grad_bytes", c.c_int64),
                ("optimizer_bytes", c.c_int64), ("unsharded_bytes", c.c_int64), ("activation_bytes", c.c_int64),
                ("axis_bytes", c.c_int64 * NUM_AXES)]


class Batch(Growing):
    ID = 16
    _fields_ = [HEADER, ("micros", pointer(pointer(MicroBatch))), ("num_micros", c.c_uint64),
                ("token_weight", c.c_double)]


class StepArgs(Growing):
    ID = 17
    _fields_ = [HEADER, ("batch", pointer(Batch)), ("step", c.c_int64), ("lr", c.c_double), ("flags", c.c_uint32),
                ("reserved", c.c_uint32)]


class StepResult(Growing):
    ID = 18
    _fields_ = [HEADER, ("loss_sum", c.c_double), ("loss_weight", c.c_double), ("grad_norm", c.c_double)]


class ParallelBackend(Growing):
    """The functions of a backend. This host does not call checkpoint."""

    ID = 2
    _fields_ = [HEADER, ("abi_major", c.c_uint32), ("abi_minor", c.c_uint32), ("min_host_minor", c.c_uint32),
                ("reserved", c.c_uint32),
                ("describe", c.CFUNCTYPE(c.c_int32, pointer(pointer(Description)), pointer(Error))),
                ("plan", c.CFUNCTYPE(c.c_int32, pointer(PlanArgs), pointer(Plan), pointer(Error))),
                ("init", c.CFUNCTYPE(c.c_int32, pointer(InitArgs), pointer(c.c_void_p), pointer(Error))),
                ("wrap_model", c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(Model), pointer(WrapResult), pointer(Error))),
                ("step", c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(StepArgs), pointer(StepResult), pointer(Error))),
                ("checkpoint", c.c_void_p), ("destroy_model", c.CFUNCTYPE(None, pointer(c.c_void_p))),
                ("destroy", c.CFUNCTYPE(None, pointer(c.c_void_p)))]
