/* What a backend in C needs besides the contract: errors, refusals, tensors, communication, the
 * walk over the blocks, the entry. C99 or C++. Everything here is a convenience over
 * yoke/parallel_backend.h: take what suits. */
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

/* ---- Errors: a code and a sentence
 * --------------------------------------------------------------- */

/* Fills *err, which may be NULL, as printf does, and returns the code. */
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

/* Whoever failed has filled *err: hand the code on. */
#define YOKE_TRY(call)                  \
  do {                                  \
    const int32_t code_ = (call);       \
    if (code_ != YOKE_OK) return code_; \
  } while (0)

/* Returns from a slot unless it was given a struct of the right kind. */
#define YOKE_REQUIRE(pointer, id)                                   \
  YOKE_TRY((pointer) != NULL && (pointer)->header.struct_id == (id) \
               ? YOKE_OK                                            \
               : yoke_fail(err, YOKE_INVALID_ARGUMENT, "%s is NULL or not a %s", #pointer, #id))

/* Makes *result zero but for its header, which is what a failed call leaves of it. Does nothing if
 * it is NULL or of another kind. */
static inline void yoke_clear(YokeHeader* result, uint32_t id, size_t known) {
  size_t size;
  if (result == NULL || result->struct_id != id) return;
  size = result->struct_size < known ? result->struct_size : known;
  if (size > sizeof *result) memset(result + 1, 0, size - sizeof *result);
}
#define YOKE_CLEAR(result, id) yoke_clear((YokeHeader*)(void*)(result), (id), sizeof *(result))

/* ---- Plan: fill what is unset, refuse what cannot be done; each returns the number of refusals
 * ---- */

static inline YokeString yoke_string(const char* text) {
  YokeString s;
  s.data = text;
  s.size = strlen(text);
  return s;
}

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

/* All ranks on one axis, every other degree 1. */
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

/* ---- Tensors
 * ------------------------------------------------------------------------------------- */

static inline int64_t yoke_count(const YokeParameter* p) {
  int64_t n = 1;
  int32_t d;
  for (d = 0; d < p->ndim; ++d) n *= p->shape[d];
  return n;
}

static inline int64_t yoke_item_size(int32_t dtype) {
  return (dtype & 0xff) / 8;
}

/* A compact tensor over memory of the host's or ours on the CPU; `shape` must outlive it. */
static inline YokeTensor yoke_view(void* data, int32_t dtype, const int64_t* shape, int32_t ndim) {
  YokeTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.type = YOKE_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)(dtype >> 8);
  t.dtype.bits = (uint8_t)(dtype & 0xff);
  t.dtype.lanes = 1;
  t.shape = (int64_t*)(uintptr_t)shape; /* DLPack knows no const */
  return t;
}

/* Element i of an array of fp32 or fp64. */
static inline double yoke_get(const void* array, int32_t dtype, int64_t i) {
  return dtype == YOKE_F64 ? ((const double*)array)[i] : ((const float*)array)[i];
}

static inline void yoke_set(void* array, int32_t dtype, int64_t i, double value) {
  if (dtype == YOKE_F64) {
    ((double*)array)[i] = value;
  } else {
    ((float*)array)[i] = (float)value;
  }
}

static inline void yoke_release(YokeManagedTensor** t) {
  if (*t != NULL && (*t)->deleter != NULL) (*t)->deleter(*t);
  *t = NULL;
}

/* ---- Communication
 * ------------------------------------------------------------------------------- */

/* The ranks along some axes (bits). With one rank it is empty, and its operations do nothing. */
typedef struct YokeRanks {
  const YokeCollectives* service;
  YokeComm* comm;
} YokeRanks;

/* Collective over the world. */
static inline int32_t yoke_connect(
    const YokeHost* host, uint32_t axes, const char* purpose, YokeRanks* out, YokeError* err) {
  out->comm = NULL;
  out->service = NULL;
  if (host->world_size == 1) return YOKE_OK;
  out->service = (const YokeCollectives*)(const void*)host->get_service(
      host->ctx, "yoke.collectives/1", sizeof *out->service);
  if (out->service == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "the host has no service yoke.collectives/1");
  return out->service->comm(out->service->ctx, axes, purpose, &out->comm, err);
}

/* The sum over all of these ranks, in place; afterwards every one of them holds the same bits. */
static inline int32_t yoke_sum(
    const YokeRanks* ranks, void* data, int64_t count, int32_t dtype, YokeError* err) {
  const YokeTensor t = yoke_view(data, dtype, &count, 1);
  if (ranks->comm == NULL) return YOKE_OK;
  return ranks->service->all_reduce(ranks->comm, &t, YOKE_SUM, NULL, err);
}

/* ---- The walk over the blocks
 * -------------------------------------------------------------------- */

/* What a block left behind in the micro-batch under way. */
typedef struct YokeBlockState {
  void* saved;
  YokeManagedTensor* carry;
} YokeBlockState;

/* One micro-batch after the other through all blocks. */
typedef struct YokeWalk {
  const YokeModel* model;
  const YokeHost* host; /* for check_cancel */
  /* Where gradients go, see YokeBackwardArgs; NULL = no backward. */
  int32_t (*on_grad_ready)(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err);
  void* on_grad_ctx;
  double loss_grad;
  double loss_sum, loss_weight; /* each micro-batch adds to them */
  YokeBlockState* blocks;       /* summary->num_blocks of them, zero */
} YokeWalk;

static inline int32_t yoke_check_cancel(const YokeHost* host, YokeError* err) {
  return host->check_cancel(host->ctx) ? yoke_fail(err, YOKE_CANCELLED, "the step was cancelled")
                                       : YOKE_OK;
}

static inline int32_t yoke_walk_forward(YokeWalk* w, const YokeMicroBatch* micro, YokeError* err) {
  const uint64_t num_blocks = w->model->summary->num_blocks;
  uint64_t b;
  for (b = 0; b < num_blocks; ++b) {
    YokeForwardArgs args;
    YokeForwardResult out;
    memset(&args, 0, sizeof args);
    memset(&out, 0, sizeof out);
    args.header.struct_size = (uint32_t)sizeof args;
    args.header.struct_id = YOKE_ID_FORWARD_ARGS;
    out.header.struct_size = (uint32_t)sizeof out;
    out.header.struct_id = YOKE_ID_FORWARD_RESULT;
    args.block = b;
    args.micro = micro;
    args.carry_in = b > 0 ? &w->blocks[b - 1].carry->tensor : NULL;
    args.save = w->on_grad_ready != NULL;
    YOKE_TRY(yoke_check_cancel(w->host, err));
    YOKE_TRY(w->model->block_forward(w->model->ctx, &args, &out, err));
    w->blocks[b].carry = out.carry_out;
    w->blocks[b].saved = out.saved;
    w->loss_sum += out.loss_sum;
    w->loss_weight += out.loss_weight;
    if (!args.save && b > 0) yoke_release(&w->blocks[b - 1].carry);
  }
  return YOKE_OK;
}

static inline int32_t yoke_walk_backward(YokeWalk* w, YokeError* err) {
  YokeManagedTensor* grad_out = NULL; /* of the carry between two blocks */
  int32_t code = YOKE_OK;
  uint64_t b;
  for (b = w->model->summary->num_blocks; b-- > 0 && code == YOKE_OK;) {
    YokeBackwardArgs args;
    YokeManagedTensor* grad_in = NULL;
    memset(&args, 0, sizeof args);
    args.header.struct_size = (uint32_t)sizeof args;
    args.header.struct_id = YOKE_ID_BACKWARD_ARGS;
    args.block = b;
    args.saved = w->blocks[b].saved;
    args.grad_out = grad_out != NULL ? &grad_out->tensor : NULL;
    args.loss_grad = w->loss_grad;
    args.on_grad_ready = w->on_grad_ready;
    args.on_grad_ctx = w->on_grad_ctx;
    code = yoke_check_cancel(w->host, err);
    if (code != YOKE_OK) break;
    w->blocks[b].saved = NULL; /* consumed, also on failure */
    code = w->model->block_backward(w->model->ctx, &args, &grad_in, err);
    yoke_release(&grad_out);
    grad_out = grad_in;
  }
  yoke_release(&grad_out);
  return code;
}

/* Forward and, with on_grad_ready, backward of one micro-batch. Leaves nothing behind, also on
 * failure. */
static inline int32_t yoke_walk(YokeWalk* w, const YokeMicroBatch* micro, YokeError* err) {
  uint64_t b;
  int32_t code = yoke_walk_forward(w, micro, err);
  if (code == YOKE_OK && w->on_grad_ready != NULL) code = yoke_walk_backward(w, err);
  for (b = 0; b < w->model->summary->num_blocks; ++b) {
    if (w->blocks[b].saved != NULL) w->model->drop_saved(w->model->ctx, w->blocks[b].saved);
    w->blocks[b].saved = NULL;
    yoke_release(&w->blocks[b].carry);
  }
  return code;
}

/* ---- The entry
 * ----------------------------------------------------------------------------------- */

/* Exports the functions describe, plan, init, wrap_model, step, checkpoint, destroy_model and
 * destroy of this file as a backend. */
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
