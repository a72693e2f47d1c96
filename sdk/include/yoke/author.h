/* What a backend in C needs besides the contract: errors, plans, tensors, communication and the
 * exported entry. yoke/walk.h adds the walk over the blocks. C99 or C++; there is nothing to link.
 *
 * All of it is optional. These are small functions on top of yoke/parallel_backend.h; use those
 * that fit, and write the others yourself. A backend that uses them looks like this:
 *
 *   static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
 *     int refused = 0;
 *     YOKE_REQUIRE(args, YOKE_ID_PLAN_ARGS);
 *     YOKE_REQUIRE(plan, YOKE_ID_PLAN);
 *     refused += yoke_resolve_degrees(args, plan, YOKE_DP_REPLICATE, "remove it");
 *     return refused == 0 ? YOKE_OK : yoke_fail(err, YOKE_INVALID_ARGUMENT, "%d refused", refused);
 *   }
 *
 *   static int32_t step(YokeWrapped* w, const YokeStepArgs* args, YokeStepResult* out,
 *                       YokeError* err) {
 *     YokeWalk walk = {...};                                      // model, host, on_grad_ready
 *     uint64_t m;
 *     YOKE_CLEAR(out, YOKE_ID_STEP_RESULT);
 *     YOKE_REQUIRE(args, YOKE_ID_STEP_ARGS);
 *     for (m = 0; m < args->batch->num_micros; ++m)
 *       YOKE_TRY(yoke_walk(&walk, args->batch->micros[m], err));  // forward and backward
 *     YOKE_TRY(yoke_sum(&w->ranks, w->grads, w->count, YOKE_F32, err));
 *     ...                                                         // clip and update
 *   }
 *   ...                                                           // other functions
 *   YOKE_EXPORT_SLOTS
 *
 * sdk/examples/serial.c is such a backend in full. yoke/flat.h adds the state of a replica:
 * parameters, gradients, moments, updates and checkpoints. A slot is one of the functions of
 * ParallelBackend.
 *
 * Functions that can fail return YOKE_OK or an error code and fill *err, as in the contract. They
 * may be called from any thread unless a comment says otherwise. */
#ifndef YOKE_AUTHOR_H_
#define YOKE_AUTHOR_H_

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yoke/parallel_backend.h"
#include "yoke/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors: a code and a sentence ----
 *
 * A good text says what failed, which value was given, what is allowed and how to fix it. */

/* Fills *err with a code and a text that is formatted as by printf, and returns the code:
 *
 *   return yoke_fail(err, YOKE_UNIMPLEMENTED, "degree %d; allowed: 1", degree);
 *
 * err may be NULL. The text is truncated to the size of the caller's struct. Rank and step are set
 * to -1 (unknown). */
static inline int32_t yoke_fail(YokeError* err, int32_t code, const char* format, ...) {
  va_list args;
  if (err == NULL || err->header.struct_size <= offsetof(YokeError, text)) return code;
  err->code = code;
  err->rank = -1;
  err->step = -1;
  va_start(args, format);
  vsnprintf(err->text, err->header.struct_size - offsetof(YokeError, text), format, args);
  va_end(args);
  return code;
}

/* Evaluates a call that returns a code, and RETURNS FROM THE CALLER with that code unless it is
 * YOKE_OK. The callee has filled *err already. Use it only in functions that return an int32_t code
 * and have nothing to free at this point. */
#define YOKE_TRY(call)                  \
  do {                                  \
    const int32_t code_ = (call);       \
    if (code_ != YOKE_OK) return code_; \
  } while (0)

/* Checks an argument of a slot: unless `pointer` is a struct with the given YOKE_ID_..., fills *err
 * and RETURNS FROM THE CALLER with YOKE_INVALID_ARGUMENT. The caller must have a variable or
 * argument `YokeError* err` in scope, and return an int32_t code:
 *
 *   static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
 *     YOKE_REQUIRE(args, YOKE_ID_CHECKPOINT_ARGS);
 */
#define YOKE_REQUIRE(pointer, id)                                   \
  YOKE_TRY((pointer) != NULL && (pointer)->header.struct_id == (id) \
               ? YOKE_OK                                            \
               : yoke_fail(err, YOKE_INVALID_ARGUMENT, "%s is NULL or not a %s", #pointer, #id))

/* Returns whether a field of a plan is a dtype of this version of the contract, or unset (0). */
static inline int yoke_is_dtype_or_unset(int32_t dtype) {
  switch (dtype) {
    case 0:
    case YOKE_I32:
    case YOKE_I64:
    case YOKE_U8:
    case YOKE_F16:
    case YOKE_F32:
    case YOKE_F64:
    case YOKE_BF16:
      return 1;
    default:
      return 0;
  }
}

/* Refuse values that this version of the contract does not have, as it requires: dtypes of a plan,
 * flags of a step, the op of a checkpoint. Call them at the start of init, step and checkpoint.
 * They fail with YOKE_UNIMPLEMENTED. */
static inline int32_t yoke_check_dtypes(const YokePlan* plan, YokeError* err) {
  if (yoke_is_dtype_or_unset(plan->param_dtype) && yoke_is_dtype_or_unset(plan->reduce_dtype))
    return YOKE_OK;
  return yoke_fail(err,
                   YOKE_UNIMPLEMENTED,
                   "init: the plan has the dtypes 0x%x and 0x%x, one of which is unknown; allowed: "
                   "YOKE_I32 to YOKE_BF16",
                   (unsigned)plan->param_dtype,
                   (unsigned)plan->reduce_dtype);
}
static inline int32_t yoke_check_flags(const YokeStepArgs* args, YokeError* err) {
  if ((args->flags & ~(uint32_t)YOKE_STEP_FORWARD_ONLY) == 0) return YOKE_OK;
  return yoke_fail(err,
                   YOKE_UNIMPLEMENTED,
                   "step: the flags are 0x%x; allowed: YOKE_STEP_FORWARD_ONLY",
                   (unsigned)args->flags);
}
static inline int32_t yoke_check_op(const YokeCheckpointArgs* args, YokeError* err) {
  if (args->op >= YOKE_CHECKPOINT_SAVE && args->op <= YOKE_CHECKPOINT_DESCRIBE) return YOKE_OK;
  return yoke_fail(err,
                   YOKE_UNIMPLEMENTED,
                   "checkpoint: the op is %d; allowed: YOKE_CHECKPOINT_SAVE to _DESCRIBE",
                   (int)args->op);
}

/* Sets *result to zero except for its header, as the contract requires of a call that fails. Writes
 * no more bytes than the struct has for either side. Does nothing if result is NULL or has a
 * different struct_id. Use the macro YOKE_CLEAR(result, id), at the start of a slot. */
static inline void yoke_clear(YokeHeader* result, uint32_t id, size_t known) {
  size_t size;
  if (result == NULL || result->struct_id != id) return;
  size = result->struct_size < known ? result->struct_size : known;
  if (size > sizeof *result) memset(result + 1, 0, size - sizeof *result);
}
#define YOKE_CLEAR(result, id) yoke_clear((YokeHeader*)(void*)(result), (id), sizeof *(result))

/* ---- Plan: fill unset fields, refuse what is not supported ----
 *
 * plan reports every refusal, not only the first one. These functions therefore return the number
 * of refusals, and plan fails at the end if the sum is not 0. */

/* Returns a YokeString over a C string, which it borrows. */
static inline YokeString yoke_string(const char* text) {
  YokeString s;
  s.data = text;
  s.size = strlen(text);
  return s;
}

/* Reports one refusal to the host, and returns 1, the number of refusals, for callers to add up.
 * key: full name of the key of the run file; given: the value there; allowed: what is accepted;
 * hint: what to write instead. The texts are borrowed for the call. */
static inline int yoke_refuse(const YokePlanArgs* args,
                              const char* key,
                              const char* given,
                              const char* allowed,
                              const char* hint) {
  YokeRefusal refusal;
  memset(&refusal, 0, sizeof refusal);
  refusal.header.struct_size = (uint32_t)sizeof refusal;
  refusal.header.struct_id = YOKE_ID_REFUSAL;
  refusal.key = yoke_string(key);
  refusal.given = yoke_string(given);
  refusal.allowed = yoke_string(allowed);
  refusal.hint = yoke_string(hint);
  args->refuse(args->refuse_ctx, &refusal);
  return 1;
}

/* For backends that parallelise along one axis only: puts all ranks on `axis` (YOKE_DP_REPLICATE
 * ...) and sets every other degree to 1, if these degrees are unset. Refuses every degree that is
 * set to any other value; `hint` says what to write instead. Returns the number of refusals. */
static inline int yoke_resolve_degrees(const YokePlanArgs* args,
                                       YokePlan* plan,
                                       int axis,
                                       const char* hint) {
  char given[16], allowed[16];
  int a, n = 0;
  for (a = 0; a < YOKE_NUM_AXES; ++a) {
    const int32_t only = a == axis ? plan->world_size : 1;
    if (plan->degree[a] == 0) plan->degree[a] = only;
    if (plan->degree[a] == only) continue;
    snprintf(given, sizeof given, "%d", (int)plan->degree[a]);
    snprintf(allowed, sizeof allowed, "%d", (int)only);
    n += yoke_refuse(args, yoke_degree_key(a), given, allowed, hint);
  }
  return n;
}

/* ---- Tensors ----
 *
 * Arrays of fp32 or fp64 numbers in CPU memory. Numbers are computed in double precision; yoke_get
 * widens and yoke_set rounds. */

/* Returns the number of elements of a parameter. */
static inline int64_t yoke_count(const YokeParameter* p) {
  int64_t n = 1;
  int32_t d;
  for (d = 0; d < p->ndim; ++d) n *= p->shape[d];
  return n;
}

/* Returns the size in bytes of one element of a dtype (YOKE_F32 ...). */
static inline int64_t yoke_item_size(int32_t dtype) {
  return (dtype & 0xff) / 8;
}

/* Returns a compact tensor over CPU memory at `data`, with ndim sizes at `shape`. It owns nothing:
 * the data and the sizes must outlive it. The sizes are not changed, although the field is not
 * const. */
static inline YokeTensor yoke_view(void* data, int32_t dtype, const int64_t* shape, int32_t ndim) {
  YokeTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.type = YOKE_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)(dtype >> 8);
  t.dtype.bits = (uint8_t)(dtype & 0xff);
  t.dtype.lanes = 1;
  t.shape = (int64_t*)(uintptr_t)shape; /* cast, because DLPack has no const */
  return t;
}

/* Returns element i of an array. dtype: YOKE_F64 or YOKE_F32, which is not checked. */
static inline double yoke_get(const void* array, int32_t dtype, int64_t i) {
  return dtype == YOKE_F64 ? ((const double*)array)[i] : ((const float*)array)[i];
}

/* Writes element i of an array, rounded to its dtype: YOKE_F64, or YOKE_F32. */
static inline void yoke_set(void* array, int32_t dtype, int64_t i, double value) {
  if (dtype == YOKE_F64) {
    ((double*)array)[i] = value;
  } else {
    ((float*)array)[i] = (float)value;
  }
}

/* Checks that a tensor of the host is of the version of DLPack that the contract uses. With any
 * other version only its deleter may be used. NULL is allowed. Fails with YOKE_UNIMPLEMENTED. */
static inline int32_t yoke_check_tensor(const YokeManagedTensor* t, YokeError* err) {
  if (t == NULL || t->dlpack_major == 1) return YOKE_OK;
  return yoke_fail(err,
                   YOKE_UNIMPLEMENTED,
                   "a block returned a tensor with dlpack_major %u; allowed: 1",
                   (unsigned)t->dlpack_major);
}

/* Calls the deleter of a tensor that the host made, and sets *t to NULL. *t may be NULL. */
static inline void yoke_release(YokeManagedTensor** t) {
  if (*t != NULL && (*t)->deleter != NULL) (*t)->deleter(*t);
  *t = NULL;
}

/* ---- Communication ----
 *
 * Only the sum has a function here, because a backend of replicas needs nothing else. Call the
 * other operations of YokeCollectives through YokeRanks.service, as sdk/examples/pipeline does;
 * those since version 1.1 only if YOKE_HAS reports them. */

/* A set of ranks for collectives. comm is NULL in a world of one rank; operations then do nothing.
 * It needs no destructor: communicators live until the context is destroyed. */
typedef struct YokeRanks {
  const YokeCollectives* service;
  YokeComm* comm;
} YokeRanks;

/* Sets *out to the ranks that differ from this one only on `axes`, a mask of YOKE_AXIS_BIT. purpose
 * keeps two sequences of operations apart, e.g. "reduce". Call it in init or wrap_model: it is
 * collective over the world. Fails with YOKE_FAILED_PRECONDITION if there are several ranks and the
 * host has no collectives. */
static inline int32_t yoke_connect(
    const YokeHost* host, uint32_t axes, const char* purpose, YokeRanks* out, YokeError* err) {
  out->comm = NULL;
  out->service = NULL;
  if (host->world_size == 1) return YOKE_OK;
#if YOKE_ABI_MINOR >= 1
  /* Hosts of version 1.0 have the table up to `send`. */
  out->service = (const YokeCollectives*)(const void*)host->get_service(
      host->ctx, "yoke.collectives/1", offsetof(YokeCollectives, send));
#else
  out->service = (const YokeCollectives*)(const void*)host->get_service(
      host->ctx, "yoke.collectives/1", sizeof *out->service);
#endif
  if (out->service == NULL)
    return yoke_fail(
        err,
        YOKE_FAILED_PRECONDITION,
        "more than one rank needs the service yoke.collectives/1, which this host does not have");
  return out->service->comm(out->service->ctx, axes, purpose, &out->comm, err);
}

/* Replaces `count` elements at `data`, in CPU memory, by their sums over the ranks, and waits.
 * Afterwards every rank has bit-identical values. Collective over the ranks. Fails with
 * YOKE_UNAVAILABLE if a peer is lost, YOKE_DEADLINE_EXCEEDED after the timeout of the run, or
 * YOKE_CANCELLED. */
static inline int32_t yoke_sum(
    const YokeRanks* ranks, void* data, int64_t count, int32_t dtype, YokeError* err) {
  const YokeTensor t = yoke_view(data, dtype, &count, 1);
  if (ranks->comm == NULL) return YOKE_OK;
  return ranks->service->all_reduce(ranks->comm, &t, YOKE_SUM, NULL, err);
}

/* ---- The entry ---- */

/* Defines the exported entry of the library, from functions of this file with the names describe,
 * plan, init, wrap_model, step, checkpoint, destroy_model and destroy. Write it once, at the end of
 * the file, without a semicolon. min_host_minor is 0: any host of this major version will do. */
#define YOKE_EXPORT_SLOTS                                                                 \
  const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) { \
    static const ParallelBackend table = {YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND),  \
                                          YOKE_ABI_MAJOR,                                 \
                                          YOKE_ABI_MINOR,                                 \
                                          0,                                              \
                                          0,                                              \
                                          describe,                                       \
                                          plan,                                           \
                                          init,                                           \
                                          wrap_model,                                     \
                                          step,                                           \
                                          checkpoint,                                     \
                                          destroy_model,                                  \
                                          destroy};                                       \
    (void)host_minor; /* any host of this major version will do */                        \
    (void)err;                                                                            \
    return &table;                                                                        \
  }

#ifdef __cplusplus
}
#endif

#endif /* YOKE_AUTHOR_H_ */
