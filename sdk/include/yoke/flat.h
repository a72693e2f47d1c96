/* The state of a backend whose ranks are replicas: all parameters, gradients and moments of a
 * model, each one flat array of fp32 or fp64 on the CPU; AdamW and SGD in plain loops. C99 or C++,
 * needs libm. */
#ifndef YOKE_FLAT_H_
#define YOKE_FLAT_H_

#include <math.h>

#include "yoke/author.h"
#include "yoke/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills and refuses what a YokeFlat cannot do: fp32 or fp64 for everything, AdamW or SGD. Returns
 * the number of refusals. */
static inline int yoke_resolve_flat(const YokePlanArgs* args, YokePlan* plan) {
  int n = 0;
  if (plan->param_dtype == 0) plan->param_dtype = YOKE_F32;
  if (plan->reduce_dtype == 0) plan->reduce_dtype = plan->param_dtype;
  if (plan->param_dtype != YOKE_F32 && plan->param_dtype != YOKE_F64)
    n += yoke_refuse(args,
                     "precision.param",
                     plan->param_dtype == YOKE_BF16 ? "bf16" : "another dtype",
                     "fp32 | fp64",
                     "set it to \"fp32\"");
  if (plan->reduce_dtype != plan->param_dtype)
    n += yoke_refuse(args, "precision.reduce", "another dtype", "precision.param's", "remove it");
  if (plan->optimizer->kind != YOKE_ADAMW && plan->optimizer->kind != YOKE_SGD)
    n += yoke_refuse(args, "train.optimizer", "another one", "adamw | sgd", "set it to \"adamw\"");
  return n;
}

/* ---- Memory
 * -------------------------------------------------------------------------------------- */

/* Elements have the plan's dtype. Make it with yoke_flat_make, end it with yoke_flat_free. */
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
  const YokeTensor t =
      yoke_view(yoke_flat_at(f, f->value, f->begin[i]), p->dtype, p->shape, p->ndim);
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

/* Allocates, initialises and binds every parameter. *f need not be initialised; after a failure it
 * is empty. model and plan outlive it. */
static inline int32_t yoke_flat_make(YokeFlat* f,
                                     const YokeModel* model,
                                     const YokePlan* plan,
                                     YokeError* err) {
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
  for (i = 0; i < (int64_t)model->summary->num_params && code == YOKE_OK; ++i)
    code = yoke_flat_bind(f, i, err);
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

/* ---- A step
 * -------------------------------------------------------------------------------------- */

/* on_grad_ready with ctx = the YokeFlat: every micro-batch, and every block that uses a tied
 * parameter, adds its share. */
static inline int32_t yoke_flat_add_gradient(void* ctx,
                                             int64_t i,
                                             const YokeTensor* grad,
                                             YokeError* err) {
  YokeFlat* f = (YokeFlat*)ctx;
  const char* share = (const char*)grad->data + grad->byte_offset;
  const YokeParameter* p;
  int64_t k, n;
  if (i < 0 || i >= (int64_t)f->model->summary->num_params)
    return yoke_fail(
        err, YOKE_INTERNAL, "a gradient of parameter %d, which does not exist", (int)i);
  p = f->model->summary->params[i];
  if (!p->trainable || YOKE_DTYPE_OF(grad->dtype) != f->dtype)
    return yoke_fail(err, YOKE_INTERNAL, "a gradient that does not fit %s", p->name.data);
  for (k = 0, n = yoke_count(p); k < n; ++k) {
    const int64_t at = f->begin[i] + k;
    yoke_set(f->grad, f->dtype, at, yoke_get(f->grad, f->dtype, at) + yoke_get(share, f->dtype, k));
  }
  return YOKE_OK;
}

/* All micro-batches of a batch: the sum of the losses and of the targets into sums[2] and, unless
 * the step is forward only, gradients of the mean over batch->token_weight into f->grad. */
static inline int32_t yoke_flat_run(
    YokeFlat* f, const YokeStepArgs* args, const YokeHost* host, double* sums, YokeError* err) {
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
  for (m = 0; m < args->batch->num_micros; ++m)
    YOKE_TRY(yoke_walk(&walk, args->batch->micros[m], err));
  sums[0] = walk.loss_sum;
  sums[1] = walk.loss_weight;
  return YOKE_OK;
}

/* The host's weight of a batch is the number of targets that all ranks have summed. */
static inline int32_t yoke_check_weight(const YokeBatch* batch, double summed, YokeError* err) {
  if (fabs(summed - batch->token_weight) <= 1e-9 * summed) return YOKE_OK;
  return yoke_fail(err,
                   YOKE_INVALID_ARGUMENT,
                   "the batch claims %.17g targets, its losses have %.17g",
                   batch->token_weight,
                   summed);
}

/* The norm of f->grad; +infinity if it is not finite. */
static inline double yoke_flat_norm(const YokeFlat* f) {
  double squares = 0;
  int64_t k;
  for (k = 0; k < f->trainable; ++k) squares += pow(yoke_get(f->grad, f->dtype, k), 2);
  return yoke_gradient_norm(squares);
}

/* Updates parameter i by AdamW. scale: clip factor of the gradient. */
static inline void yoke_flat_adamw(YokeFlat* f, int64_t i, double scale, double lr) {
  const YokeParameter* p = f->model->summary->params[i];
  const YokeAdamW step = yoke_adamw_step(f->optimizer, f->step, lr, p->decay);
  int64_t k = f->begin[i], end = k + yoke_count(p);
  for (; k < end; ++k) {
    const double gradient = scale * yoke_get(f->grad, f->dtype, k);
    double m = yoke_get(f->moment[0], f->dtype, k), v = yoke_get(f->moment[1], f->dtype, k);
    const double value = yoke_adamw(&step, yoke_get(f->value, f->dtype, k), gradient, &m, &v);
    yoke_set(f->moment[0], f->dtype, k, m);
    yoke_set(f->moment[1], f->dtype, k, v);
    yoke_set(f->value, f->dtype, k, value);
  }
}

/* Updates parameter i by SGD. The buffer of the momentum is not touched if there is no momentum. */
static inline void yoke_flat_sgd(YokeFlat* f, int64_t i, double scale, double lr) {
  const YokeParameter* p = f->model->summary->params[i];
  const YokeSgd step = yoke_sgd_step(f->optimizer, lr, p->decay);
  int64_t k = f->begin[i], end = k + yoke_count(p);
  for (; k < end; ++k) {
    const double gradient = scale * yoke_get(f->grad, f->dtype, k);
    double b = step.momentum != 0 ? yoke_get(f->moment[0], f->dtype, k) : 0;
    const double value = yoke_sgd(&step, yoke_get(f->value, f->dtype, k), gradient, &b);
    if (step.momentum != 0) yoke_set(f->moment[0], f->dtype, k, b);
    yoke_set(f->value, f->dtype, k, value);
  }
}

/* Clips and updates; nothing if the norm is not finite. */
static inline void yoke_flat_update(YokeFlat* f, int64_t step, double lr, double norm) {
  const double scale = yoke_clip_scale(f->optimizer->clip, norm);
  uint64_t i;
  if (!isfinite(norm)) return;
  f->step = step;
  for (i = 0; i < f->model->summary->num_params; ++i) {
    if (!f->model->summary->params[i]->trainable) continue;
    if (f->optimizer->kind == YOKE_ADAMW)
      yoke_flat_adamw(f, (int64_t)i, scale, lr);
    else
      yoke_flat_sgd(f, (int64_t)i, scale, lr);
  }
}

/* ---- Checkpoint
 * ---------------------------------------------------------------------------------- */

static inline int32_t yoke_flat_show(const YokeCheckpointArgs* args,
                                     YokePiece* piece,
                                     const char* kind,
                                     void* data,
                                     YokeError* err) {
  const YokeTensor t = yoke_view(data, piece->dtype, &piece->count, 1);
  piece->kind = yoke_string(kind);
  piece->view = args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &t;
  return args->visit(args->visit_ctx, piece, err);
}

/* Shows every array, whole, to the visitor of a checkpoint. replica: 0 = this rank's copy is
 * written. */
static inline int32_t yoke_flat_visit(YokeFlat* f,
                                      const YokeCheckpointArgs* args,
                                      int64_t replica,
                                      YokeError* err) {
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
      YOKE_TRY(yoke_flat_show(
          args, &piece, f->kind[m], yoke_flat_at(f, f->moment[m], f->begin[i]), err));
  }
  piece.name = yoke_string("optimizer");
  piece.ndim = 0;
  piece.dtype = YOKE_I64;
  piece.count = piece.run = 1;
  return yoke_flat_show(args, &piece, "step", &f->step, err);
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_FLAT_H_ */
