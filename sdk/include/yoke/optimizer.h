/* The arithmetic of the optimizers: gradient norm, clip factor, loss scale, and the update of one
 * element by AdamW and SGD. These are the formulas at YokeOptimizer in the contract. Backends that
 * use them agree to the last bit. C99, C++ and CUDA device code; needs libm.
 *
 *   norm = yoke_gradient_norm(sum_of_squares);               // over all ranks
 *   if (isfinite(norm)) {                                    // else skip the update on every rank
 *     const double scale = yoke_clip_scale(o->clip, norm);
 *     const YokeAdamW s = yoke_adamw_step(o, step, lr, decay);
 *     for (i = 0; i < count; ++i)
 *       value[i] = yoke_adamw(&s, value[i], scale * gradient[i], &exp_avg[i], &exp_avg_sq[i]);
 *   }
 *
 * Everything is computed in double precision for every dtype of the arrays: callers widen what they
 * load and round what they store. Functions are pure, never fail, and may be called from any
 * thread.
 *
 * The order of the operations is fixed, because it affects the last bits. If a compiler contracts
 * a * b + c into one rounding, as CUDA's does by default, the last bits differ from the host's; the
 * option -fmad=false prevents this. */
#ifndef YOKE_OPTIMIZER_H_
#define YOKE_OPTIMIZER_H_

#include <math.h>

#include "yoke/parallel_backend.h"

/* Marks a function that device code may call. Empty for compilers of plain C and C++. */
#if defined(__CUDACC__)
#define YOKE_HOST_DEVICE __host__ __device__
#else
#define YOKE_HOST_DEVICE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Gradient norm and clipping ---- */

/* Returns the norm of a gradient from the sum of its squares over all ranks. Returns +infinity if
 * the norm is not a finite number: such a step must not update anything. */
YOKE_HOST_DEVICE static inline double yoke_gradient_norm(double squared) {
  const double norm = sqrt(squared);
  return isfinite(norm) ? norm : (double)INFINITY;
}

/* Returns the factor in [0, 1] by which every gradient is multiplied to make the norm at most clip.
 * clip: bound of the norm, 0 = no clipping. norm: the result of yoke_gradient_norm. */
YOKE_HOST_DEVICE static inline double yoke_clip_scale(double clip, double norm) {
  return clip > 0 && norm + 1e-6 > clip ? clip / (norm + 1e-6) : 1;
}

/* ---- Loss scale and result of a step ----
 *
 * A backend for fp16 multiplies the gradient of the loss by `scale` and removes it again:
 *
 *   const double scale = yoke_loss_scale(args);
 *   backward.loss_grad = scale / args->batch->token_weight;
 *   ...
 *   norm = yoke_gradient_norm(sum_of_squares) / scale;
 *   factor = yoke_clip_scale(clip, norm) / scale;            // factor of every gradient
 */

/* Returns the factor of the loss in this step; 1 if the host has given none. */
static inline double yoke_loss_scale(const YokeStepArgs* args) {
#if YOKE_ABI_MINOR >= 1
  if (YOKE_HAS(YokeStepArgs, args, loss_scale) && args->loss_scale > 0) return args->loss_scale;
#endif
  (void)args;
  return 1;
}

/* Writes what a step has found to *out, which may be that of an older host. loss_sum, loss_weight:
 * sums over all ranks. grad_norm: as for YokeStepResult; the step counts as skipped if it is
 * infinite. In an evaluation it is NaN. */
static inline void yoke_report_step(const YokeStepArgs* args,
                                    double loss_sum,
                                    double loss_weight,
                                    double grad_norm,
                                    YokeStepResult* out) {
  out->loss_sum = loss_sum;
  out->loss_weight = loss_weight;
  out->grad_norm = grad_norm;
#if YOKE_ABI_MINOR >= 1
  if (YOKE_HAS(YokeStepResult, out, reserved)) {
    const int train = !(args->flags & YOKE_STEP_FORWARD_ONLY);
    out->loss_scale = train && YOKE_HAS(YokeStepArgs, args, loss_scale) ? args->loss_scale : 0;
    out->skipped = train && isinf(grad_norm);
    out->reserved = 0;
  }
#endif
  (void)args;
}

/* ---- AdamW ----
 *
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g * g
 *   p = keep * p - lr * (m / correct1 / (sqrt(v) / correct2 + eps))
 *
 * with correct1 = 1 - beta1^step and correct2 = sqrt(1 - beta2^step). */

/* The constants of one step for one parameter. */
typedef struct YokeAdamW {
  double lr;       /* learning rate of the step */
  double keep;     /* factor of the old value: 1 - lr * weight_decay, or 1 without decay */
  double beta1;    /* decay rate of the first moment */
  double beta2;    /* decay rate of the second moment */
  double eps;      /* added to the root of the second moment */
  double correct1; /* bias correction of the first moment */
  double correct2; /* bias correction of the root of the second moment */
} YokeAdamW;

/* Returns the constants of a step. step: number of the update, which starts at 1. decay: whether
 * weight decay applies (YokeParameter.decay). Host only: it is called once per parameter. */
static inline YokeAdamW yoke_adamw_step(const YokeOptimizer* o,
                                        int64_t step,
                                        double lr,
                                        int decay) {
  YokeAdamW s;
  s.lr = lr;
  s.keep = decay ? 1 - lr * o->weight_decay : 1;
  s.beta1 = o->beta1;
  s.beta2 = o->beta2;
  s.eps = o->eps;
  s.correct1 = 1 - pow(o->beta1, (double)step);
  s.correct2 = sqrt(1 - pow(o->beta2, (double)step));
  return s;
}

/* Returns the new value of one element and advances its moments. gradient: already clipped.
 * exp_avg, exp_avg_sq: the moments, read and written. The value is computed from the
 * unrounded moments; the caller rounds them to the dtype of their array afterwards. */
YOKE_HOST_DEVICE static inline double yoke_adamw(
    const YokeAdamW* s, double value, double gradient, double* exp_avg, double* exp_avg_sq) {
  *exp_avg = s->beta1 * *exp_avg + (1 - s->beta1) * gradient;
  *exp_avg_sq = s->beta2 * *exp_avg_sq + (1 - s->beta2) * gradient * gradient;
  return s->keep * value -
         s->lr * (*exp_avg / s->correct1 / (sqrt(*exp_avg_sq) / s->correct2 + s->eps));
}

/* ---- SGD ----
 *
 *   b = momentum * b + g
 *   p = keep * p - lr * b
 */

/* The constants of one step for one parameter. */
typedef struct YokeSgd {
  double lr;       /* learning rate of the step */
  double keep;     /* factor of the old value: 1 - lr * weight_decay, or 1 without decay */
  double momentum; /* 0 = plain SGD, without a buffer */
} YokeSgd;

/* Returns the constants of a step. decay: as for yoke_adamw_step. */
static inline YokeSgd yoke_sgd_step(const YokeOptimizer* o, double lr, int decay) {
  YokeSgd s;
  s.lr = lr;
  s.keep = decay ? 1 - lr * o->weight_decay : 1;
  s.momentum = o->momentum;
  return s;
}

/* Returns the new value of one element. gradient: already clipped. buffer: the running sum of the
 * momentum, read and written; NULL is allowed if momentum is 0. */
YOKE_HOST_DEVICE static inline double yoke_sgd(const YokeSgd* s,
                                               double value,
                                               double gradient,
                                               double* buffer) {
  double change = gradient;
  if (s->momentum != 0) change = *buffer = s->momentum * *buffer + gradient;
  return s->keep * value - s->lr * change;
}

/* Returns the new value of one element under Nesterov's momentum, where the step looks ahead along
 * the buffer: p = keep * p - lr * (g + momentum * b). Arguments as for yoke_sgd; buffer is never
 * NULL. */
YOKE_HOST_DEVICE static inline double yoke_nesterov(const YokeSgd* s,
                                                    double value,
                                                    double gradient,
                                                    double* buffer) {
  *buffer = s->momentum * *buffer + gradient;
  return s->keep * value - s->lr * (gradient + s->momentum * *buffer);
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_OPTIMIZER_H_ */
