/* The contract between Yoke and a parallel backend. C99, one file, no dependency.
 *
 * A backend is a shared library that exports one symbol, parallel_backend_entry_v1, and through it a
 * table of functions, the ParallelBackend. The host (Yoke) owns the mathematics of the model and the
 * data. The backend owns the schedule of a step, the memory of the parameters, the communication and
 * the optimizer. Life of a run, on every rank:
 *
 *   entry -> describe -> plan -> init -> wrap_model -> step ... checkpoint ... -> destroy_model -> destroy
 *
 * Version 1 is frozen: a backend built with any 1.x of this file works with every host of 1.y, unless its
 * own min_host_minor says otherwise. What changes is listed under "ABI" in CHANGELOG.md.
 *
 * Layout     Every struct that may grow starts with a YokeHeader. Fields are only appended. A reader
 *            uses a field of a later version only if YOKE_HAS says that the other side knows it; a zero
 *            field means "not given", and reserved fields are zero. A writer into memory of the other
 *            side writes at most header.struct_size bytes and leaves the header alone. struct_size is never
 *            below the size of the struct in 1.0. Who copies a struct to hand it on sets struct_size to the
 *            smaller of both sizes. Structs without a header are frozen. Arrays of growable structs are
 *            arrays of pointers. An unknown struct in a header.next chain is skipped.
 * Values     An unknown value of an enum, or an unknown bit of flags, is refused: in plan by a refusal,
 *            elsewhere with YOKE_UNIMPLEMENTED; unknown traits mean nothing. A host gives a field of 1.y that
 *            changes what is computed a value other than zero only to a backend with abi_minor >= y, and
 *            refuses the run otherwise.
 * Strings    UTF-8, data[size] is 0; {NULL, 0} is empty too. Arguments live for the call, descriptions for
 *            the process.
 * Errors     Every function that can fail returns YOKE_OK or a code and, if err is not NULL, fills *err. A
 *            text says what failed, the value given, what is allowed and how to fix it. Nothing is thrown
 *            across the border; nothing in a library ends the process or prints. The caller of a function
 *            with a result sets its header; the callee writes the rest, and leaves it zero when it fails. A
 *            failed call leaves every handle valid and its inputs with the caller. NULL or a struct of
 *            another kind where one is required is YOKE_INVALID_ARGUMENT, a handle that is NULL
 *            YOKE_FAILED_PRECONDITION. After a failed step or LOAD the state may be that of no step:
 *            another LOAD, or destroy_model, comes next.
 * Threads    entry, describe and plan: any thread, any time. All other calls: one at a time per
 *            context, not tied to one thread. Two contexts in one process are independent of each
 *            other. Callbacks of a model are called only by the thread that is inside wrap_model, step,
 *            checkpoint or destroy_model. After destroy returned no thread of the backend may live.
 * Ownership  Memory belongs to whoever made it. Arguments are borrowed for the call, unless a comment says
 *            how long they live. A YokeManagedTensor belongs to who received it, who calls its deleter
 *            once, when all uses are issued on YokeHost.stream, before destroy returns. A managed tensor
 *            that a failed call was given stays with its caller.
 * Streams    On the CPU there are none: a call returns when its results are in memory. On a CUDA device
 *            everything that passes the border is in order on YokeHost.stream: inputs of a call are ready
 *            there when it starts, its outputs when it returns, though the device may still be at work. A
 *            backend with streams of its own joins them to this one by events, never by waiting for the
 *            device, and gives the current device back as it found it. Scalars (losses, norms, weights)
 *            are host memory, ready when a call returns.
 * Collective A function marked so is called by all ranks in the same order. If a peer is lost or gave up, the
 *            others return YOKE_UNAVAILABLE within the run's timeout. Which operations a backend issues
 *            follows from the plan, the model and the step, never from values that only one rank has; a
 *            rank that fails stops issuing.
 */
#ifndef YOKE_PARALLEL_BACKEND_H_
#define YOKE_PARALLEL_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define YOKE_ABI_MAJOR 1
#define YOKE_ABI_MINOR 0

/* ---- Structs that grow --------------------------------------------------------------------------- */

typedef struct YokeHeader {
  uint32_t struct_size; /* bytes of the whole struct, as its writer knows it */
  uint32_t struct_id;   /* one of YOKE_ID_..., so that a wrong pointer is noticed */
  const struct YokeHeader* next; /* chain of extension structs, or NULL */
} YokeHeader;

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
  YOKE_ID_TORCH_MODEL = 64 /* yoke/torch.hpp */
};

/* First member of an initialiser: YokeStepArgs a = {YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), ...}. */
#define YOKE_HEADER(Type, id) {(uint32_t)sizeof(Type), (uint32_t)(id), NULL}
/* Does the writer of *p know this field? */
#define YOKE_HAS(Type, p, field) \
  ((p)->header.struct_size >= offsetof(Type, field) + sizeof((p)->field))

/* Frozen. */
typedef struct YokeString {
  const char* data;
  uint64_t size; /* bytes, without the terminating 0 */
} YokeString;

/* Initialiser from a literal: YokeString s = YOKE_STRING("dp_degree"); */
#define YOKE_STRING(literal) {(literal), sizeof(literal) - 1}

/* ---- Errors -------------------------------------------------------------------------------------- */

/* The canonical codes of gRPC. */
enum {
  YOKE_OK = 0,
  YOKE_CANCELLED = 1,          /* check_cancel said so */
  YOKE_UNKNOWN = 2,
  YOKE_INVALID_ARGUMENT = 3,   /* wrong in any state */
  YOKE_DEADLINE_EXCEEDED = 4,
  YOKE_NOT_FOUND = 5,
  YOKE_RESOURCE_EXHAUSTED = 8, /* memory, disk */
  YOKE_FAILED_PRECONDITION = 9,/* wrong in this state, or in this combination */
  YOKE_UNIMPLEMENTED = 12,     /* a capability that this backend does not have */
  YOKE_INTERNAL = 13,          /* a defect of the callee */
  YOKE_UNAVAILABLE = 14,       /* a peer is lost */
  YOKE_DATA_LOSS = 15          /* damaged or contradictory data */
};

/* Owned by the caller, who sets the header; the callee writes the rest. text is always terminated. */
typedef struct YokeError {
  YokeHeader header;
  int32_t code;
  int32_t rank; /* the rank that failed, -1 = the caller's own or unknown */
  int64_t step; /* -1 = not in a step */
  char text[4096];
} YokeError;

/* ---- Tensors ------------------------------------------------------------------------------------- */

/* Binary-identical to DLPack 1.x (DLDataType, DLDevice, DLTensor, DLManagedTensorVersioned), under own
 * names so that this file can meet any copy of dlpack.h in one translation unit. Frozen. */
typedef struct YokeDataType {
  uint8_t code; /* YOKE_CODE_... */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} YokeDataType;

typedef struct YokeDevice {
  int32_t type; /* YOKE_DEVICE_... */
  int32_t id;   /* ordinal in this process */
} YokeDevice;

typedef struct YokeTensor {
  void* data;
  YokeDevice device;
  int32_t ndim;
  YokeDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL = compact row-major */
  uint64_t byte_offset;
} YokeTensor;

typedef struct YokeManagedTensor {
  uint32_t dlpack_major; /* 1; with any other value only deleter may be used */
  uint32_t dlpack_minor;
  void* manager_ctx;
  void (*deleter)(struct YokeManagedTensor* self); /* may be NULL; may run on any thread */
  uint64_t flags;
  YokeTensor tensor;
} YokeManagedTensor;

enum { YOKE_DEVICE_CPU = 1, YOKE_DEVICE_CUDA = 2, YOKE_DEVICE_CUDA_HOST = 3 };
enum { YOKE_CODE_INT = 0, YOKE_CODE_UINT = 1, YOKE_CODE_FLOAT = 2, YOKE_CODE_BFLOAT = 4 };

/* A dtype as one number, code * 256 + bits; used where no tensor is at hand. */
enum {
  YOKE_I32 = 0x020,
  YOKE_I64 = 0x040,
  YOKE_U8 = 0x108,
  YOKE_F16 = 0x210,
  YOKE_F32 = 0x220,
  YOKE_F64 = 0x240,
  YOKE_BF16 = 0x410
};
#define YOKE_DTYPE_OF(data_type) ((int32_t)((data_type).code * 256 + (data_type).bits))

/* ---- Mesh ---------------------------------------------------------------------------------------- */

/* Axes of the mesh, slowest first: rank = (((pp * R + dp_replicate) * S + dp_shard) * C + cp) * T + tp.
 * A data rank is a coordinate on (dp_replicate, dp_shard); ranks that differ only in the other axes
 * get the same batch. */
enum { YOKE_PP = 0, YOKE_DP_REPLICATE = 1, YOKE_DP_SHARD = 2, YOKE_CP = 3, YOKE_TP = 4, YOKE_NUM_AXES = 5 };
#define YOKE_AXIS_BIT(axis) (1u << (axis))
#define YOKE_ALL_AXES 0xffffffffu /* the world, also when there are more: those will get fields of their own */

/* ---- describe ------------------------------------------------------------------------------------ */

/* A file is a path, relative to the current directory; the host reads it and hands over its bytes too,
 * so that plan stays pure. Variables of the environment are handed over likewise, as lines NAME=VALUE
 * sorted by name; the string value says which: "NAME|PREFIX_*". */
enum {
  YOKE_OPTION_INT = 1,
  YOKE_OPTION_DOUBLE = 2,
  YOKE_OPTION_BOOL = 3,
  YOKE_OPTION_STRING = 4,
  YOKE_OPTION_FILE = 5,
  YOKE_OPTION_VARIABLES = 6
};

/* One option of the backend, written `[name] key = value` or `name.key=value` by the user. The host
 * checks type, range and choice, and hands every option to plan and init, defaults filled in. */
typedef struct YokeOptionInfo {
  YokeHeader header;
  YokeString key;           /* without the backend's name */
  YokeString default_value; /* as it would be written in a run file, strings without quotes; empty = a
                               number or bool that stays unset, a string or file that is "" */
  YokeString choices;       /* of a string: "a|b|c"; empty = any. Of a file, if it is another program's
                               config that notes of plan translate: the names that it has, "*.yaml|*.yml" */
  YokeString doc;           /* one line */
  double min;               /* of numbers, inclusive; min > max = no limit */
  double max;
  int32_t type;             /* YOKE_OPTION_... */
  int32_t reserved;
} YokeOptionInfo;

/* What the host and the checks must not take for granted.
 * YOKE_LOCAL_UPDATES: ranks along dp_replicate update on their own and agree every so many steps, as
 * DiLoCo does. In between replicas differ (a checkpoint takes the copies with replica 0), and the update is
 * not the one at YokeOptimizer.
 * YOKE_BY_OPTIONS: axes, ZeRO stages and dtypes are those of some setting of the options; plan refuses what
 * the present one cannot do. */
enum { YOKE_LOCAL_UPDATES = 1, YOKE_BY_OPTIONS = 2 };

/* Who the backend is and what it can do: the host refuses a degree > 1 on an axis, a dtype or a device that
 * is not named here. Lives as long as the process. */
typedef struct YokeDescription {
  YokeHeader header;
  YokeString name;      /* [a-z][a-z0-9_]*, also the file's name without .so */
  YokeString version;
  YokeString vendor;
  YokeString summary;   /* one line */
  YokeString torch_tag; /* of the LibTorch it was built with; empty = uses the neutral model */
  const YokeOptionInfo* const* options;
  uint64_t num_options;
  const int32_t* param_dtypes; /* compute dtypes, YOKE_F32 ...; at least one */
  uint64_t num_param_dtypes;
  uint32_t axes;        /* bit per axis that may have a degree > 1 */
  uint32_t zero_stages; /* bit n = ZeRO stage n */
  uint32_t traits;      /* YOKE_LOCAL_UPDATES ... */
  uint32_t devices;     /* bit per YOKE_DEVICE_... on which it can train: 1u << YOKE_DEVICE_CPU */
} YokeDescription;

/* ---- The model, neutral -------------------------------------------------------------------------- */

typedef struct YokeParameter {
  YokeHeader header;
  YokeString name; /* fully qualified */
  const int64_t* shape;
  int32_t ndim;
  int32_t dtype;     /* compute dtype; also that of views and gradients */
  int32_t trainable; /* 0 = never updated, has no optimizer state, gets no gradient */
  int32_t decay;     /* 0 = weight decay does not apply */
  /* How tensor parallelism may hold it: 0 = the model does not say, so a tensor-parallel backend refuses
   * it; YOKE_TP_WHOLE = whole on every rank of the axis; n > 0 = cut along dim n - 1. */
  int32_t tp_cut;
  int32_t reserved;
  int64_t tp_parts; /* if cut: equal parts that stay whole (heads of a projection, units of a feed-forward,
                       ids of a vocabulary); a legal tp degree divides their number */
} YokeParameter;

enum { YOKE_TP_WHOLE = -1 };

/* A unit of the model, in execution order. A tied parameter stands in several blocks. */
typedef struct YokeBlock {
  YokeHeader header;
  YokeString name;
  const int64_t* params; /* indices into YokeModelSummary.params */
  uint64_t num_params;
  /* Bytes for one sequence of the run, -1 = not known: what the host keeps from a forward to its
   * backward, without carry_in; and carry_out. */
  int64_t activation_bytes;
  int64_t carry_bytes;
} YokeBlock;

typedef struct YokeModelSummary {
  YokeHeader header;
  const YokeParameter* const* params;
  uint64_t num_params;
  const YokeBlock* const* blocks;
  uint64_t num_blocks;
  /* Of a sequence model: every input of a micro-batch is [sequences, seq_len, ...], and a backend may
   * slice and permute dim 1 of all of them together. 0 = not a sequence model. */
  int64_t seq_len;
} YokeModelSummary;

/* An input of one micro-batch, [sequences, ...]. Frozen. Roles of a language model, all of them
 * [sequences, seq_len] int64: "tokens", "targets" (those below 0 do not count), "positions". No block
 * derives positions or lengths from a constant, so that a backend may slice what it passes. */
typedef struct YokeInput {
  YokeString role;
  YokeTensor tensor;
} YokeInput;

/* Borrowed for the call. */
typedef struct YokeMicroBatch {
  YokeHeader header;
  const YokeInput* inputs;
  uint64_t num_inputs;
  double token_weight; /* its targets; 0 = not told */
} YokeMicroBatch;

typedef struct YokeForwardArgs {
  YokeHeader header;
  uint64_t block;
  const YokeMicroBatch* micro;
  const YokeTensor* carry_in; /* output of the block before; NULL for the first. It must stay valid and
                                 unchanged until block_backward or drop_saved of the same `saved` */
  int32_t save;               /* 1 = keep what block_backward needs */
  int32_t reserved;
} YokeForwardArgs;

typedef struct YokeForwardResult {
  YokeHeader header;
  YokeManagedTensor* carry_out; /* owned by the backend now; NULL from the last block */
  void* saved;                  /* to be given to block_backward or drop_saved once; NULL if !save */
  double loss_sum;              /* last block: loss summed over its targets */
  double loss_weight;           /* last block: number of targets in the sum */
} YokeForwardResult;

typedef struct YokeBackwardArgs {
  YokeHeader header;
  uint64_t block;
  void* saved;                /* consumed, also on failure */
  const YokeTensor* grad_out; /* gradient of carry_out; NULL for the last block */
  double loss_grad;           /* last block: gradient of loss_sum, e.g. 1 / batch->token_weight */
  /* Called as soon as the gradient of a parameter of this block is complete for this micro-batch, once
   * per trainable parameter, in no fixed order, by the thread that called; zeros if the loss does not
   * depend on it. The view is compact, has the parameter's shape and dtype and lives for the call. A tied
   * parameter is reported by each of its blocks: the backend adds. It may issue collectives and bind; its
   * error ends block_backward. Not NULL. */
  int32_t (*on_grad_ready)(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err);
  void* on_grad_ctx;
} YokeBackwardArgs;

/* Filled by the host. Callbacks take `ctx` first. A backend without LibTorch needs nothing else. A forward
 * depends on its inputs and the bound values alone, and can be repeated; micro-batches may interleave; a
 * rank may run some of the blocks only. Every `saved` is given back once, also after failures. */
typedef struct YokeModel {
  YokeHeader header; /* next: YOKE_ID_TORCH_MODEL if the torch_tag of the backend, or of one that it has
                        opened, equals the host's */
  const YokeModelSummary* summary;
  void* ctx;
  /* Initial values of the flat row-major range [begin, begin + count) of a parameter, as fp32 in host
   * memory. */
  int32_t (*init_param)(void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err);
  /* The backend owns the memory of parameters. Before a block runs, each of its parameters must be
   * bound to a compact view of exactly its shape and dtype on YokeHost.device; NULL unbinds, as does
   * destroy_model. Between steps the values may change in place; between a forward and its backward the
   * memory may be freed and another one bound, as long as the values are the same. */
  int32_t (*bind_param)(void* ctx, int64_t param, const YokeTensor* view, YokeError* err);
  int32_t (*block_forward)(void* ctx, const YokeForwardArgs* args, YokeForwardResult* out, YokeError* err);
  /* *grad_in: gradient of carry_in, owned by the backend; NULL from the first block. */
  int32_t (*block_backward)(void* ctx, const YokeBackwardArgs* args, YokeManagedTensor** grad_in, YokeError* err);
  void (*drop_saved)(void* ctx, void* saved);
} YokeModel;

/* ---- plan ---------------------------------------------------------------------------------------- */

/* One value of an option. Frozen. A double has double_value, an int or bool int_value, all others
 * string_value. A number or bool without a default that nobody gave has given = 0 and no meaning. */
typedef struct YokeOption {
  YokeString key;
  YokeString string_value; /* of a file: its path as the user wrote it */
  YokeString content;      /* of a file: its bytes; of variables: their lines */
  double double_value;
  int64_t int_value; /* also of a bool: 0 or 1 */
  int32_t type;
  int32_t given;     /* 0 = the default */
} YokeOption;

enum { YOKE_SGD = 1, YOKE_ADAMW = 2 };

/* The update of step t (1 is the first) from the mean gradient G of the batch, as LibTorch does it. If
 * norm(G) is not finite, the state stays as it is on every rank, with "step", and t comes again.
 *   g = G * min(1, clip / (norm(G) + 1e-6))      norm: over all trainable parameters; clip = 0: g = G
 *   p = p - lr * weight_decay * p                parameters with decay only, before the rest
 *   AdamW  m = beta1 * m + (1 - beta1) * g       "exp_avg"
 *          v = beta2 * v + (1 - beta2) * g * g   "exp_avg_sq"
 *          p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *   SGD    b = momentum * b + g                  "momentum"; exists only if momentum is not 0
 *          p = p - lr * b */
typedef struct YokeOptimizer {
  YokeHeader header;
  int32_t kind;
  int32_t reserved;
  double beta1;
  double beta2;
  double eps;
  double momentum;
  double weight_decay; /* decoupled, also for SGD */
  double clip;         /* bound of the global gradient norm; 0 = no clipping */
  double lr;           /* the highest rate of the run; the rate of a step comes with the step */
} YokeOptimizer;

/* What a run wants. 0 = unset, which may be so of degree, micro_batch and the dtypes: plan fills them. Data
 * ranks = degree[DP_REPLICATE] * degree[DP_SHARD]; micro-batches per step and data rank = global_batch /
 * (micro_batch * data ranks). The host checks that the degrees' product is world_size and that the batch
 * divides. Behind each field: its key in a run file, for refusals. */
typedef struct YokePlan {
  YokeHeader header;
  const YokeOptimizer* optimizer; /* train.optimizer, train.betas, train.eps, train.clip ... */
  int32_t world_size;
  int32_t degree[YOKE_NUM_AXES]; /* pp_degree, dp_degree, dp_shards, cp_degree, tp_degree; a degree that plan
                                    leaves unset becomes 1 */
  int32_t global_batch; /* train.global_batch: sequences per step */
  int32_t micro_batch;  /* train.micro_batch: sequences per data rank and forward; may stay unset */
  int32_t param_dtype;  /* precision.param: of compute: parameters, activations, gradients */
  int32_t reduce_dtype; /* precision.reduce: of gradients while they are reduced and accumulated, at least
                           param_dtype; left unset, fp64 for fp64 and fp32 otherwise */
} YokePlan;

/* One reason not to run this plan, or (note = 1) something the user should know. A note with `allowed`
 * translates a key of a foreign config: `allowed` is a line of a run file that says the same, such as
 * `tp_degree = 2`. It is shown by `yoke config import` alone. */
typedef struct YokeRefusal {
  YokeHeader header;
  YokeString key;     /* full name of a key of the run file, e.g. "tp_degree", "mine.unit_bytes" */
  YokeString given;
  YokeString allowed;
  YokeString hint;    /* what to write instead */
  int32_t note;
  int32_t reserved;
} YokeRefusal;

typedef struct YokePlanArgs {
  YokeHeader header; /* next: YOKE_ID_BACKENDS, if this host can open other backends */
  const YokeModelSummary* model;
  const YokeOption* options;
  uint64_t num_options;
  void (*refuse)(void* ctx, const YokeRefusal* refusal); /* never NULL */
  void* refuse_ctx;
} YokePlanArgs;

/* ---- Host services ------------------------------------------------------------------------------- */

enum { YOKE_LOG_DEBUG = 1, YOKE_LOG_INFO = 2, YOKE_LOG_WARNING = 3, YOKE_LOG_ERROR = 4 };

/* What the host does for a backend. Any thread, until destroy returned. No function is NULL. `stream` is
 * the cudaStream_t of this rank if `device` is a CUDA device (NULL = the legacy default stream), else NULL. */
typedef struct YokeHost {
  YokeHeader header;
  void* ctx;
  int32_t rank;
  int32_t world_size;
  YokeDevice device;
  void (*log)(void* ctx, int32_t level, YokeString text); /* one line, without newline */
  /* 1 = return YOKE_CANCELLED soon. Ranks may learn it at different times; the others get
   * YOKE_UNAVAILABLE. */
  int32_t (*check_cancel)(void* ctx);
  /* A table of functions by name, at least min_size bytes; NULL = not here. "yoke.collectives/1" is there
   * if world_size > 1. */
  const YokeHeader* (*get_service)(void* ctx, const char* name, uint64_t min_size);
  void* stream;
} YokeHost;

typedef struct YokeComm YokeComm; /* communicator of a set of ranks; lives until destroy of the context */
typedef struct YokeWork YokeWork; /* a collective on its way */

enum { YOKE_SUM = 0, YOKE_AVG = 1, YOKE_MAX = 2, YOKE_MIN = 3 };

/* "yoke.collectives/1". All tensors compact and on YokeHost.device; no elements are fine. The operations of one
 * communicator are issued in the same order on all its ranks. work == NULL: the call waits. Otherwise the
 * memory of the tensors must live, and stay untouched, until wait(*work), which also frees it, whatever it
 * answers; *work is NULL if the call failed. YOKE_AVG is for floating point. */
typedef struct YokeCollectives {
  YokeHeader header;
  void* ctx;
  /* The communicator of the ranks that differ from this one only in the given axes (bits), ordered by
   * rank; YOKE_ALL_AXES = the world. purpose keeps two streams of operations apart ("unshard",
   * "reduce"): the same axes and purpose give the same communicator. Collective over the world. */
  int32_t (*comm)(void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err);
  int32_t (*size)(const YokeComm* comm);
  int32_t (*rank)(const YokeComm* comm);
  int32_t (*all_reduce)(YokeComm* comm, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err);
  /* out: size() times the elements of in, in rank order. in may be this rank's own part of out. */
  int32_t (*all_gather)(YokeComm* comm, const YokeTensor* out, const YokeTensor* in, YokeWork** work, YokeError* err);
  /* in: size() times the elements of out. out may be this rank's own part of in. */
  int32_t (*reduce_scatter)(YokeComm* comm, const YokeTensor* out, const YokeTensor* in, int32_t op, YokeWork** work,
                            YokeError* err);
  int32_t (*broadcast)(YokeComm* comm, const YokeTensor* inout, int32_t root, YokeWork** work, YokeError* err);
  int32_t (*barrier)(YokeComm* comm, YokeError* err);
  int32_t (*wait)(YokeWork* work, YokeError* err);
  /* The object behind: "c10d::ProcessGroup" gives a borrowed c10d::ProcessGroup*; NULL = not that kind. */
  void* (*native)(YokeComm* comm, const char* type);
} YokeCollectives;

/* A backend that another one stands on. The outer one calls its table as a host would: plan with a plan
 * and options that it may have changed, then init, wrap_model and the rest. Refusals may be handed on as
 * they are, and so may a model, with its extensions if both have the same torch_tag. */
typedef struct YokeInnerBackend {
  YokeHeader header;
  const struct ParallelBackend* table; /* lives as long as the process */
  const YokeOption* options; /* every option of it: [its name] of the run file, else the default */
  uint64_t num_options;
  const YokeHost* host; /* for its init: rank, world and collectives are those along `axes`. NULL while
                           a plan is made: there are no ranks yet */
} YokeInnerBackend;

/* "yoke.backends/1". */
typedef struct YokeBackends {
  YokeHeader header;
  void* ctx;
  /* Finds a backend as parallel_backend of a run file is found, loads it if need be, checks its options.
   * axes (bits): the inner world is the ranks that differ from this one only in these; YOKE_ALL_AXES =
   * all of them. What *out points to lives until destroy returned, in plan for the call. Any thread in
   * plan; in init collective over the world. */
  int32_t (*open)(void* ctx, const char* name, uint32_t axes, YokeInnerBackend* out, YokeError* err);
} YokeBackends;

/* ---- init, wrap_model ---------------------------------------------------------------------------- */

typedef struct YokeContext YokeContext; /* the backend's, per rank */
typedef struct YokeWrapped YokeWrapped; /* the backend's view of one model */

/* All that it points to lives until destroy returned. */
typedef struct YokeInitArgs {
  YokeHeader header;
  const YokePlan* plan; /* as plan left it, complete */
  const YokeOption* options;
  uint64_t num_options;
  const YokeHost* host;
} YokeInitArgs;

/* What the model costs this rank, in bytes. -1 = not known; of activation_bytes and axis_bytes 0 says that
 * too. */
typedef struct YokeWrapResult {
  YokeHeader header;
  YokeWrapped* model;
  /* For the whole run: */
  int64_t param_bytes;     /* master copies (shards), and copies in the compute dtype that stay */
  int64_t grad_bytes;      /* reduced gradients (shards) */
  int64_t optimizer_bytes; /* moments */
  /* At the peak of a step: */
  int64_t unsharded_bytes;  /* gathered parameters and gradients that are not reduced yet */
  int64_t activation_bytes; /* by those of the blocks */
  /* Payload that this rank passes to the collectives along each axis in a step, without scalars. */
  int64_t axis_bytes[YOKE_NUM_AXES];
} YokeWrapResult;

/* ---- step ---------------------------------------------------------------------------------------- */

typedef struct YokeBatch {
  YokeHeader header;
  const YokeMicroBatch* const* micros; /* of this data rank */
  uint64_t num_micros; /* at least 1, the same on all ranks */
  double token_weight; /* targets of the whole batch, over all data ranks; above 0 */
} YokeBatch;

enum { YOKE_STEP_FORWARD_ONLY = 1 }; /* evaluation: no gradient, no update, no change of state */

typedef struct YokeStepArgs {
  YokeHeader header;
  const YokeBatch* batch;
  int64_t step; /* 1 is the first update, then one more than the last update, or than the "step" that LOAD
                   brought. Of an evaluation: the last update */
  double lr;
  uint32_t flags;
  uint32_t reserved;
} YokeStepArgs;

/* The same on every rank. NaN = not known. */
typedef struct YokeStepResult {
  YokeHeader header;
  double loss_sum;    /* over the whole batch, of all data ranks; loss = loss_sum / token_weight */
  double loss_weight; /* targets that were really summed, of all data ranks: token_weight, or the run ends */
  double grad_norm;   /* global 2-norm before clipping; +infinity if it is not finite */
} YokeStepResult;

/* ---- checkpoint ---------------------------------------------------------------------------------- */

enum { YOKE_CHECKPOINT_SAVE = 1, YOKE_CHECKPOINT_LOAD = 2, YOKE_CHECKPOINT_DESCRIBE = 3 };

/* A part of the state that this rank holds. Kinds: "param" (always the master copy), "exp_avg",
 * "exp_avg_sq", "momentum", and the scalar "step" (name "optimizer", ndim 0, int64). Master copies and
 * moments have the compute dtype, but fp32 where that has 16 bits. A backend may have kinds of its own,
 * [a-z0-9_]+ of at most 31 bytes, of a parameter; on LOAD of another backend's checkpoint visit answers
 * YOKE_NOT_FOUND for them, leaves the view alone, and the walk goes on.
 *
 * A piece is made of runs of the flat row-major tensor, one every `stride` elements: its element i is
 * element begin + (i / run) * stride + i % run of the tensor, i in [0, count). The last run may be short.
 * A flat range has run = count, stride = 0; so has a scalar, with begin 0 and count 1. So a rank with
 * columns [4, 8) of an [n, 16] matrix shows one piece: begin 4, count 4 * n, run 4, stride 16. All pieces
 * of a tensor that are not flat have the same stride, which divides its elements. The pieces with replica
 * 0, of all ranks, tile every tensor exactly once. What a rank holds besides, such as the whole parameters
 * of ZeRO 1, it may show with replica > 0: then the host compares the copies, and LOAD fills them. Pieces
 * without elements may be left out. */
typedef struct YokePiece {
  YokeHeader header;
  YokeString name; /* of the parameter */
  YokeString kind;
  const int64_t* shape; /* of the whole tensor */
  int32_t ndim;
  int32_t dtype;
  int64_t begin;
  int64_t count;
  int64_t run;            /* at least 1, unless count is 0 */
  int64_t stride;         /* at least run, unless the piece is flat */
  int64_t replica;        /* 0 = this rank's copy is the one to write */
  const YokeTensor* view; /* count elements, compact, valid for the call: readable on SAVE, to be filled
                             on LOAD, NULL on DESCRIBE */
} YokePiece;

typedef struct YokeCheckpointArgs {
  YokeHeader header;
  int32_t op;
  int32_t reserved;
  /* Called once per local piece, in the same order for every op. Its error ends the call, but for
   * YOKE_NOT_FOUND of a kind of the backend's own. */
  int32_t (*visit)(void* ctx, const YokePiece* piece, YokeError* err);
  void* visit_ctx;
} YokeCheckpointArgs;

/* ---- The table ----------------------------------------------------------------------------------- */

typedef struct ParallelBackend {
  YokeHeader header;
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t min_host_minor; /* the oldest host that this backend can work with */
  uint32_t reserved;

  /* Who it is and what it can do. Pure. */
  int32_t (*describe)(const YokeDescription** out, YokeError* err);

  /* Fills the unset fields of *plan and reports, through args->refuse, every reason to refuse it. Pure:
   * no device, no communication, the same answer on every rank. YOKE_INVALID_ARGUMENT if it refused. */
  int32_t (*plan)(const YokePlanArgs* args, YokePlan* plan, YokeError* err);

  /* Makes the context of this rank. Collective. */
  int32_t (*init)(const YokeInitArgs* args, YokeContext** out, YokeError* err);

  /* Takes a model: allocates and initialises its parameters (init_param) and optimizer state. model
   * lives until destroy_model returned. Collective. */
  int32_t (*wrap_model)(YokeContext* context, const YokeModel* model, YokeWrapResult* out, YokeError* err);

  /* One optimizer update over all micro-batches of the batch: forward, backward, reduce, clip, update;
   * or, with YOKE_STEP_FORWARD_ONLY, only the loss. Collective. */
  int32_t (*step)(YokeWrapped* model, const YokeStepArgs* args, YokeStepResult* out, YokeError* err);

  /* Walks over the local pieces of state. The caller does all files. SAVE and LOAD are collective. */
  int32_t (*checkpoint)(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err);

  /* Local, cannot fail. NULL or a pointer to NULL is fine; the pointer becomes NULL. Models first. */
  void (*destroy_model)(YokeWrapped** model);
  void (*destroy)(YokeContext** context);
} ParallelBackend;

/* The only exported symbol. Returns a constant table that lives as long as the process, or NULL and a
 * reason in *err. Pure: no thread, no device, no environment, no allocation; callable from any thread,
 * any number of times. host_minor: the minor version of the host. A newer minor than ours is no reason
 * to refuse. The host takes the table if abi_major is 1, all functions are there and min_host_minor is
 * not above its own minor. */
#define YOKE_ENTRY_SYMBOL "parallel_backend_entry_v1"
typedef const ParallelBackend* (*YokeEntry)(uint32_t host_minor, YokeError* err);
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err);

#ifdef __cplusplus
}
#endif

#endif /* YOKE_PARALLEL_BACKEND_H_ */
