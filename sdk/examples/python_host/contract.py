"""Version 1.0 of yoke/parallel_backend.h in Python: the structs that a host needs, declared with ctypes only.

The fields have the same names, order and types as in the header, which documents them."""
import ctypes as c

(ID_ERROR, ID_DESCRIPTION, ID_OPTION_INFO, ID_PLAN, ID_PLAN_ARGS, ID_REFUSAL, ID_OPTIMIZER, ID_PARAMETER, ID_BLOCK,
 ID_MODEL_SUMMARY, ID_MODEL, ID_HOST, ID_INIT_ARGS, ID_WRAP_RESULT, ID_BATCH, ID_STEP_ARGS, ID_STEP_RESULT, ID_MICRO_BATCH) = (
    1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 27)
OK, INVALID_ARGUMENT, INTERNAL = 0, 3, 13
I64, F32, F64 = 0x040, 0x220, 0x240
OPTION_INT, OPTION_DOUBLE, OPTION_BOOL = 1, 2, 3
SGD, ADAMW = 1, 2
NUM_AXES = 5
pointer = c.POINTER


class Header(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("struct_id", c.c_uint32), ("next", c.c_void_p)]


class String(c.Structure):
    _fields_ = [("data", c.c_char_p), ("size", c.c_uint64)]

    def __str__(self):
        return (self.data or b"").decode()


class Struct(c.Structure):
    """A struct that may grow: it starts with a header, which the constructor fills in."""

    def __init__(self, **values):
        super().__init__(**values)
        self.header = Header(c.sizeof(self), self.ID, None)


def struct(name, struct_id, *fields):
    """Creates the class of a struct that starts with a header."""
    return type(name, (Struct,), {"ID": struct_id, "_fields_": [("header", Header), *fields]})


Error = struct("Error", ID_ERROR, ("code", c.c_int32), ("rank", c.c_int32), ("step", c.c_int64),
               ("text", c.c_char * 4096))


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


def tensor_at(address, shape, dtype):
    """Returns a compact tensor over borrowed memory on the CPU. It keeps its shape alive."""
    sizes = (c.c_int64 * max(1, len(shape)))(*shape)
    t = Tensor(address, Device(1, 0), len(shape), DataType(dtype >> 8, dtype & 0xff, 1), sizes, None, 0)
    t.sizes = sizes
    return t


OptionInfo = struct("OptionInfo", ID_OPTION_INFO, ("key", String), ("default_value", String), ("choices", String),
                    ("doc", String), ("min", c.c_double), ("max", c.c_double), ("type", c.c_int32),
                    ("reserved", c.c_int32))
Description = struct("Description", ID_DESCRIPTION, ("name", String), ("version", String), ("vendor", String),
                     ("summary", String), ("torch_tag", String), ("options", pointer(pointer(OptionInfo))),
                     ("num_options", c.c_uint64), ("param_dtypes", pointer(c.c_int32)),
                     ("num_param_dtypes", c.c_uint64), ("axes", c.c_uint32), ("zero_stages", c.c_uint32),
                     ("traits", c.c_uint32), ("devices", c.c_uint32))
Parameter = struct("Parameter", ID_PARAMETER, ("name", String), ("shape", pointer(c.c_int64)), ("ndim", c.c_int32),
                   ("dtype", c.c_int32), ("trainable", c.c_int32), ("decay", c.c_int32), ("tp_cut", c.c_int32),
                   ("reserved", c.c_int32), ("tp_parts", c.c_int64))
Block = struct("Block", ID_BLOCK, ("name", String), ("params", pointer(c.c_int64)), ("num_params", c.c_uint64),
               ("activation_bytes", c.c_int64), ("carry_bytes", c.c_int64))
ModelSummary = struct("ModelSummary", ID_MODEL_SUMMARY, ("params", pointer(pointer(Parameter))),
                      ("num_params", c.c_uint64), ("blocks", pointer(pointer(Block))), ("num_blocks", c.c_uint64),
                      ("seq_len", c.c_int64))


class Input(c.Structure):
    _fields_ = [("role", String), ("tensor", Tensor)]


MicroBatch = struct("MicroBatch", ID_MICRO_BATCH, ("inputs", pointer(Input)), ("num_inputs", c.c_uint64),
                    ("token_weight", c.c_double))


# The backend fills in the following structs and the host reads them, so they get no header here.
GradReady = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, pointer(Tensor), pointer(Error))


class ForwardArgs(c.Structure):
    _fields_ = [("header", Header), ("block", c.c_uint64), ("micro", pointer(MicroBatch)),
                ("carry_in", pointer(Tensor)), ("save", c.c_int32), ("reserved", c.c_int32)]


class ForwardResult(c.Structure):
    _fields_ = [("header", Header), ("carry_out", pointer(ManagedTensor)), ("saved", c.c_void_p),
                ("loss_sum", c.c_double), ("loss_weight", c.c_double)]


class BackwardArgs(c.Structure):
    _fields_ = [("header", Header), ("block", c.c_uint64), ("saved", c.c_void_p), ("grad_out", pointer(Tensor)),
                ("loss_grad", c.c_double), ("on_grad_ready", GradReady), ("on_grad_ctx", c.c_void_p)]


InitParam = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, pointer(c.c_float), pointer(Error))
BindParam = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int64, pointer(Tensor), pointer(Error))
Forward = c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(ForwardArgs), pointer(ForwardResult), pointer(Error))
Backward = c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(BackwardArgs), pointer(pointer(ManagedTensor)), pointer(Error))
DropSaved = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)
Model = struct("Model", ID_MODEL, ("summary", pointer(ModelSummary)), ("ctx", c.c_void_p), ("init_param", InitParam),
               ("bind_param", BindParam), ("block_forward", Forward), ("block_backward", Backward),
               ("drop_saved", DropSaved))


class Option(c.Structure):
    _fields_ = [("key", String), ("string_value", String), ("content", String), ("double_value", c.c_double),
                ("int_value", c.c_int64), ("type", c.c_int32), ("given", c.c_int32)]


Optimizer = struct("Optimizer", ID_OPTIMIZER, ("kind", c.c_int32), ("reserved", c.c_int32), ("beta1", c.c_double),
                   ("beta2", c.c_double), ("eps", c.c_double), ("momentum", c.c_double), ("weight_decay", c.c_double),
                   ("clip", c.c_double), ("lr", c.c_double))
Plan = struct("Plan", ID_PLAN, ("optimizer", pointer(Optimizer)), ("world_size", c.c_int32),
              ("degree", c.c_int32 * NUM_AXES), ("global_batch", c.c_int32), ("micro_batch", c.c_int32),
              ("param_dtype", c.c_int32), ("reduce_dtype", c.c_int32))


class Refusal(c.Structure):
    _fields_ = [("header", Header), ("key", String), ("given", String), ("allowed", String), ("hint", String),
                ("note", c.c_int32), ("reserved", c.c_int32)]


Refuse = c.CFUNCTYPE(None, c.c_void_p, pointer(Refusal))
PlanArgs = struct("PlanArgs", ID_PLAN_ARGS, ("model", pointer(ModelSummary)), ("options", pointer(Option)),
                  ("num_options", c.c_uint64), ("refuse", Refuse), ("refuse_ctx", c.c_void_p))
Log = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, String)
CheckCancel = c.CFUNCTYPE(c.c_int32, c.c_void_p)
GetService = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p, c.c_uint64)
Host = struct("Host", ID_HOST, ("ctx", c.c_void_p), ("rank", c.c_int32), ("world_size", c.c_int32),
              ("device", Device), ("log", Log), ("check_cancel", CheckCancel), ("get_service", GetService),
              ("stream", c.c_void_p))
InitArgs = struct("InitArgs", ID_INIT_ARGS, ("plan", pointer(Plan)), ("options", pointer(Option)),
                  ("num_options", c.c_uint64), ("host", pointer(Host)))
WrapResult = struct("WrapResult", ID_WRAP_RESULT, ("model", c.c_void_p), ("param_bytes", c.c_int64),
                    ("grad_bytes", c.c_int64), ("optimizer_bytes", c.c_int64), ("unsharded_bytes", c.c_int64),
                    ("activation_bytes", c.c_int64), ("axis_bytes", c.c_int64 * NUM_AXES))
Batch = struct("Batch", ID_BATCH, ("micros", pointer(pointer(MicroBatch))), ("num_micros", c.c_uint64),
               ("token_weight", c.c_double))
StepArgs = struct("StepArgs", ID_STEP_ARGS, ("batch", pointer(Batch)), ("step", c.c_int64), ("lr", c.c_double),
                  ("flags", c.c_uint32), ("reserved", c.c_uint32))
StepResult = struct("StepResult", ID_STEP_RESULT, ("loss_sum", c.c_double), ("loss_weight", c.c_double),
                    ("grad_norm", c.c_double))


class ParallelBackend(c.Structure):
    """The functions of a backend. Those that this host does not call are declared as plain addresses."""
    _fields_ = [("header", Header), ("abi_major", c.c_uint32), ("abi_minor", c.c_uint32),
                ("min_host_minor", c.c_uint32), ("reserved", c.c_uint32),
                ("describe", c.CFUNCTYPE(c.c_int32, pointer(pointer(Description)), pointer(Error))),
                ("plan", c.CFUNCTYPE(c.c_int32, pointer(PlanArgs), pointer(Plan), pointer(Error))),
                ("init", c.CFUNCTYPE(c.c_int32, pointer(InitArgs), pointer(c.c_void_p), pointer(Error))),
                ("wrap_model", c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(Model), pointer(WrapResult),
                                           pointer(Error))),
                ("step", c.CFUNCTYPE(c.c_int32, c.c_void_p, pointer(StepArgs), pointer(StepResult), pointer(Error))),
                ("checkpoint", c.c_void_p),
                ("destroy_model", c.CFUNCTYPE(None, pointer(c.c_void_p))),
                ("destroy", c.CFUNCTYPE(None, pointer(c.c_void_p)))]
