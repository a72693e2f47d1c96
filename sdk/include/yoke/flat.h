/* The state of a backend whose ranks are replicas: every rank holds the whole model. All parameters
 * form one flat array of fp32 or fp64 numbers on the CPU, and so do the gradients and the moments.
 * The optimizers run in a plain loop. C99 or C++, needs libm.
 *
 * Trainable parameters come first. A model of a trainable w with 6 elements, a frozen table t with
 * 4 and a trainable b with 2 looks like this; AdamW has two moments, SGD with momentum one, plain
 * SGD none:
 *
 *   index      0 1 2 3 4 5   6 7   8 9 10 11
 *   value     | w           | b   | t        |     size = 12
 *   grad      | of w        | of b|                trainable = 8
 *   moment 0  | of w        | of b|
 *   moment 1  | of w        | of b|
 *
 * A step of a backend with this state:
 *
 *   YOKE_TRY(yoke_flat_run(&flat, args, host, sums, err));                // gradients of this rank
 *   YOKE_TRY(yoke_sum(&ranks, sums, 2, YOKE_F64, err));                   // loss, targets
 *   YOKE_TRY(yoke_sum(&ranks, flat.grad, flat.trainable, flat.dtype, err));
 *   norm = yoke_flat_norm(&flat);
 *   yoke_flat_update(&flat, args->step, args->lr, norm);                  // clips and updates
 *
 * Every rank makes the same update from the same sums, so the replicas stay equal to the last bit
 * without any exchange of parameters. Sums of gradients and the arithmetic of an update are
 * computed in double precision and rounded to the dtype of the array when they are stored.
 *
 * sdk/examples/serial.c is a complete backend; yoke/flat.hpp is the same state as a C++ class. The
 * functions work on the memory of one rank and are not collective. One thread at a time. */
#ifndef YOKE_FLAT_H_
#define YOKE_FLAT_H_

#include "yoke/muon.h"
#include "yoke/optimizer.h"
#include "yoke/walk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plan ---- */

/* Fills the unset dtypes of a plan, and refuses what a YokeFlat cannot do: it computes and reduces
 * in one dtype, fp32 or fp64, and has the optimizers of yoke/optimizer.h. Returns the number of
 * refusals. */
static inline int yoke_resolve_flat(const YokePlanArgs* args, YokePlan* plan) {
  const char* given;
  int n = 0;
  /* Unlike yoke_default_reduce_dtype: there is one dtype for everything here. */
  if (plan->param_dtype == 0) plan->param_dtype = YOKE_F32;
  if (plan->reduce_dtype == 0) plan->reduce_dtype = plan->param_dtype;
  given = plan->param_dtype == YOKE_BF16  ? "bf16"
          : plan->param_dtype == YOKE_F16 ? "fp16"
                                          : "another dtype";
  if (plan->param_dtype != YOKE_F32 && plan->param_dtype != YOKE_F64)
    n += yoke_refuse(args, "precision.param", given, "fp32 | fp64", "set it to \"fp32\"");
  if (plan->reduce_dtype != plan->param_dtype)
    n += yoke_refuse(
        args, "precision.reduce", "another dtype", "the dtype of precision.param", "remove it");
  if (!yoke_is_adam(plan->optimizer->kind) && !yoke_is_lion(plan->optimizer->kind) &&
      !yoke_is_muon(plan->optimizer->kind) && plan->optimizer->kind != YOKE_SGD)
    n += yoke_refuse(args,
                     "train.optimizer",
                     "another optimizer",
                     "adamw | adam | lion | muon | sgd",
                     "set it to \"adamw\"");
  return n;
}

/* ---- Memory ---- */

/* The state of a rank, from yoke_flat_make to yoke_flat_free. `grad` may be changed between
 * yoke_flat_run and yoke_flat_update; a backend with an own update changes `value` and `step`. */
typedef struct YokeFlat {
  /* The model and the optimizer of the plan, both borrowed. */
  const YokeModel* model;
  const YokeOptimizer* optimizer;
  /* For each parameter, by its index in the model: the index of its first element in every array.
   * The example above has begin = {0, 8, 6}. */
  int64_t* begin;
  /* Number of elements of all parameters: the length of value. */
  int64_t size;
  /* Number of elements of the trainable parameters, which come first: the length of grad and of
   * each moment. */
  int64_t trainable;
  /* The arrays. They are one allocation, which starts at value. */
  void *value, *grad, *moment[2];
  /* Kinds of the moments in a checkpoint, as yoke_moments returns them: "exp_avg" and "exp_avg_sq"
   * for AdamW, "momentum" and NULL for SGD with momentum. NULL = there is no such moment. */
  const char* kind[2];
  /* Number of the last update, 0 = none yet. Saved and loaded with the checkpoint. */
  int64_t step;
  /* Number of parameters that are bound to the model: the ones with the lowest indices. */
  int64_t bound;
  /* Memory for yoke_walk, one entry for each block of the model. */
  YokeBlockState* blocks;
  /* Memory for yoke_muon. */
  double* matrix;
  /* Dtype of all arrays, YOKE_F32 or YOKE_F64. */
  int32_t dtype;
  int32_t reserved;
} YokeFlat;

/* Returns the address of element i of an array of f: value, grad or a moment. With i = f->begin[p]
 * it is the start of parameter p. */
static inline void* yoke_flat_at(const YokeFlat* f, void* array, int64_t i) {
  return (char*)array + i * yoke_item_size(f->dtype);
}

/* Ends the state of a rank: unbinds all parameters from the model, frees all memory, and leaves *f
 * empty. Call it in destroy_model, and when wrap_model fails later on. May be called again. */
static inline void yoke_flat_free(YokeFlat* f) {
  /* The blocks must not read memory that is gone. Unbinding cannot fail. */
  while (f->bound > 0) f->model->bind_param(f->model->ctx, --f->bound, NULL, NULL);
  free(f->value);
  free(f->matrix);
  free(f->blocks);
  free(f->begin);
  memset(f, 0, sizeof *f);
}

/* Writes the initial values of parameter i. The host provides them as fp32, whatever the dtype, in
 * ranges of any size; 1024 at a time need no allocation. Called by yoke_flat_make. */
static inline int32_t yoke_flat_fill(YokeFlat* f, int64_t i, YokeError* err) {
  const YokeParameter* p = f->model->summary->params[i];
  const int64_t n = yoke_count(p);
  /* A small buffer on the stack: fp32 numbers cannot be written into an fp64 array directly. */
  float part[1024];
  int64_t done, k;
  for (done = 0; done < n; done += 1024) {
    const int64_t count = n - done < 1024 ? n - done : 1024;
    YOKE_TRY(f->model->init_param(f->model->ctx, i, done, count, part, err));
    for (k = 0; k < count; ++k) yoke_set(f->value, f->dtype, f->begin[i] + done + k, part[k]);
  }
  return YOKE_OK;
}

/* Initialises parameter i and lets the blocks of the model read it from f->value. Called by
 * yoke_flat_make. Fails with YOKE_INVALID_ARGUMENT if the dtypes of model and plan differ. */
static inline int32_t yoke_flat_bind(YokeFlat* f, int64_t i, YokeError* err) {
  const YokeParameter* p = f->model->summary->params[i];
  const YokeTensor t =
      yoke_view(yoke_flat_at(f, f->value, f->begin[i]), p->dtype, p->shape, p->ndim);
  if (p->dtype != f->dtype)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "%s does not have the plan's dtype", p->name.data);
  YOKE_TRY(yoke_flat_fill(f, i, err));
  YOKE_TRY(f->model->bind_param(f->model->ctx, i, &t, err));
  f->bound = i + 1;
  return YOKE_OK;
}

/* Allocates all memory of the run, value | grad | moment 0 | moment 1 in one piece, set to zero,
 * and assigns each parameter its place in the arrays. Called by yoke_flat_make. Fails with
 * YOKE_RESOURCE_EXHAUSTED. */
static inline int32_t yoke_flat_allocate(YokeFlat* f, YokeError* err) {
  const YokeModelSummary* s = f->model->summary;
  int32_t trainable;
  uint64_t i;
  f->begin = (int64_t*)calloc(s->num_params + 1, sizeof *f->begin);
  f->blocks = (YokeBlockState*)calloc(s->num_blocks + 1, sizeof *f->blocks);
  f->matrix = (double*)calloc((size_t)yoke_muon_memory(f->optimizer, s) + 1, sizeof *f->matrix);
  /* Two passes over the parameters: first the trainable ones, then the frozen ones, so that
   * gradients and moments need no gaps. */
  for (trainable = 1; trainable >= 0 && f->begin != NULL; --trainable) {
    for (i = 0; i < s->num_params; ++i) {
      if ((s->params[i]->trainable != 0) != trainable) continue;
      f->begin[i] = f->size;
      f->size += yoke_count(s->params[i]);
    }
    if (trainable) f->trainable = f->size;
  }
  /* One more byte, so that a model without parameters does not look like a failure. */
  f->value = calloc((size_t)(f->size + 3 * f->trainable) + 1, (size_t)yoke_item_size(f->dtype));
  if (f->begin == NULL || f->blocks == NULL || f->matrix == NULL || f->value == NULL)
    return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  f->grad = yoke_flat_at(f, f->value, f->size);
  f->moment[0] = yoke_flat_at(f, f->grad, f->trainable);
  f->moment[1] = yoke_flat_at(f, f->moment[0], f->trainable);
  return YOKE_OK;
}

/* Creates the state for a model: allocates, initialises and binds every parameter. Call it in
 * wrap_model. *f need not be initialised. model, plan and plan->optimizer must outlive it. Fails:
 * YOKE_RESOURCE_EXHAUSTED, YOKE_INVALID_ARGUMENT, or a code of the model. *f is then empty. */
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
  yoke_moments(f->optimizer, f->kind);
  code = yoke_flat_allocate(f, err);
  for (i = 0; i < (int64_t)model->summary->num_params && code == YOKE_OK; ++i)
    code = yoke_flat_bind(f, i, err);
  /* Only the parameters below f->bound are unbound. */
  if (code != YOKE_OK) yoke_flat_free(f);
  return code;
}

/* Fills in the bytes that wrap_model reports: parameters, gradients and moments. All other fields
 * of *out stay as they are. Moments that a parameter does not have are allocated as well, but never
 * touched: they take no memory and are not counted. */
static inline void yoke_flat_bytes(const YokeFlat* f, YokeWrapResult* out) {
  const YokeModelSummary* s = f->model->summary;
  const int64_t item = yoke_item_size(f->dtype);
  const char* kinds[2];
  int64_t i;
  out->param_bytes = f->size * item;
  out->grad_bytes = f->trainable * item;
  out->optimizer_bytes = 0;
  for (i = 0; i < (int64_t)s->num_params; ++i)
    out->optimizer_bytes +=
        yoke_moments_of(f->optimizer, s, i, kinds) * yoke_count(s->params[i]) * item;
}

/* ---- A step ----
 *
 * Order of the calls: yoke_flat_run, then sums over the ranks, then yoke_flat_norm and
 * yoke_flat_update. An evaluation needs only the first of them. */

/* Adds the gradient of parameter i to f->grad. Serves as the callback on_grad_ready, with ctx = the
 * YokeFlat: each micro-batch, and each block that lists a tied parameter, adds its share. Fails
 * with YOKE_INTERNAL if there is no such trainable parameter, or the gradient has another dtype. A
 * backend that computes gradients differently, as by autograd, calls it directly. */
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
        err, YOKE_INTERNAL, "got a gradient of parameter %d, which does not exist", (int)i);
  /* The contract promises a compact gradient of the shape of the parameter. */
  p = f->model->summary->params[i];
  if (!p->trainable || YOKE_DTYPE_OF(grad->dtype) != f->dtype)
    return yoke_fail(err, YOKE_INTERNAL, "got a gradient that does not fit %s", p->name.data);
  for (k = 0, n = yoke_count(p); k < n; ++k) {
    const int64_t at = f->begin[i] + k;
    yoke_set(f->grad, f->dtype, at, yoke_get(f->grad, f->dtype, at) + yoke_get(share, f->dtype, k));
  }
  return YOKE_OK;
}

/* Runs all micro-batches of this rank. Writes the sum of their losses to sums[0] and the number of
 * their targets to sums[1]. Unless the step is forward only, replaces f->grad by this rank's share
 * of the gradient of the mean loss over the whole batch: the sum over the ranks is that gradient.
 * The caller makes these sums. Fails with YOKE_CANCELLED or the code of a block. */
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
  /* token_weight counts the targets of all ranks, so sums over ranks need no further division. */
  walk.loss_grad = 1 / args->batch->token_weight;
  walk.blocks = f->blocks;
  if (train) memset(f->grad, 0, (size_t)(f->trainable * yoke_item_size(f->dtype)));
  /* The gradients of all micro-batches add up in f->grad. */
  for (m = 0; m < args->batch->num_micros; ++m)
    YOKE_TRY(yoke_walk(&walk, args->batch->micros[m], err));
  sums[0] = walk.loss_sum;
  sums[1] = walk.loss_weight;
  return YOKE_OK;
}

/* Returns the 2-norm of f->grad, +infinity if it is not finite. Call it after the sum over the
 * ranks: then it is the global norm, the same on every rank. */
static inline double yoke_flat_norm(const YokeFlat* f) {
  /* One sum in the order of the elements, the same on every rank. */
  double squares = 0;
  int64_t k;
  for (k = 0; k < f->trainable; ++k) squares += pow(yoke_get(f->grad, f->dtype, k), 2);
  return yoke_gradient_norm(squares);
}

/* Updates parameter i as a matrix, by Muon. scale: clip factor of the gradient. Called by
 * yoke_flat_update. */
static inline void yoke_flat_update_matrix(YokeFlat* f, int64_t i, double scale, double lr) {
  const YokeMatrix matrix = {f->model->summary->params[i],
                             yoke_flat_at(f, f->value, f->begin[i]),
                             yoke_flat_at(f, f->moment[0], f->begin[i]),
                             yoke_flat_at(f, f->grad, f->begin[i]),
                             f->dtype,
                             f->dtype};
  yoke_muon(f->optimizer, lr, scale, &matrix, f->matrix);
}

/* Does the same for a parameter that is updated element by element. */
static inline void yoke_flat_update_param(YokeFlat* f, int64_t i, double scale, double lr) {
  const YokeParameter* p = f->model->summary->params[i];
  /* The bias corrections are the same for all elements, so they are computed once. */
  const YokeUpdate step = yoke_update_step(f->optimizer, f->step, lr, p->decay);
  int64_t k = f->begin[i], end = k + yoke_count(p);
  double moments[2] = {0, 0};
  const char* kinds[2];
  const int count = yoke_moments_of(f->optimizer, f->model->summary, i, kinds);
  int m;
  for (; k < end; ++k) {
    const double gradient = scale * yoke_get(f->grad, f->dtype, k);
    for (m = 0; m < count; ++m) moments[m] = yoke_get(f->moment[m], f->dtype, k);
    yoke_set(f->value,
             f->dtype,
             k,
             yoke_update(&step, yoke_get(f->value, f->dtype, k), gradient, moments));
    for (m = 0; m < count; ++m) yoke_set(f->moment[m], f->dtype, k, moments[m]);
  }
}

/* Clips the gradients and updates all trainable parameters. step: number of the update, the first
 * one is 1. lr: learning rate. norm: as yoke_flat_norm returns it; if it is not finite, nothing
 * changes, f->step included. See yoke/optimizer.h for the formulas. */
static inline void yoke_flat_update(YokeFlat* f, int64_t step, double lr, double norm) {
  const double scale = yoke_clip_scale(f->optimizer->clip, norm);
  int64_t i;
  /* A NaN or an overflow somewhere in the gradients: skip the update on every rank. */
  if (!isfinite(norm)) return;
  f->step = step;
  for (i = 0; i < (int64_t)f->model->summary->num_params; ++i) {
    if (yoke_updates_matrix(f->optimizer, f->model->summary, i))
      yoke_flat_update_matrix(f, i, scale, lr);
    else if (f->model->summary->params[i]->trainable)
      yoke_flat_update_param(f, i, scale, lr);
  }
}

/* ---- Checkpoint ----
 *
 * For each parameter, in the order of the model, one piece of kind "param" with all its elements
 * and, if it is trainable, one piece for each moment; then the number of the last update:
 *
 *   w "param", w "exp_avg", w "exp_avg_sq", t "param", b "param", ..., optimizer "step"
 *
 * Every other backend can load such a checkpoint, and this one can load theirs. */

/* Reports one array of the parameter that `piece` describes. Called by yoke_flat_visit. */
static inline int32_t yoke_flat_show(const YokeCheckpointArgs* args,
                                     YokePiece* piece,
                                     const char* kind,
                                     void* data,
                                     YokeError* err) {
  const YokeTensor t = yoke_view(data, piece->dtype, &piece->count, 1);
  piece->kind = yoke_string(kind);
  /* On SAVE the visitor reads the array through the view, on LOAD it writes into it. */
  piece->view = args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &t;
  return args->visit(args->visit_ctx, piece, err);
}

/* Reports the whole state to the visitor of a checkpoint: each parameter with its moments, and the
 * number of the last update. The same function saves, loads and describes. replica: pass the number
 * of this rank, YokeHost.rank; the copy with number 0, that of rank 0, is the one that is written.
 * Fails with the code of the visitor. */
static inline int32_t yoke_flat_visit(YokeFlat* f,
                                      const YokeCheckpointArgs* args,
                                      int64_t replica,
                                      YokeError* err) {
  YokePiece piece;
  const char* kinds[2];
  uint64_t i;
  int m, count;
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
    /* The rank holds the whole parameter: one contiguous span from element 0 on. */
    piece.count = piece.run = yoke_count(p);
    YOKE_TRY(yoke_flat_show(args, &piece, "param", yoke_flat_at(f, f->value, f->begin[i]), err));
    count = yoke_moments_of(f->optimizer, f->model->summary, (int64_t)i, kinds);
    for (m = 0; m < count; ++m)
      YOKE_TRY(
          yoke_flat_show(args, &piece, kinds[m], yoke_flat_at(f, f->moment[m], f->begin[i]), err));
  }
  /* A scalar: no dimensions, one element. Its name is the optimizer's, not a parameter's. */
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
