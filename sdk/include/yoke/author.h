/* What a backend in C needs besides the contract: errors, refusals, tensors, the walk over the blocks,
 * and the whole state of a replica in flat arrays. C99 or C++, one file, needs libm. Everything here is a
 * convenience over yoke/parallel_backend.h: plain loops, no thread, no communication. Take what suits. */
#ifndef YOKE_AUTHOR_H_
#define YOKE_AUTHOR_H_

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yoke/parallel_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors: a code and a sentence --------------------------------------------------------------- */

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

/* Makes *result zero but for its header, which is what a failed call leaves of it. Does nothing if it is
 * NULL or of another kind. */
static inline void yoke_clear(YokeHeader* result, uint32_t id, size_t known) {
  size_t size;
  if (result == NULL || result->struct_id != id) return;
  size = result->struct_size < known ? result->struct_size : known;
  if (size > sizeof *result) memset(result + 1, 0, size - sizeof *result);
}
#define YOKE_CLEAR(result, id) yoke_clear((YokeHeader*)(void*)(result), (id), sizeof *(result))

/* ---- Plan: fill what is unset, refuse what cannot be done; each returns the number of refusals ---- */

static inline YokeString yoke_string(const char* text) {
  YokeString s;
  s.data = text;
  s.size = strlen(text);
  return s;
}

static inline int yoke_refuse(const YokePlanArgs* args, const char* key, const char* given, const char* allowed,
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
static inline int yoke_settle_degrees(const YokePlanArgs* args, YokePlan* plan, int axis, const char* hint) {
  static const char* const keys[] = {"pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"};
  char given[16], allowed[16];
  int a, n = 0;
  for (a = 0; a < YOKE_NUM_AXES; ++a) {
    const int32_t only = a == axis ? plan->world_size : 1;
    if (plan->degree[a] == 0) plan->degree[a] = only;
    if (plan->degree[a] == only) continue;
    snprintf(given, sizeof given, "%d", (int)plan->degree[a]);
    snprintf(allowed, sizeof allowed, "%d", (int)only);
    n += yoke_refuse(args, keys[a], given, allowed, hint);
  }
  return n;
}

/* fp32 or fp64 for everything, AdamW or SGD: what a YokeFlat can do. */
static inline int yoke_settle_flat(const YokePlanArgs* args, YokePlan* plan) {
  int n = 0;
  if (plan->param_dtype == 0) plan->param_dtype = YOKE_F32;
  if (plan->reduce_dtype == 0) plan->reduce_dtype = plan->param_dtype;
  if (plan->param_dtype != YOKE_F32 && plan->param_dtype != YOKE_F64)
    n += yoke_refuse(args, "precision.param", plan->param_dtype == YOKE_BF16 ? "bf16" : "another dtype",
                     "fp32 | fp64", "set it to \"fp32\"");
  if (plan->reduce_dtype != plan->param_dtype)
    n += yoke_refuse(args, "precision.reduce", "another dtype", "precision.param's", "remove it");
  if (plan->optimizer->kind != YOKE_ADAMW && plan->optimizer->kind != YOKE_SGD)
    n += yoke_refuse(args, "train.optimizer", "another one", "adamw | sgd", "set it to \"adamw\"");
  return n;
}

/* ---- Tensors ------------------------------------------------------------------------------------- */

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

/* ---- Communication ------------------------------------------------------------------------------- */

/* The ranks along some axes (bits). With one rank it is empty, and its operations do nothing. */
typedef struct YokeRanks {
  const YokeCollectives* service;
  YokeComm* comm;
} YokeRanks;

/* Collective over the world. */
static inline int32_t yoke_connect(const YokeHost* host, uint32_t axes, const char* purpose, YokeRanks* out,
                                   YokeError* err) {
  out->comm = NULL;
  out->service = NULL;
  if (host->world_size == 1) return YOKE_OK;
  out->service =
      (const YokeCollectives*)(const void*)host->get_service(host->ctx, "yoke.collectives/1", sizeof *out->service);
  if (out->service == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "the host has no service yoke.collectives/1");
  return out->service->comm(out->service->ctx, axes, purpose, &out->comm, err);
}

/* The sum over all of these ranks, in place; afterwards every one of them holds the same bits. */
static inline int32_t yoke_sum(const YokeRanks* ranks, void* data, int64_t count, int32_t dtype, YokeError* err) {
  const YokeTensor t = yoke_view(data, dtype, &count, 1);
  if (ranks->comm == NULL) return YOKE_OK;
  return ranks->service->all_reduce(ranks->comm, &t, YOKE_SUM, NULL, err);
}

/* ---- The walk over the blocks -------------------------------------------------------------------- */

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
  return host->check_cancel(host->ctx) ? yoke_fail(err, YOKE_CANCELLED, "the step was cancelled") : YOKE_OK;
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

/* Forward and, with on_grad_ready, backward of one micro-batch. Leaves nothing behind, also on failure. */
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

/* ---- A replica: all parameters, gradients and moments of a model, each one flat array ------------- */

/* Elements are fp32 or fp64, as the plan has it. Make it with yoke_flat_make, end it with yoke_flat_free. */
typedef struct YokeFlat {
  const YokeModel* model;
  const YokeOptimizer* optimizer;
  int64_t* begin;    /* per parameter: its first element in every array; trainable ones first */
  int64_t size;      /* elements of all parameters */
  int64_t trainable; /* elements of the trainable ones: the length of grad and moments */
  void *value, *grad, *moment[2];
  const char* kind[2]; /* of the moments: exp_avg, exp_avg_sq | momentum | none */
  int64_t step;        /* of the last update */
  int64_t bound;       /* parameters bound so far */
  YokeBlockState* blocks;
  int32_t dtype;
  int32_t reserved;
} YokeFlat;

static inline void* yoke_flat_at(const YokeFlat* f, void* array, int64_t i) {
  return (char*)array + i * yoke_item_size(f->dtype);
}

static inline void yoke_flat_free(YokeFlat* f) {
  while (f->bound > 0) f->model->bind_param(f->model->ctx, --f->bound, NULL, NULL);
  free(f->value);
  free(f->blocks);
  free(f->begin);
  memset(f, 0, sizeof *f);
}

/* The host gives the initial values as fp32, whatever the dtype, in ranges of any size. */
static inline int32_t yoke_flat_fill(YokeFlat* f, int64_t i, YokeError* err) {
  const YokeParameter* p = f->model->summary->params[i];
  const int64_t n = yoke_count(p);
  float part[1024];
  int64_t done, k;
  for (done = 0; done < n; done += 1024) {
    const int64_t count = n - done < 1024 ? n - done : 1024;
    YOKE_TRY(f->model->init_param(f->model->ctx, i, done, count, part, err));
    for (k = 0; k < count; ++k) yoke_set(f->value, f->dtype, f->begin[i] + done + k, part[k]);
  }
  return YOKE_OK;
}

static inline int32_t yoke_flat_bind(YokeFlat* f, int64_t i, YokeError* err) {
  const YokeParameter* p = f->model->summary->params[i];
  const YokeTensor t = yoke_view(yoke_flat_at(f, f->value, f->begin[i]), p->dtype, p->shape, p->ndim);
  if (p->dtype != f->dtype)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "%s has not the plan's dtype", p->name.data);
  YOKE_TRY(yoke_flat_fill(f, i, err));
  YOKE_TRY(f->model->bind_param(f->model->ctx, i, &t, err));
  f->bound = i + 1;
  return YOKE_OK;
}

/* All memory of the run: value | grad | moment 0 | moment 1 in one piece. */
static inline int32_t yoke_flat_allocate(YokeFlat* f, YokeError* err) {
  const YokeModelSummary* s = f->model->summary;
  int32_t trainable;
  uint64_t i;
  f->begin = (int64_t*)calloc(s->num_params + 1, sizeof *f->begin);
  f->blocks = (YokeBlockState*)calloc(s->num_blocks + 1, sizeof *f->blocks);
  for (trainable = 1; trainable >= 0 && f->begin != NULL; --trainable) {
    for (i = 0; i < s->num_params; ++i) {
      if ((s->params[i]->trainable != 0) != trainable) continue;
      f->begin[i] = f->size;
      f->size += yoke_count(s->params[i]);
    }
    if (trainable) f->trainable = f->size;
  }
  f->value = calloc((size_t)(f->size + 3 * f->trainable) + 1, (size_t)yoke_item_size(f->dtype));
  if (f->begin == NULL || f->blocks == NULL || f->value == NULL)
    return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  f->grad = yoke_flat_at(f, f->value, f->size);
  f->moment[0] = yoke_flat_at(f, f->grad, f->trainable);
  f->moment[1] = yoke_flat_at(f, f->moment[0], f->trainable);
  return YOKE_OK;
}

/* Allocates, initialises and binds every parameter. *f need not be initialised; after a failure it is
 * empty. model and plan outlive it. */
static inline int32_t yoke_flat_make(YokeFlat* f, const YokeModel* model, const YokePlan* plan, YokeError* err) {
  int32_t code;
  int64_t i;
  memset(f, 0, sizeof *f);
  f->model = model;
  f->optimizer = plan->optimizer;
  f->dtype = plan->param_dtype;
  if (f->optimizer->kind == YOKE_ADAMW) {
    f->kind[0] = "exp_avg";
    f->kind[1] = "exp_avg_sq";
  } else if (f->optimizer->momentum != 0) {
    f->kind[0] = "momentum";
  }
  code = yoke_flat_allocate(f, err);
  for (i = 0; i < (int64_t)model->summary->num_params && code == YOKE_OK; ++i) code = yoke_flat_bind(f, i, err);
  if (code != YOKE_OK) yoke_flat_free(f);
  return code;
}

/* The memory that a wrap_model has to tell of. */
static inline void yoke_flat_bytes(const YokeFlat* f, YokeWrapResult* out) {
  const int64_t item = yoke_item_size(f->dtype);
  out->param_bytes = f->size * item;
  out->grad_bytes = f->trainable * item;
  out->optimizer_bytes = out->grad_bytes * ((f->kind[0] != NULL) + (f->kind[1] != NULL));
}

/* on_grad_ready with ctx = the YokeFlat: every micro-batch, and every block that uses a tied parameter,
 * adds its share. */
static inline int32_t yoke_flat_add_gradient(void* ctx, int64_t i, const YokeTensor* grad, YokeError* err) {
  YokeFlat* f = (YokeFlat*)ctx;
  const char* share = (const char*)grad->data + grad->byte_offset;
  const YokeParameter* p;
  int64_t k, n;
  if (i < 0 || i >= (int64_t)f->model->summary->num_params)
    return yoke_fail(err, YOKE_INTERNAL, "a gradient of parameter %d, which does not exist", (int)i);
  p = f->model->summary->params[i];
  if (!p->trainable || YOKE_DTYPE_OF(grad->dtype) != f->dtype)
    return yoke_fail(err, YOKE_INTERNAL, "a gradient that does not fit %s", p->name.data);
  for (k = 0, n = yoke_count(p); k < n; ++k) {
    const int64_t at = f->begin[i] + k;
    yoke_set(f->grad, f->dtype, at, yoke_get(f->grad, f->dtype, at) + yoke_get(share, f->dtype, k));
  }
  return YOKE_OK;
}

/* All micro-batches of a batch: the sum of the losses and of the targets into sums[2] and, unless the step
 * is forward only, gradients of the mean over batch->token_weight into f->grad. */
static inline int32_t yoke_flat_run(YokeFlat* f, const YokeStepArgs* args, const YokeHost* host, double* sums,
                                    YokeError* err) {
  const int train = !(args->flags & YOKE_STEP_FORWARD_ONLY);
  YokeWalk walk;
  uint64_t m;
  memset(&walk, 0, sizeof walk);
  walk.model = f->model;
  walk.host = host;
  walk.on_grad_ready = train ? yoke_flat_add_gradient : NULL;
  walk.on_grad_ctx = f;
  walk.loss_grad = 1 / args->batch->token_weight;
  walk.blocks = f->blocks;
  if (train) memset(f->grad, 0, (size_t)(f->trainable * yoke_item_size(f->dtype)));
  for (m = 0; m < args->batch->num_micros; ++m) YOKE_TRY(yoke_walk(&walk, args->batch->micros[m], err));
  sums[0] = walk.loss_sum;
  sums[1] = walk.loss_weight;
  return YOKE_OK;
}

/* The host's weight of a batch is the number of targets that all ranks have summed. */
static inline int32_t yoke_check_weight(const YokeBatch* batch, double summed, YokeError* err) {
  if (fabs(summed - batch->token_weight) <= 1e-9 * summed) return YOKE_OK;
  return yoke_fail(err, YOKE_INVALID_ARGUMENT, "the batch claims %.17g targets, its losses have %.17g",
                   batch->token_weight, summed);
}

/* The norm of f->grad; +infinity if it is not finite. */
static inline double yoke_flat_norm(const YokeFlat* f) {
  double squares = 0;
  int64_t k;
  for (k = 0; k < f->trainable; ++k) squares += pow(yoke_get(f->grad, f->dtype, k), 2);
  return isfinite(squares) ? sqrt(squares) : INFINITY;
}

/* The formulas at YokeOptimizer in the contract, for one parameter; scale: of its gradient. */
static inline void yoke_flat_update_param(YokeFlat* f, int64_t i, double scale, double lr) {
  const YokeOptimizer* o = f->optimizer;
  const YokeParameter* p = f->model->summary->params[i];
  const double keep = p->decay ? 1 - lr * o->weight_decay : 1;
  const double correct1 = 1 - pow(o->beta1, (double)f->step);
  const double correct2 = sqrt(1 - pow(o->beta2, (double)f->step));
  int64_t k = f->begin[i], end = k + yoke_count(p);
  for (; k < end; ++k) {
    const double g = scale * yoke_get(f->grad, f->dtype, k);
    double change = g;
    if (o->kind == YOKE_ADAMW) {
      const double m = o->beta1 * yoke_get(f->moment[0], f->dtype, k) + (1 - o->beta1) * g;
      const double v = o->beta2 * yoke_get(f->moment[1], f->dtype, k) + (1 - o->beta2) * g * g;
      yoke_set(f->moment[0], f->dtype, k, m);
      yoke_set(f->moment[1], f->dtype, k, v);
      change = m / correct1 / (sqrt(v) / correct2 + o->eps);
    } else if (o->momentum != 0) {
      change = o->momentum * yoke_get(f->moment[0], f->dtype, k) + g;
      yoke_set(f->moment[0], f->dtype, k, change);
    }
    yoke_set(f->value, f->dtype, k, keep * yoke_get(f->value, f->dtype, k) - lr * change);
  }
}

/* Clips and updates; nothing if the norm is not finite. */
static inline void yoke_flat_update(YokeFlat* f, int64_t step, double lr, double norm) {
  const double clip = f->optimizer->clip;
  const double scale = clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
  uint64_t i;
  if (!isfinite(norm)) return;
  f->step = step;
  for (i = 0; i < f->model->summary->num_params; ++i)
    if (f->model->summary->params[i]->trainable) yoke_flat_update_param(f, (int64_t)i, scale, lr);
}

static inline int32_t yoke_flat_show(const YokeCheckpointArgs* args, YokePiece* piece, const char* kind,
                                     void* data, YokeError* err) {
  const YokeTensor t = yoke_view(data, piece->dtype, &piece->count, 1);
  piece->kind = yoke_string(kind);
  piece->view = args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &t;
  return args->visit(args->visit_ctx, piece, err);
}

/* Shows every array, whole, to the visitor of a checkpoint. replica: 0 = this rank's copy is written. */
static inline int32_t yoke_flat_visit(YokeFlat* f, const YokeCheckpointArgs* args, int64_t replica, YokeError* err) {
  YokePiece piece;
  uint64_t i;
  int m;
  memset(&piece, 0, sizeof piece);
  piece.header.struct_size = (uint32_t)sizeof piece;
  piece.header.struct_id = YOKE_ID_PIECE;
  piece.replica = replica;
  for (i = 0; i < f->model->summary->num_params; ++i) {
    const YokeParameter* p = f->model->summary->params[i];
    piece.name = p->name;
    piece.shape = p->shape;
    piece.ndim = p->ndim;
    piece.dtype = p->dtype;
    piece.count = piece.run = yoke_count(p);
    YOKE_TRY(yoke_flat_show(args, &piece, "param", yoke_flat_at(f, f->value, f->begin[i]), err));
    for (m = 0; m < 2 && f->kind[m] != NULL && p->trainable; ++m)
      YOKE_TRY(yoke_flat_show(args, &piece, f->kind[m], yoke_flat_at(f, f->moment[m], f->begin[i]), err));
  }
  piece.name = yoke_string("optimizer");
  piece.ndim = 0;
  piece.dtype = YOKE_I64;
  piece.count = piece.run = 1;
  return yoke_flat_show(args, &piece, "step", &f->step, err);
}

/* ---- The entry ----------------------------------------------------------------------------------- */

/* Exports the functions describe, plan, init, wrap_model, step, checkpoint, destroy_model and destroy of
 * this file as a backend. */
#define YOKE_EXPORT_SLOTS                                                                     \
  const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {     \
    static const ParallelBackend table = {YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND),      \
                                          YOKE_ABI_MAJOR, YOKE_ABI_MINOR, 0, 0, describe,     \
                                          plan, init, wrap_model, step, checkpoint,           \
                                          destroy_model, destroy};                            \
    (void)host_minor; /* any host of this major version will do */                            \
    (void)err;                                                                                \
    return &table;                                                                            \
  }

#ifdef __cplusplus
}
#endif

#endif /* YOKE_AUTHOR_H_ */
