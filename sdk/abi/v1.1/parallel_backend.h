/* The contract between Yoke and a parallel backend. C99, one file, no dependency.
 *
 * A backend is a shared library that exports one function, parallel_backend_entry_v1. It returns a
 * table of functions, the ParallelBackend. The host (Yoke) owns the mathematics of the model and
 * the data. The backend owns the schedule of a step, the memory of the parameters, the
 * communication and the optimizer. On every rank, a run makes these calls in this order:
 *
 *   entry -> describe -> plan -> init -> wrap_model -> step ... checkpoint ...
 *         -> destroy_model -> destroy
 *
 * Versions 1.0 and 1.1 are frozen, and 1.x only adds to them. A backend that was built with any 1.x
 * of this file works with every host of 1.y, unless the backend's own min_host_minor says
 * otherwise. CHANGELOG.md lists the changes under "ABI". These rules hold for every function and
 * every struct.
 *
 * Layout
 *   - Every struct that may grow starts with a YokeHeader. New fields are only ever appended.
 *   - A reader uses a field of a later minor version only if YOKE_HAS reports that the other side
 *     has it. A field that is zero means "not given". Reserved fields are zero.
 *   - Code that writes into a struct of the other side writes at most header.struct_size bytes and
 *     leaves the header alone. struct_size is never below the size of the struct in version 1.0.
 *     YokeError is the exception: its text may be shorter, or absent.
 *   - Code that copies a struct before passing it on must set struct_size to the smaller of the
 *     source's size and its own.
 *   - Structs without a header are frozen. Arrays of growable structs are arrays of pointers.
 *   - An unknown struct in a chain of header.next is skipped.
 *
 * Values
 *   - An unknown value of an enum and an unknown bit of flags are refused: plan reports a refusal,
 *     any other function returns YOKE_UNIMPLEMENTED. Unknown traits are ignored.
 *   - A field of version 1.y may change what is computed. The host then gives it a value other than
 *     zero only to a backend with abi_minor >= y, and refuses the run with any other backend.
 *
 * Strings
 *   - Strings are UTF-8, and data[size] is 0. {NULL, 0} is an empty string as well.
 *   - Strings in arguments live for the duration of the call. Strings in descriptions live as long
 *     as the process.
 *
 * Errors
 *   - Every function that can fail returns YOKE_OK or an error code. On failure it also fills *err,
 *     unless err is NULL. The text says what failed, which value was given, what is allowed and how
 *     to fix it.
 *   - No exception crosses the ABI boundary. No library ends the process or prints.
 *   - The caller of a function with a result sets the header of the result. The callee writes all
 *     other fields, and sets them to zero if it fails. The plan, which plan both reads and fills,
 *     has no meaning after a failure.
 *   - After a failed call every handle is still valid, and the inputs still belong to the caller.
 *   - A required struct that is NULL or of another kind gives YOKE_INVALID_ARGUMENT. A handle that
 *     is NULL gives YOKE_FAILED_PRECONDITION.
 *   - A failed step or LOAD may leave the state partly updated. The next call is then another LOAD
 *     or destroy_model.
 *
 * Threads
 *   - entry, describe and plan may be called from any thread at any time.
 *   - All other functions are called one at a time per context, though not always by the same
 *     thread. Two contexts in one process are independent of each other.
 *   - The callbacks of a model may be called only by the thread that is inside wrap_model, step,
 *     checkpoint or destroy_model.
 *   - When destroy returns, all threads of the backend have ended.
 *
 * Ownership
 *   - Memory belongs to the side that allocated it. Arguments are borrowed for the duration of the
 *     call, unless a comment gives them a longer life.
 *   - A YokeManagedTensor belongs to the side that received it. That side calls its deleter exactly
 *     once: after all uses have been issued on YokeHost.stream, and before destroy returns.
 *   - A managed tensor that was passed to a call that failed still belongs to the caller.
 *
 * Streams
 *   - On the CPU there are no streams: when a call returns, its results are in memory.
 *   - On a CUDA device all data that the two sides exchange is ordered on YokeHost.stream. The
 *     inputs of a call are ready on the stream when the call starts, and its outputs when it
 *     returns. The device may still be working at that time.
 *   - A backend with streams of its own synchronises them with this one by events and never blocks
 *     the host thread for it. It restores the current device before it returns.
 *   - Scalars (losses, norms, target counts) are host memory and are ready when a call returns.
 *
 * Collective functions
 *   - A function that is marked "Collective" is called by all ranks in the same order.
 *   - If a peer is lost or has given up, the other ranks return YOKE_UNAVAILABLE within the timeout
 *     of the run.
 *   - Which operations a backend issues depends only on the plan, the model and the step, never on
 *     values that only one rank has. A rank that fails stops issuing operations.
 */
#ifndef YOKE_PARALLEL_BACKEND_H_
#define YOKE_PARALLEL_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define YOKE_ABI_MAJOR 1
#define YOKE_ABI_MINOR 1

/* ---- Structs that grow ---- */

/* The first member of every struct that may grow. */
typedef struct YokeHeader {
  uint32_t struct_size;          /* size of the struct in the version of its writer */
  uint32_t struct_id;            /* one of YOKE_ID_..., detects a wrong pointer */
  const struct YokeHeader* next; /* chain of extension structs, or NULL */
} YokeHeader;

/* Values of YokeHeader.struct_id, one for each kind of struct. */
enum {
  YOKE_ID_ERROR = 1,
  YOKE_ID_BACKEND = 2,
  YOKE_ID_DESCRIPTION = 3,
  YOKE_ID_OPTION_INFO = 4,
  YOKE_ID_PLAN = 5,
  YOKE_ID_PLAN_ARGS = 6,
  YOKE_ID_REFUSAL = 7,
  YOKE_ID_OPTIMIZER = 8,
  YOKE_ID_PARAMETER = 9,
  YOKE_ID_BLOCK = 10,
  YOKE_ID_MODEL_SUMMARY = 11,
  YOKE_ID_MODEL = 12,
  YOKE_ID_HOST = 13,
  YOKE_ID_INIT_ARGS = 14,
  YOKE_ID_WRAP_RESULT = 15,
  YOKE_ID_BATCH = 16,
  YOKE_ID_STEP_ARGS = 17,
  YOKE_ID_STEP_RESULT = 18,
  YOKE_ID_FORWARD_ARGS = 19,
  YOKE_ID_FORWARD_RESULT = 20,
  YOKE_ID_BACKWARD_ARGS = 21,
  YOKE_ID_PIECE = 22,
  YOKE_ID_CHECKPOINT_ARGS = 23,
  YOKE_ID_COLLECTIVES = 24,
  YOKE_ID_BACKENDS = 25,
  YOKE_ID_INNER_BACKEND = 26,
  YOKE_ID_MICRO_BATCH = 27,
  YOKE_ID_FORECASTS = 28,
  YOKE_ID_FORECAST = 29,
  YOKE_ID_STATE_KIND = 30,
  YOKE_ID_EVENTS = 31,
  YOKE_ID_TORCH_MODEL = 64 /* extension of YokeModel, see yoke/torch.hpp */
};

/* Initialises the header of a struct, as its first member:
 *
 *   YokeStepArgs a = {YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), ...};
 */
/* clang-format off */
#define YOKE_HEADER(Type, id) {(uint32_t)sizeof(Type), (uint32_t)(id), NULL}
/* clang-format on */

/* True if the struct *p contains this field. Check it before reading a field of a later version. */
#define YOKE_HAS(Type, p, field) \
  ((p)->header.struct_size >= offsetof(Type, field) + sizeof((p)->field))

/* A borrowed UTF-8 text. Frozen. */
typedef struct YokeString {
  const char* data; /* NULL is allowed if size is 0 */
  uint64_t size;    /* bytes, without the terminating 0 */
} YokeString;

/* Initialises a YokeString from a literal: YokeString s = YOKE_STRING("dp_degree"); */
/* clang-format off */
#define YOKE_STRING(literal) {(literal), sizeof(literal) - 1}
/* clang-format on */

/* ---- Errors ---- */

/* Error codes. Names and numbers are those of gRPC. */
enum {
  YOKE_OK = 0,
  YOKE_CANCELLED = 1,           /* the host requested a stop, see check_cancel */
  YOKE_UNKNOWN = 2,             /* failure of unknown kind */
  YOKE_INVALID_ARGUMENT = 3,    /* argument that is wrong in any state */
  YOKE_DEADLINE_EXCEEDED = 4,   /* timeout */
  YOKE_NOT_FOUND = 5,           /* missing thing, such as a piece of a checkpoint */
  YOKE_RESOURCE_EXHAUSTED = 8,  /* lack of memory or disk space */
  YOKE_FAILED_PRECONDITION = 9, /* call that is wrong in this state, or in this combination */
  YOKE_UNIMPLEMENTED = 12,      /* capability that this backend does not have */
  YOKE_INTERNAL = 13,           /* defect of the callee */
  YOKE_UNAVAILABLE = 14,        /* lost peer */
  YOKE_DATA_LOSS = 15           /* damaged or contradictory data */
};

/* The details of a failure. The caller owns it and sets the header; the callee that fails writes
 * the rest. A callee that does not know the rank or the step writes -1; the host adds what it
 * knows. text ends with a 0 if struct_size leaves room for any text. The host puts the backend's
 * name in front of the text when it prints it. */
typedef struct YokeError {
  YokeHeader header;
  int32_t code;    /* the code that the function returns, too */
  int32_t rank;    /* rank that failed, -1 = the caller's own or unknown */
  int64_t step;    /* step that failed, -1 = not in a step */
  char text[4096]; /* message for the user */
} YokeError;

/* ---- Tensors ---- */

/* The four structs below are binary-identical to DLDataType, DLDevice, DLTensor and
 * DLManagedTensorVersioned of DLPack 1.x. They have names of their own so that this file can be
 * included together with any copy of dlpack.h. Frozen. */

/* The type of one element. */
typedef struct YokeDataType {
  uint8_t code;   /* kind of number, YOKE_CODE_... */
  uint8_t bits;   /* bits of one element */
  uint16_t lanes; /* always 1 */
} YokeDataType;

/* The place of a tensor's memory. */
typedef struct YokeDevice {
  int32_t type; /* YOKE_DEVICE_... */
  int32_t id;   /* ordinal of the device in this process */
} YokeDevice;

/* A view of memory that somebody else owns. */
typedef struct YokeTensor {
  void* data; /* memory on `device`; the first element is at data + byte_offset */
  YokeDevice device;
  int32_t ndim; /* number of dimensions, 0 = scalar */
  YokeDataType dtype;
  int64_t* shape;       /* ndim sizes */
  int64_t* strides;     /* ndim strides in elements; NULL = compact row-major */
  uint64_t byte_offset; /* bytes from data to the first element */
} YokeTensor;

/* A tensor together with the right to its memory. The side that receives it calls deleter once. */
typedef struct YokeManagedTensor {
  uint32_t dlpack_major; /* always 1; with any other value only deleter may be used */
  uint32_t dlpack_minor;
  void* manager_ctx;                               /* data of the deleter */
  void (*deleter)(struct YokeManagedTensor* self); /* may be NULL; may run on any thread */
  uint64_t flags;                                  /* flags of DLPack */
  YokeTensor tensor;
} YokeManagedTensor;

/* Values of YokeDevice.type and of YokeDataType.code. */
enum { YOKE_DEVICE_CPU = 1, YOKE_DEVICE_CUDA = 2, YOKE_DEVICE_CUDA_HOST = 3 };
enum { YOKE_CODE_INT = 0, YOKE_CODE_UINT = 1, YOKE_CODE_FLOAT = 2, YOKE_CODE_BFLOAT = 4 };

/* A dtype as one number, code * 256 + bits. Structs use it where there is no tensor. */
enum {
  YOKE_I32 = 0x020,
  YOKE_I64 = 0x040,
  YOKE_U8 = 0x108,
  YOKE_F16 = 0x210,
  YOKE_F32 = 0x220,
  YOKE_F64 = 0x240,
  YOKE_BF16 = 0x410
};

/* Returns the number of a YokeDataType: YOKE_F32 for {YOKE_CODE_FLOAT, 32, 1}. */
#define YOKE_DTYPE_OF(data_type) ((int32_t)((data_type).code * 256 + (data_type).bits))

/* ---- Mesh ---- */

/* The axes of the mesh, outermost (slowest varying) first: pipeline stages, data-parallel replicas,
 * data-parallel shards, slices of the sequence (context parallelism), slices of the layers (tensor
 * parallelism). With degrees P, R, S, C and T the rank at a coordinate is
 *
 *   rank = (((pp * R + dp_replicate) * S + dp_shard) * C + cp) * T + tp
 *
 * The data rank is the coordinate on (dp_replicate, dp_shard). Ranks that differ only on the other
 * axes receive the same batch.
 *
 * Along dp_replicate the state of all ranks is equal. Along dp_shard a backend may divide the
 * optimizer state (ZeRO stage 1), the gradients as well (stage 2) and the parameters as well
 * (stage 3); what it does not divide is equal on all ranks. Along cp the state may be equal or
 * divided. Along tp the parameters with a tp_cut are divided and all others equal. Along pp every
 * rank holds the parameters of its own blocks. */
enum {
  YOKE_PP = 0,
  YOKE_DP_REPLICATE = 1,
  YOKE_DP_SHARD = 2,
  YOKE_CP = 3,
  YOKE_TP = 4,
  YOKE_NUM_AXES = 5
};

/* Sets of axes are bit masks. YOKE_ALL_AXES is the whole world. This stays true if a later version
 * adds axes, whose degrees would be new fields. */
#define YOKE_AXIS_BIT(axis) (1u << (axis))
#define YOKE_ALL_AXES 0xffffffffu

/* ---- describe ---- */

/* Types of options, YokeOptionInfo.type.
 *
 * A FILE is a path, relative to the current directory. The host reads the file and passes its bytes
 * along with the path, so plan reads no files itself. VARIABLES are environment variables, which
 * the host passes as lines NAME=VALUE, sorted by name. The value of such an option selects the
 * variables, as in "NAME|PREFIX_*". */
enum {
  YOKE_OPTION_INT = 1,
  YOKE_OPTION_DOUBLE = 2,
  YOKE_OPTION_BOOL = 3,
  YOKE_OPTION_STRING = 4,
  YOKE_OPTION_FILE = 5,
  YOKE_OPTION_VARIABLES = 6
};

/* The declaration of one option of the backend. Users write `[name] key = value` in a run file, or
 * `name.key=value` on the command line. The host checks type, range and choice. It passes every
 * declared option to plan and init; those that the user did not set have their default.
 *
 * default_value is written as in a run file, strings without quotes. If it is empty, a string or
 * file is "" by default, and a number or bool stays unset.
 *
 * choices are the allowed values of a STRING, "a|b|c"; empty = any value. For a FILE they are its
 * usual names, "*.yaml|*.yml", if it is another program's config that plan translates in notes.
 *
 * effects declares what else the option changes. YOKE_OPTION_CHANGES_NUMBERS: the losses and the
 * state of a run depend on the value, as on that of a hyperparameter. All other options change
 * only how a step is carried out; results may then differ by rounding and no more. */
typedef struct YokeOptionInfo {
  YokeHeader header;
  YokeString key;           /* name without the backend's name */
  YokeString default_value; /* see above */
  YokeString choices;       /* see above */
  YokeString doc;           /* one line for the user */
  double min;               /* least value of a number, inclusive; min > max = no limit */
  double max;               /* greatest value of a number, inclusive */
  int32_t type;             /* YOKE_OPTION_... */
  int32_t reserved;
  uint32_t effects; /* since 1.1; YOKE_OPTION_CHANGES_NUMBERS or 0 */
  uint32_t reserved2;
} YokeOptionInfo;

/* Bits of YokeOptionInfo.effects, since 1.1. Unknown bits are ignored. */
enum { YOKE_OPTION_CHANGES_NUMBERS = 1 };

/* Traits: properties by which a backend differs from what a host would otherwise assume.
 *
 * YOKE_LOCAL_UPDATES: the ranks along dp_replicate update independently and average every few
 * steps, as DiLoCo does. Between two averages the replicas differ, and a checkpoint takes the
 * copies with replica 0. The update is not the one that is described at YokeOptimizer.
 *
 * YOKE_BY_OPTIONS: each axis, ZeRO stage and dtype in the description is possible with some values
 * of the options, maybe not with all. plan refuses what the given values do not support.
 *
 * YOKE_OWN_UPDATE, since 1.1: the backend updates the parameters by a rule of its own, not by the
 * one at YokeOptimizer, and may keep other state than the moments there. The same inputs on the
 * same ranks give the same bits.
 *
 * YOKE_RANKS_CHANGE_UPDATE, since 1.1, only together with YOKE_OWN_UPDATE: the rule depends on how
 * the batch is divided into data ranks, as a majority vote of the ranks does. Without this trait,
 * every layout gives the results of one rank, up to rounding. */
enum {
  YOKE_LOCAL_UPDATES = 1,
  YOKE_BY_OPTIONS = 2,
  YOKE_OWN_UPDATE = 4,
  YOKE_RANKS_CHANGE_UPDATE = 8
};

/* Bits of YokeStateKind.flags, since 1.1. Unknown bits are refused.
 *
 * YOKE_STATE_PER_RANK: the state belongs to the ranks and not to elements of a parameter, such as
 * the error that a compressed all-reduce keeps for the next step. In a checkpoint the tensor has
 * the shape [world_size, ...]; a rank shows row number `rank` of it. If a run with another number
 * of ranks loads the checkpoint, visit returns YOKE_NOT_FOUND for these pieces and leaves the view
 * alone. The backend then starts this state anew, and the host says so to the user. */
enum { YOKE_STATE_PER_RANK = 1 };

/* Since 1.1. Declares a kind of state that only this backend has, see YokePiece. Lives as long as
 * the process. A `#` in the kind stands for any decimal number and is not followed by a digit:
 * "w#_param" declares "w1_param", "w12_param" and so on. */
typedef struct YokeStateKind {
  YokeHeader header;
  YokeString kind; /* [a-z0-9_#]+, at most 31 bytes, none of the contract's own kinds */
  YokeString doc;  /* one line for the user */
  uint32_t flags;  /* YOKE_STATE_PER_RANK or 0 */
  uint32_t reserved;
} YokeStateKind;

/* The backend's name and capabilities. The host refuses a degree above 1 on an axis, a dtype or a
 * device that is not listed here. Lives as long as the process. */
typedef struct YokeDescription {
  YokeHeader header;
  YokeString name;      /* [a-z][a-z0-9_]*, also the name of the file without .so */
  YokeString version;   /* version of the backend */
  YokeString vendor;    /* author; may be empty */
  YokeString summary;   /* one line for the user */
  YokeString torch_tag; /* tag of the LibTorch that the backend was built with; empty =
                                           it uses only the callbacks of YokeModel */
  const YokeOptionInfo* const* options; /* num_options pointers */
  uint64_t num_options;
  const int32_t* param_dtypes; /* compute dtypes that are supported, YOKE_F32 ...; at least one */
  uint64_t num_param_dtypes;
  uint32_t axes;        /* bit YOKE_AXIS_BIT(a) = axis a may have a degree above 1 */
  uint32_t zero_stages; /* bit n = ZeRO stage n is supported */
  uint32_t traits;      /* YOKE_LOCAL_UPDATES | ... */
  uint32_t devices;     /* bit 1u << YOKE_DEVICE_... = the backend can train on it */
  const YokeStateKind* const* state_kinds; /* since 1.1; num_state_kinds pointers */
  uint64_t num_state_kinds;                /* since 1.1 */
} YokeDescription;

/* ---- The model, independent of any framework ---- */

/* A parameter of the model: its name, shape and how it may be sharded. It has no memory; the
 * backend allocates that, see bind_param. Borrowed from the model. */
typedef struct YokeParameter {
  YokeHeader header;
  YokeString name;      /* fully qualified */
  const int64_t* shape; /* ndim sizes of the whole parameter; may be NULL if ndim is 0 */
  int32_t ndim;
  int32_t dtype;     /* compute dtype, that of views and gradients; in plan precision.param or 0 */
  int32_t trainable; /* 0 = never updated: no gradient and no optimizer state */
  int32_t decay;     /* 0 = weight decay does not apply */
  /* How tensor parallelism may shard the parameter. n > 0: cut along dimension n - 1.
   * YOKE_TP_WHOLE: replicated over the axis. 0: unknown, so a backend refuses tp. */
  int32_t tp_cut;
  int32_t reserved;
  /* If it is cut: the number of equal parts that must not be split further, such as the heads of a
   * projection, the columns of a feed-forward layer or the ids of a vocabulary. A legal tp degree
   * divides this number. */
  int64_t tp_parts;
} YokeParameter;

enum { YOKE_TP_WHOLE = -1 };

/* Which pass over a block is meant: values of YokePassBytes.kind and of YokeForecastAction.kind. A
 * backend either runs the whole backward of a block at once, or first the part that leads to the
 * gradient of its input, and later the gradients of its weights. */
enum {
  YOKE_FORECAST_OTHER = 0, /* no block is computed */
  YOKE_FORECAST_FORWARD = 1,
  YOKE_FORECAST_RECOMPUTE = 2, /* forward again, for the backward */
  YOKE_FORECAST_BACKWARD = 3,
  YOKE_FORECAST_BACKWARD_INPUT = 4,
  YOKE_FORECAST_BACKWARD_WEIGHT = 5
};

/* A point of a pass over a block at which memory may be highest: how much memory the host (Yoke)
 * has there in addition to what it had when the pass began, bytes_per_sequence for each sequence of
 * the micro-batch plus bytes. Either is negative if the host has freed more than it has allocated.
 * Since 1.1. The struct has no header, so its layout never changes.
 *
 * What the pass returns counts as allocated. Gradients of parameters count until the end of the
 * pass; a backend that uses and frees them in on_grad_ready needs less. A recomputation has the
 * points of a forward. */
typedef struct YokePassBytes {
  /* YOKE_FORECAST_FORWARD, with or without save; YOKE_FORECAST_BACKWARD, or one of its two parts */
  int32_t kind;
  int32_t reserved;
  int64_t bytes_per_sequence;
  int64_t bytes;
} YokePassBytes;

/* A block: the smallest part of the model that is executed on its own, such as one layer. Borrowed
 * from the model. A tied parameter is listed by each of its blocks.
 *
 * The costs are used for estimates only. activation_bytes, carry_bytes and forward_flops are for
 * one sequence; negative = unknown. activation_bytes is the memory that the host keeps from a
 * forward to its backward, without carry_in, the output of the previous block.
 *
 * pass_bytes lists the points at which the passes over the block may need the most memory. The peak
 * of a pass is the largest sum among the points of its kind, or what exists before or after the
 * pass if that is more.
 *
 * forward_flops counts the floating-point operations of the matrix products in one forward of the
 * whole block, before any parallelism: 2 m n k for a product of [m, k] and [k, n]. A sequence has
 * YokeModelSummary.seq_len tokens. A block without products, such as a look-up, has 0. If every
 * block has 0, the field counts as not given. */
typedef struct YokeBlock {
  YokeHeader header;
  YokeString name;
  const int64_t* params; /* num_params indices into YokeModelSummary.params */
  uint64_t num_params;
  int64_t activation_bytes;        /* size of YokeForwardResult.saved */
  int64_t carry_bytes;             /* size of YokeForwardResult.carry_out */
  double forward_flops;            /* since 1.1; negative = unknown */
  const YokePassBytes* pass_bytes; /* since 1.1; num_pass_bytes of them, NULL = unknown */
  uint64_t num_pass_bytes;
} YokeBlock;

/* All parameters and blocks of the model. Blocks are in execution order. The same on every rank.
 *
 * seq_len is set by a sequence model: every input of a micro-batch has the shape
 * [sequences, seq_len, ...], and a backend may slice and permute dimension 1 of all inputs
 * together. 0 = not a sequence model.
 *
 * more_blocks is a setting of the run file, such as `model.blocks = "half"`, with which the model
 * has more blocks. Backends quote it when they refuse a model that has too few. Empty = there is no
 * such setting. */
typedef struct YokeModelSummary {
  YokeHeader header;
  const YokeParameter* const* params; /* num_params pointers */
  uint64_t num_params;
  const YokeBlock* const* blocks; /* num_blocks pointers, in execution order */
  uint64_t num_blocks;
  int64_t seq_len;
  YokeString more_blocks; /* since 1.1 */
} YokeModelSummary;

/* One input of a micro-batch, [sequences, ...]. Frozen. The inputs of a language model are
 * [sequences, seq_len] int64 and have the roles "tokens", "targets" (targets below 0 do not count)
 * and "positions". Blocks read positions and lengths from the inputs and never assume them, so a
 * backend may pass a slice of the sequence. */
typedef struct YokeInput {
  YokeString role;
  YokeTensor tensor; /* memory of YokeHost.device */
} YokeInput;

/* The sequences of one forward pass. Borrowed for the duration of the call. */
typedef struct YokeMicroBatch {
  YokeHeader header;
  const YokeInput* inputs; /* num_inputs of them */
  uint64_t num_inputs;
  double token_weight; /* number of targets, 0 = unknown */
} YokeMicroBatch;

/* Arguments of YokeModel.block_forward. */
typedef struct YokeForwardArgs {
  YokeHeader header;
  uint64_t block; /* index into YokeModelSummary.blocks */
  const YokeMicroBatch* micro;
  /* The output of the previous block; NULL for the first block. It must stay valid and unchanged
   * until block_backward or drop_saved has been called with the `saved` of this forward. */
  const YokeTensor* carry_in;
  int32_t save; /* 1 = keep what block_backward needs, 0 = forward only */
  int32_t reserved;
} YokeForwardArgs;

/* Result of YokeModel.block_forward. The last block has a loss instead of a carry. */
typedef struct YokeForwardResult {
  YokeHeader header;
  YokeManagedTensor* carry_out; /* output, owned by the backend; NULL from the last block */
  void* saved;        /* handle for one block_backward or drop_saved; NULL only if save is 0 */
  double loss_sum;    /* loss of the last block, summed over its targets; else 0 */
  double loss_weight; /* number of targets in that sum; else 0 */
} YokeForwardResult;

/* Arguments of YokeModel.block_backward. */
typedef struct YokeBackwardArgs {
  YokeHeader header;
  uint64_t block;             /* index into YokeModelSummary.blocks */
  void* saved;                /* handle from the forward; consumed, even on failure */
  const YokeTensor* grad_out; /* gradient of carry_out; NULL for the last block */
  double loss_grad;           /* last block: gradient of loss_sum, e.g. 1 / batch->token_weight */
  /* The host calls it as soon as the gradient of a parameter of this block is complete for this
   * micro-batch: once for each trainable parameter, in no fixed order, on the thread that called
   * block_backward. The gradient is zero if the loss does not depend on the parameter.
   *
   * grad is compact, has the shape and dtype of the parameter, and lives for the duration of the
   * call. Each block that lists a tied parameter reports a gradient of its own; the backend adds
   * them. The callback may issue collectives and bind parameters. If it fails, block_backward ends
   * with its error. Never NULL. */
  int32_t (*on_grad_ready)(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err);
  void* on_grad_ctx;
} YokeBackwardArgs;

/* The model as callbacks of the host; each takes `ctx` first. A backend without LibTorch needs
 * nothing else. Lives until destroy_model returns.
 *
 * A forward depends only on its inputs and on the bound parameters, and may be repeated.
 * Micro-batches may be interleaved. A rank may run only some of the blocks. Every `saved` is passed
 * to block_backward or drop_saved exactly once, even after failures.
 *
 * header.next holds an extension YOKE_ID_TORCH_MODEL if the host's torch_tag equals that of the
 * backend, or of an inner backend that it has opened. */
typedef struct YokeModel {
  YokeHeader header;
  const YokeModelSummary* summary;
  void* ctx;

  /* Writes the initial values of elements [begin, begin + count) of a parameter, in row-major
   * order, to dst, which is host memory of the caller. They are fp32 numbers for every dtype of the
   * parameter, and do not depend on how it is split into ranges. Values with more bits, those of a
   * checkpoint in fp64, follow by LOAD. */
  int32_t (*init_param)(
      void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err);

  /* Lets the blocks read parameter `param` from `view`, a compact tensor on YokeHost.device with
   * exactly the shape and dtype of the parameter, aligned to its elements. The backend owns that
   * memory; the host copies the shape. NULL unbinds. After destroy_model, and after a wrap_model
   * that failed, all parameters are unbound.
   *
   * All parameters of a block must be bound before the block runs. Between steps the values may
   * change in place. Between a forward and its backward the backend may free the memory and bind
   * other memory with the same values. */
  int32_t (*bind_param)(void* ctx, int64_t param, const YokeTensor* view, YokeError* err);

  /* Runs one block forward on one micro-batch. */
  int32_t (*block_forward)(void* ctx,
                           const YokeForwardArgs* args,
                           YokeForwardResult* out,
                           YokeError* err);

  /* Runs one block backward. Reports the gradients of the parameters through args->on_grad_ready,
   * and sets *grad_in to the gradient of carry_in, which the backend then owns; NULL for the first
   * block. */
  int32_t (*block_backward)(void* ctx,
                            const YokeBackwardArgs* args,
                            YokeManagedTensor** grad_in,
                            YokeError* err);

  /* Frees what a forward saved, for a backward that will not happen. Cannot fail. */
  void (*drop_saved)(void* ctx, void* saved);
} YokeModel;

/* ---- plan ---- */

/* The value of one option. Frozen. The field to read depends on the type: double_value for a
 * DOUBLE, int_value for an INT or a BOOL, string_value for all others. If a number or bool has no
 * default and the user did not set it, given is 0 and the value has no meaning. */
typedef struct YokeOption {
  YokeString key;          /* without the backend's name, as in YokeOptionInfo */
  YokeString string_value; /* path of a FILE, as the user wrote it */
  YokeString content;      /* bytes of a FILE, or lines of VARIABLES */
  double double_value;
  int64_t int_value; /* 0 or 1 for a BOOL */
  int32_t type;      /* YOKE_OPTION_... */
  int32_t given;     /* 1 = set by the user, 0 = the default */
} YokeOption;

/* Values of YokeOptimizer.kind. Those after YOKE_ADAMW exist since 1.1. */
enum {
  YOKE_SGD = 1,
  YOKE_ADAMW = 2,
  YOKE_ADAM = 3,
  YOKE_ADAMW_UNCORRECTED = 4,
  YOKE_ADAM_UNCORRECTED = 5,
  YOKE_LION = 6,
  YOKE_MUON = 7
};

/* The optimizer of the run. Step t (the first is 1) updates the parameters from the mean gradient G
 * over the targets of the batch, as LibTorch does:
 *
 *   g = G * min(1, clip / (norm(G) + 1e-6))     norm over all trainable parameters; clip = 0: g = G
 *   p = p - lr * weight_decay * p               only parameters with decay; before the rest
 *   AdamW  m = beta1 * m + (1 - beta1) * g      kind "exp_avg" in checkpoints
 *          v = beta2 * v + (1 - beta2) * g * g  kind "exp_avg_sq"
 *          p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *   Lion   p = p - lr * sign(beta1 * m + (1 - beta1) * g)
 *          m = beta2 * m + (1 - beta2) * g      kind "exp_avg"; after the update of p
 *   SGD    b = momentum * b + g                 kind "momentum"; exists only if momentum is not 0
 *          p = p - lr * b
 *   Muon   m = momentum * m + (1 - momentum) * g           kind "exp_avg"; hidden matrices only
 *          O = orthogonal(momentum * m + (1 - momentum) * g)
 *          p = p - lr * 0.2 * sqrt(max(rows, columns)) * O
 *
 * Adam is AdamW, but weight decay changes the gradient, after clipping, and not the parameter:
 * g = g + weight_decay * p takes the place of the second line. The UNCORRECTED kinds are AdamW and
 * Adam without the factors 1 - beta1^t and 1 - beta2^t.
 *
 * With Muon, the hidden matrices are the trainable parameters of two dimensions that neither the
 * first nor the last block lists. All other parameters are updated as with AdamW. orthogonal(X)
 * divides X by its Frobenius norm, which counts as 1e-7 if it is smaller, and then repeats five
 * times
 *
 *   X = a * X + (b * S + c * S * S) * X, S = X * transpose(X), a = 3.4445, b = -4.7750, c = 2.0315
 *
 * or the same on the transpose if X has more rows than columns. This brings the singular values
 * close to 1. If the compute dtype has 16 bits, these products may be computed in bf16.
 *
 * If norm(G) is not finite, no rank changes any state, including "step", and the next step has the
 * same number t, with another batch. G is the gradient without the factor
 * YokeStepArgs.loss_scale. */
typedef struct YokeOptimizer {
  YokeHeader header;
  int32_t kind; /* YOKE_SGD, YOKE_ADAMW ... */
  int32_t reserved;
  double beta1;
  double beta2;
  double eps;
  double momentum;     /* momentum of SGD, 0 = none; decay rate of Muon's moment */
  double weight_decay; /* decoupled from the gradient, also for SGD; not for Adam */
  double clip;         /* bound of the global gradient norm; 0 = no clipping */
  double lr;           /* highest learning rate of the run; YokeStepArgs.lr is that of a step */
} YokeOptimizer;

/* The settings of a run. degree, micro_batch and the dtypes may be unset (0), and plan fills them.
 * plan leaves every field that is set as it is, or refuses it: the host ends the run if a value has
 * changed. The comment at each field names its key in a run file, for refusals.
 *
 * Leave micro_batch unset unless the schedule needs a certain value: the host then takes the
 * largest one that the bound train.max_micro_batch of the run allows.
 *
 * The number of data ranks is degree[YOKE_DP_REPLICATE] * degree[YOKE_DP_SHARD]. Each data rank
 * runs global_batch / (micro_batch * data ranks) micro-batches per step. The host checks that the
 * product of the degrees is world_size, and that the batch divides evenly. */
typedef struct YokePlan {
  YokeHeader header;
  const YokeOptimizer* optimizer; /* train.optimizer, train.betas, train.eps, train.clip ... */
  int32_t world_size;             /* number of ranks */
  /* pp_degree, dp_degree, dp_shards, cp_degree, tp_degree. One that plan leaves unset becomes 1. */
  int32_t degree[YOKE_NUM_AXES];
  int32_t global_batch; /* train.global_batch: sequences per step */
  int32_t micro_batch;  /* train.micro_batch: sequences per data rank and forward; may stay unset */
  /* precision.param: the compute dtype, which parameters, activations and gradients have. */
  int32_t param_dtype;
  /* precision.reduce: the dtype in which gradients are reduced and accumulated, at least as wide as
   * param_dtype. If plan leaves it unset, it becomes fp64 for fp64 and fp32 otherwise. */
  int32_t reduce_dtype;
} YokePlan;

/* A statement about the plan. With note = 0 it is a refusal: a reason why the backend does not
 * accept the plan. With note = 1 it is a note, which informs the user and changes nothing.
 *
 * A note with `allowed` translates a key of another program's config to a line of a run file, such
 * as `train.clip = 0.5`. `yoke config import` prints it, and a run without the key uses it. */
typedef struct YokeRefusal {
  YokeHeader header;
  YokeString key;     /* full name of a key of the run file, e.g. "tp_degree", "mine.unit_bytes" */
  YokeString given;   /* value that the user gave */
  YokeString allowed; /* values that would be accepted */
  YokeString hint;    /* what to write instead */
  int32_t note;       /* 0 = refusal, 1 = note */
  int32_t reserved;
} YokeRefusal;

/* Arguments of plan, borrowed for the call. header.next holds an extension YOKE_ID_BACKENDS if this
 * host can open other backends. If the host asks for forecasts, an extension YOKE_ID_FORECASTS
 * comes first. */
typedef struct YokePlanArgs {
  YokeHeader header;
  const YokeModelSummary* model;
  const YokeOption* options; /* every declared option of the backend, num_options of them */
  uint64_t num_options;
  /* Reports a refusal or a note, which is copied. Never NULL, cannot fail. */
  void (*refuse)(void* ctx, const YokeRefusal* refusal);
  void* refuse_ctx;
} YokePlanArgs;

/* ---- Forecasts, since 1.1 ---- */

/* A range of consecutive blocks. It has no header, so its layout never changes. */
typedef struct YokeBlockRange {
  int64_t first; /* index into YokeModelSummary.blocks */
  int64_t count; /* at least 1 */
} YokeBlockRange;

/* One action of a step. It has no header, so its layout never changes.
 *
 * begin and end are times since the start of the step, in a unit of the backend's own. They are
 * computed as if communication took no time. An action that waits for another rank ends when the
 * wait does. begin does not decrease from one action to the next. */
typedef struct YokeForecastAction {
  YokeString name;          /* kind of action in the backend's terms, such as "ReduceGrad" */
  int32_t kind;             /* YOKE_FORECAST_... */
  int32_t block;            /* index into YokeModelSummary.blocks, -1 = none */
  int32_t micro;            /* number of the micro-batch, -1 = none */
  int32_t axis;             /* axis of the communication that the action starts, -1 = none */
  int64_t payload_bytes;    /* payload of that communication, 0 = none, -1 = unknown */
  double begin;             /* start of the action */
  double end;               /* end of the action, at least begin */
  int64_t unsharded_bytes;  /* bytes of the buffers for gathered parameters and for gradients not
                               reduced yet while the action runs, in use or idle, -1 = unknown */
  int64_t activation_bytes; /* bytes of activations when the action ends, -1 = unknown */
  int64_t temporary_bytes;  /* bytes that the action needs at its peak, in addition to all that
                               exists when it ends, -1 = unknown */
} YokeForecastAction;

/* The forecast of a training step for the ranks with one coordinate on YOKE_PP. Ranks that differ
 * only on the other axes take the same actions. */
typedef struct YokeForecast {
  YokeHeader header;
  int32_t pp; /* coordinate on YOKE_PP */
  int32_t reserved;
  const YokeBlockRange* stages; /* ranges of blocks that these ranks run, ascending */
  uint64_t num_stages;
  const YokeForecastAction* actions; /* actions of a rank, in order */
  uint64_t num_actions;              /* number of actions, at least 1 */
  /* These three have the meaning that they have in YokeWrapResult. */
  int64_t param_bytes;
  int64_t grad_bytes;
  int64_t optimizer_bytes;
} YokeForecast;

/* Extension of YokePlanArgs: the host asks for forecasts of a training step. Within plan, a backend
 * that supports forecasts calls add on the calling thread, once for each coordinate on YOKE_PP in
 * ascending order, and not at all if it has reported a refusal. Before the first call it sets every
 * field of the plan; micro_batch may stay unset. add copies the forecast and everything that it
 * points to. It cannot fail: the host checks the forecasts after plan has returned. */
typedef struct YokeForecasts {
  YokeHeader header;
  void* ctx;                                            /* first argument of add */
  void (*add)(void* ctx, const YokeForecast* forecast); /* never NULL */
} YokeForecasts;

/* ---- Host services ---- */

/* Levels of log messages. */
enum { YOKE_LOG_DEBUG = 1, YOKE_LOG_INFO = 2, YOKE_LOG_WARNING = 3, YOKE_LOG_ERROR = 4 };

/* What the host provides to one rank. Lives until destroy returns. No function is NULL, and every
 * function may be called from any thread.
 *
 * `stream` is the cudaStream_t of this rank if `device` is a CUDA device (NULL = the legacy default
 * stream), else NULL. */
typedef struct YokeHost {
  YokeHeader header;
  void* ctx; /* first argument of every function */
  int32_t rank;
  int32_t world_size;
  YokeDevice device; /* where this rank computes */

  /* Logs one line of text, without a newline. level: YOKE_LOG_... */
  void (*log)(void* ctx, int32_t level, YokeString text);

  /* Returns 1 if the run is to stop: the backend then returns YOKE_CANCELLED soon. A step calls it
   * at least once for each micro-batch. Ranks may receive the 1 at different times; a rank that is
   * waiting for a peer then returns YOKE_UNAVAILABLE. */
  int32_t (*check_cancel)(void* ctx);

  /* Returns the service `name`, a table of functions of at least min_size bytes, or NULL if this
   * host does not have it. "yoke.collectives/1" is always available if world_size > 1. A backend
   * that needs a service which is missing returns YOKE_FAILED_PRECONDITION from init. The table
   * lives as long as the host.
   *
   * A table grows from one minor version to the next. A backend that can do without the newer
   * functions passes the size up to them, offsetof(YokeCollectives, send), and calls them only if
   * YOKE_HAS reports them. */
  const YokeHeader* (*get_service)(void* ctx, const char* name, uint64_t min_size);

  void* stream;
} YokeHost;

/* A communicator: an ordered set of ranks. Lives until the context is destroyed. */
typedef struct YokeComm YokeComm;

/* A collective operation in flight. wait() frees it. */
typedef struct YokeWork YokeWork;

/* Reductions. YOKE_AVG is for floating-point numbers only. */
enum { YOKE_SUM = 0, YOKE_AVG = 1, YOKE_MAX = 2, YOKE_MIN = 3 };

/* The service "yoke.collectives/1". All tensors are compact and on YokeHost.device; a tensor
 * without elements is allowed. Their dtypes are the seven of the enum above, YOKE_I32 to YOKE_BF16.
 * All ranks of a communicator issue its collective operations in the same order. The same inputs
 * give the same bits again.
 *
 * With work == NULL, a call returns when the operation is complete. Otherwise it returns at once,
 * and the memory of the tensors must stay alive and untouched until wait(*work). If the call itself
 * fails, *work is NULL.
 *
 * Errors: YOKE_UNAVAILABLE if a peer is lost, YOKE_DEADLINE_EXCEEDED after the timeout of the run,
 * YOKE_CANCELLED, and YOKE_INVALID_ARGUMENT for tensors with a wrong size or dtype. */
typedef struct YokeCollectives {
  YokeHeader header;
  void* ctx; /* first argument of comm */

  /* Sets *out to the communicator of the ranks that differ from this one only on the given axes
   * (bit mask), ordered by rank. YOKE_ALL_AXES is the world. `purpose` keeps two sequences of
   * operations apart, e.g. "unshard" and "reduce": the same axes and purpose give the same
   * communicator. Collective over the world. */
  int32_t (*comm)(void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err);

  /* Return the number of ranks of a communicator, and the index of this rank in it. */
  int32_t (*size)(const YokeComm* comm);
  int32_t (*rank)(const YokeComm* comm);

  /* Replaces inout by its reduction over all ranks. All ranks receive the same bits. */
  int32_t (*all_reduce)(
      YokeComm* comm, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err);

  /* Collects `in` of every rank into `out`, in rank order. out has size() times the elements of in.
   * in may be this rank's own part of out. */
  int32_t (*all_gather)(
      YokeComm* comm, const YokeTensor* out, const YokeTensor* in, YokeWork** work, YokeError* err);

  /* Reduces `in` over the ranks and leaves part number rank() of the result in `out`. in has size()
   * times the elements of out. out may be this rank's own part of in. */
  int32_t (*reduce_scatter)(YokeComm* comm,
                            const YokeTensor* out,
                            const YokeTensor* in,
                            int32_t op,
                            YokeWork** work,
                            YokeError* err);

  /* Copies inout of the rank with index root to all ranks. */
  int32_t (*broadcast)(
      YokeComm* comm, const YokeTensor* inout, int32_t root, YokeWork** work, YokeError* err);

  /* Returns when all ranks have called it. */
  int32_t (*barrier)(YokeComm* comm, YokeError* err);

  /* Waits for an operation and frees it, even if it returns an error. On a CUDA device
   * YokeHost.stream waits, not the calling thread. */
  int32_t (*wait)(YokeWork* work, YokeError* err);

  /* Returns the object that implements the communicator if it has the given type, else NULL.
   * "c10d::ProcessGroup" gives a borrowed c10d::ProcessGroup*. */
  void* (*native)(YokeComm* comm, const char* type);

  /* Since 1.1. Sends `in` to the rank with index `to`, or receives `out` from the rank with index
   * `from`, of the communicator. The two sides of a message have the same dtype and number of
   * elements. Neither function is collective. The messages from one rank to another arrive in the
   * order in which they are sent.
   *
   * A call without `work` may block until the peer has issued the other side, so two ranks that
   * both send first would wait for each other. On a CUDA device all messages between two ranks are
   * carried out one after the other, in either direction: both ranks must issue them in the same
   * order. Ranks that exchange data in a circle use all_to_all instead. */
  int32_t (*send)(
      YokeComm* comm, const YokeTensor* in, int32_t to, YokeWork** work, YokeError* err);
  int32_t (*recv)(
      YokeComm* comm, const YokeTensor* out, int32_t from, YokeWork** work, YokeError* err);

  /* Since 1.1. Sends a part of `in` to every rank, and receives a part of `out` from every rank,
   * both in rank order. in_counts and out_counts are the numbers of elements of the size() parts; a
   * part may be empty. What one rank sends to another is what that one expects. Both may be NULL:
   * the parts of a tensor are then equal. Collective over the communicator. */
  int32_t (*all_to_all)(YokeComm* comm,
                        const YokeTensor* out,
                        const int64_t* out_counts,
                        const YokeTensor* in,
                        const int64_t* in_counts,
                        YokeWork** work,
                        YokeError* err);
} YokeCollectives;

/* The service "yoke.events/1", since 1.1: lets a backend add to the trace and to the metrics of the
 * run. Every function may be called from any thread until destroy returns. Events never change a
 * run: if there are too many, the host drops the rest and reports how many it has dropped. */
typedef struct YokeEvents {
  YokeHeader header;
  void* ctx; /* first argument of every function */

  /* Returns the time in nanoseconds on the clock of `span`. */
  int64_t (*now)(void* ctx);

  /* Adds a span of time to the trace of this rank, from `begin` to `end`, which are times of now()
   * and not in the future. Has no effect while the run records no trace. Errors:
   * YOKE_INVALID_ARGUMENT for an empty name, a name of more than 63 bytes, or end < begin;
   * YOKE_RESOURCE_EXHAUSTED beyond 100,000 spans in a step. */
  int32_t (*span)(void* ctx, YokeString name, int64_t begin, int64_t end, YokeError* err);

  /* Sets a metric. The name has the form [a-z0-9_]+ and at most 63 bytes. The host writes the last
   * value that rank 0 has set since the previous step to metrics.jsonl, under the key
   * BACKEND.NAME. Errors: YOKE_INVALID_ARGUMENT for another name; YOKE_RESOURCE_EXHAUSTED for more
   * than 64 different names. */
  int32_t (*metric)(void* ctx, YokeString name, double value, YokeError* err);
} YokeEvents;

/* An inner backend: one that another backend, the outer one, builds on. The outer backend acts as
 * its host. It calls plan, with a plan and options that it may have changed, then init, wrap_model
 * and the other functions. It may pass refusals on unchanged. It may also pass the model on
 * unchanged, with its extensions if both backends have the same torch_tag.
 *
 * `host` describes this rank within the inner world: its rank, world_size and collectives are those
 * along the `axes` that were passed to open. In plan there are no ranks yet, and it is NULL. */
typedef struct YokeInnerBackend {
  YokeHeader header;
  const struct ParallelBackend* table; /* lives as long as the process */
  const YokeOption* options; /* every declared option: from the run file, or its default */
  uint64_t num_options;
  const YokeHost* host; /* host to pass to init; NULL in plan */
} YokeInnerBackend;

/* The service "yoke.backends/1". */
typedef struct YokeBackends {
  YokeHeader header;
  void* ctx;
  /* Finds a backend by name, as for the key parallel_backend of a run file, loads it if necessary
   * and checks its options. axes (bit mask): the inner world consists of the ranks that differ from
   * this one only on these axes; YOKE_ALL_AXES = all ranks.
   *
   * Within init the call is collective over the world, and what *out points to lives until destroy
   * returns. Within plan it may be made from any thread, and *out is valid until plan returns. */
  int32_t (*open)(
      void* ctx, const char* name, uint32_t axes, YokeInnerBackend* out, YokeError* err);
} YokeBackends;

/* ---- init, wrap_model ---- */

/* Handles of the backend. The backend defines the structs. */
typedef struct YokeContext YokeContext; /* one rank of a run */
typedef struct YokeWrapped YokeWrapped; /* one model that the backend has taken over */

/* Arguments of init. Everything that they point to lives until destroy returns. */
typedef struct YokeInitArgs {
  YokeHeader header;
  const YokePlan* plan;      /* complete, as plan left it */
  const YokeOption* options; /* every declared option, num_options of them */
  uint64_t num_options;
  const YokeHost* host;
} YokeInitArgs;

/* Result of wrap_model: the handle, and what the model costs this rank, in bytes. -1 means unknown.
 * For activation_bytes and axis_bytes, 0 also means unknown.
 *
 * param_bytes, grad_bytes and optimizer_bytes are held for the whole run. unsharded_bytes and
 * activation_bytes are needed at the peak of a step. A buffer that is held for the whole run and
 * serves for unreduced and for reduced gradients counts as grad_bytes.
 *
 * activation_bytes is the sum of activation_bytes + carry_bytes of the blocks whose forward waits
 * for its backward at the peak, times the sequences of a micro-batch. It is less if the backend
 * recomputes or divides them.
 *
 * axis_bytes is the payload of this rank's collectives along each axis in one step, without those
 * of a few scalars. The payload of an operation is its larger side: the tensor of an all_reduce or
 * a broadcast, the output of an all_gather, the input of a reduce_scatter or an all_to_all, a
 * message that is sent or received. An operation over several axes counts along each of them that
 * has a degree above 1. */
typedef struct YokeWrapResult {
  YokeHeader header;
  YokeWrapped* model;
  int64_t param_bytes;      /* master copies (shards), and permanent copies in the compute dtype */
  int64_t grad_bytes;       /* reduced gradients (shards) */
  int64_t optimizer_bytes;  /* moments */
  int64_t unsharded_bytes;  /* gathered parameters, and gradients that are not reduced yet */
  int64_t activation_bytes; /* what the model's blocks keep for their backward */
  int64_t axis_bytes[YOKE_NUM_AXES];
} YokeWrapResult;

/* ---- step ---- */

/* This data rank's part of the batch of one step. Borrowed for the call. */
typedef struct YokeBatch {
  YokeHeader header;
  const YokeMicroBatch* const* micros; /* micro-batches of this data rank */
  uint64_t num_micros;                 /* at least 1, and the same on all ranks */
  double token_weight; /* number of targets of the whole batch, over all data ranks; above 0 */
} YokeBatch;

/* Bits of YokeStepArgs.flags. FORWARD_ONLY is an evaluation: no gradient, no update, no change of
 * state. */
enum { YOKE_STEP_FORWARD_ONLY = 1 };

/* Arguments of step. `step` is the number of the update. The first update has number 1. Each later
 * one is one above the previous update, or above the "step" of the checkpoint that was loaded. A
 * backend need not check this. An evaluation has the number of the last update.
 *
 * loss_scale is above 0 in every training step of a run with param_dtype YOKE_F16, whose small
 * gradients would otherwise become zero. The backend multiplies the gradient of the loss by it, so
 * the gradients that block_backward reports contain this factor, and divides the reduced gradients
 * by it before it computes grad_norm, clips and updates. The host chooses the factor of each step
 * and keeps it in checkpoints. A backend of version 1.1 that lists YOKE_F16 supports this. */
typedef struct YokeStepArgs {
  YokeHeader header;
  const YokeBatch* batch;
  int64_t step;
  double lr; /* learning rate of this update */
  uint32_t flags;
  uint32_t reserved;
  double loss_scale; /* since 1.1; 0 = the loss is not scaled */
} YokeStepArgs;

/* Result of step, the same on every rank. NaN = unknown.
 *
 * loss_sum is the sum over the targets of the whole batch, of all data ranks; the mean loss is
 * loss_sum / token_weight. loss_weight is the number of targets in that sum, as counted by the
 * blocks. It must equal token_weight, or the host ends the run. grad_norm is the global 2-norm
 * before clipping, without the factor of the loss, +infinity if it is not finite.
 *
 * loss_scale is the factor by which the gradient of the loss was multiplied: that of the arguments
 * or, if they have none, one that the backend has chosen itself. skipped is 1 if the step changed
 * nothing because the norm is not finite. In an evaluation both are 0. */
typedef struct YokeStepResult {
  YokeHeader header;
  double loss_sum;
  double loss_weight;
  double grad_norm;
  double loss_scale; /* since 1.1; 0 = none */
  int32_t skipped;   /* since 1.1 */
  int32_t reserved;
} YokeStepResult;

/* ---- checkpoint ---- */

/* Values of YokeCheckpointArgs.op. */
enum { YOKE_CHECKPOINT_SAVE = 1, YOKE_CHECKPOINT_LOAD = 2, YOKE_CHECKPOINT_DESCRIBE = 3 };

/* A part of the state that this rank holds.
 *
 * Kinds. "param" is the master copy of a parameter; "exp_avg", "exp_avg_sq" and "momentum" are its
 * moments. They have the compute dtype, or fp32 if the compute dtype has 16 bits. "step" is a
 * scalar: name "optimizer", ndim 0, int64. A backend may add kinds of its own to a parameter,
 * [a-z0-9_]+ of at most 31 bytes, and declares them in YokeDescription.state_kinds. When the
 * checkpoint of another backend is loaded, visit returns YOKE_NOT_FOUND for them and leaves the
 * view alone; the backend then continues with the next piece.
 *
 * Complete. The pieces of all ranks contain every parameter, the "step", and the moments of every
 * trainable parameter that the rule at YokeOptimizer names. With the trait YOKE_OWN_UPDATE the
 * moments may be missing. The host refuses to save or to load anything less.
 *
 * Elements. A piece consists of equal spans of the flat row-major tensor, one every `stride`
 * elements; `run` is the length of a span. Element i of the piece, i in [0, count), is element
 *
 *   begin + (i / run) * stride + i % run
 *
 * of the tensor. The last span may be short. A contiguous range has run = count and stride = 0. A
 * scalar is a contiguous range with begin 0 and count 1. Example: a rank with columns [4, 8) of an
 * [n, 16] matrix reports one piece with begin 4, count 4 * n, run 4 and stride 16. All
 * non-contiguous pieces of a tensor have the same stride, which divides the tensor's number of
 * elements.
 *
 * Replicas. Over all ranks, the pieces with replica 0 cover every element of every tensor exactly
 * once. A rank may report further copies with replica > 0, such as the whole parameters under ZeRO
 * stage 1: the host then compares the copies, and LOAD fills them. Pieces without elements may be
 * left out. */
typedef struct YokePiece {
  YokeHeader header;
  YokeString name;      /* name of the parameter */
  YokeString kind;      /* "param", "exp_avg" ..., see above */
  const int64_t* shape; /* ndim sizes of the whole tensor; may be NULL if ndim is 0 */
  int32_t ndim;
  int32_t dtype;
  int64_t begin;          /* index of the first element in the whole tensor */
  int64_t count;          /* number of elements of this piece */
  int64_t run;            /* elements of one span; at least 1, unless count is 0 */
  int64_t stride;         /* elements between the starts of two spans; 0 = contiguous */
  int64_t replica;        /* 0 = this copy is saved, see above */
  const YokeTensor* view; /* count elements, compact, valid for the call; the host reads it on SAVE
                             and writes it on LOAD; NULL on DESCRIBE */
} YokePiece;

/* Arguments of checkpoint. The backend calls visit once for each local piece, in the same order for
 * every op. If visit fails, checkpoint ends and returns that error. The exception is YOKE_NOT_FOUND
 * for a kind of the backend's own, see YokePiece. */
typedef struct YokeCheckpointArgs {
  YokeHeader header;
  int32_t op; /* YOKE_CHECKPOINT_... */
  int32_t reserved;
  int32_t (*visit)(void* ctx, const YokePiece* piece, YokeError* err);
  void* visit_ctx;
} YokeCheckpointArgs;

/* ---- The table ---- */

/* The functions of a backend. All of them must be set. Call them in the order at the top of this
 * file; the rules there on errors, threads and ownership apply. */
typedef struct ParallelBackend {
  YokeHeader header;
  uint32_t abi_major;      /* YOKE_ABI_MAJOR of the header that the backend was built with */
  uint32_t abi_minor;      /* YOKE_ABI_MINOR of that header */
  uint32_t min_host_minor; /* minor version of the oldest host that the backend can work with */
  uint32_t reserved;

  /* Sets *out to the description of the backend, a constant. Uses no device or communication. */
  int32_t (*describe)(const YokeDescription** out, YokeError* err);

  /* Fills the unset fields of *plan. If the backend refuses the plan, reports every reason through
   * args->refuse, not only the first one, and returns YOKE_INVALID_ARGUMENT.
   *
   * Pure: it uses no device or communication, and has the same result on every rank. */
  int32_t (*plan)(const YokePlanArgs* args, YokePlan* plan, YokeError* err);

  /* Creates the context of this rank. Collective. */
  int32_t (*init)(const YokeInitArgs* args, YokeContext** out, YokeError* err);

  /* Takes over a model: allocates its parameters, initialises them with init_param, and allocates
   * the optimizer state. *model lives until destroy_model returns. It may be called again: the
   * models of a context are independent of each other. Collective. */
  int32_t (*wrap_model)(YokeContext* context,
                        const YokeModel* model,
                        YokeWrapResult* out,
                        YokeError* err);

  /* Makes one optimizer update from all micro-batches of the batch: forward, backward, reduce,
   * clip, update. With YOKE_STEP_FORWARD_ONLY it only computes the loss. Collective. */
  int32_t (*step)(YokeWrapped* model,
                  const YokeStepArgs* args,
                  YokeStepResult* out,
                  YokeError* err);

  /* Calls args->visit for every local piece of the state. The caller reads and writes all files.
   * SAVE and LOAD are collective, DESCRIBE is not. */
  int32_t (*checkpoint)(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err);

  /* Free a model or a context, and set the pointer to NULL. NULL and a pointer to NULL are allowed.
   * All models of a context are destroyed before the context. Local, cannot fail. */
  void (*destroy_model)(YokeWrapped** model);
  void (*destroy)(YokeContext** context);
} ParallelBackend;

/* The only symbol that a backend exports. C++ libraries tend to export templates as well, even with
 * -fvisibility=hidden; this version script for the linker (-Wl,--version-script=FILE) hides them:
 *
 *   { global: parallel_backend_entry_v1; local: *; };
 *
 * Returns a constant table that lives as long as the
 * process, or NULL with the reason in *err. It starts no thread, uses no device, reads no
 * environment and allocates nothing. It may be called from any thread, any number of times.
 *
 * host_minor is the minor version of the host. A backend must not refuse a newer host. The host
 * accepts the table if abi_major is 1, all functions are set, and min_host_minor is not above its
 * own minor version. */
#define YOKE_ENTRY_SYMBOL "parallel_backend_entry_v1"
typedef const ParallelBackend* (*YokeEntry)(uint32_t host_minor, YokeError* err);
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const ParallelBackend*
parallel_backend_entry_v1(uint32_t host_minor, YokeError* err);

#ifdef __cplusplus
}
#endif

#endif /* YOKE_PARALLEL_BACKEND_H_ */
