/* The arithmetic of the optimizers: gradient norm, clip factor, loss scale, and the update of one
 * element by AdamW, Adam, Lion and SGD. These are the formulas at YokeOptimizer in the contract.
 * Backends that use them agree to the last bit. yoke/muon.h has the update of a matrix by Muon.
 * C99, C++ and CUDA device code; needs libm.
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

/* ---- Kinds ---- */

/* Returns whether the kind is AdamW or one of its variants, which yoke_adamw computes. */
static inline int yoke_is_adam(int32_t kind) {
#if YOKE_ABI_MINOR >= 1
  if (kind == YOKE_ADAM || kind == YOKE_ADAMW_UNCORRECTED || kind == YOKE_ADAM_UNCORRECTED)
    return 1;
#endif
  return kind == YOKE_ADAMW;
}

/* Returns whether the kind is Lion, which yoke_lion computes. */
static inline int yoke_is_lion(int32_t kind) {
#if YOKE_ABI_MINOR >= 1
  if (kind == YOKE_LION) return 1;
#endif
  (void)kind;
  return 0;
}

/* Returns whether the kind is Muon: yoke/muon.h computes it for the hidden matrices, and yoke_adamw
 * for all other parameters. */
static inline int yoke_is_muon(int32_t kind) {
#if YOKE_ABI_MINOR >= 1
  if (kind == YOKE_MUON) return 1;
#endif
  (void)kind;
  return 0;
}

/* Writes the kinds of the moments that the optimizer keeps, as they are called in checkpoints, and
 * NULL for those it does not have. Returns their number: 0, 1 or 2. With Muon these are the moments
 * of parameters that are not hidden matrices; yoke_moments_of of yoke/muon.h knows the others. */
static inline int yoke_moments(const YokeOptimizer* o, const char* kinds[2]) {
  const int adam = yoke_is_adam(o->kind) || yoke_is_muon(o->kind), lion = yoke_is_lion(o->kind);
  kinds[0] = adam || lion ? "exp_avg" : o->momentum != 0 ? "momentum" : NULL;
  kinds[1] = adam ? "exp_avg_sq" : NULL;
  return (kinds[0] != NULL) + (kinds[1] != NULL);
}

/* ---- AdamW and its variants ----
 *
 *   g = g + l2 * p
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + (1 - beta2) * g * g
 *   p = keep * p - lr * (m / correct1 / (sqrt(v) / correct2 + eps))
 *
 * with correct1 = 1 - beta1^step and correct2 = sqrt(1 - beta2^step), or 1 in an uncorrected
 * variant. AdamW has l2 = 0, Adam has keep = 1. */

/* The constants of one step for one parameter. */
typedef struct YokeAdamW {
  double lr;       /* learning rate of the step */
  double keep;     /* factor of the old value: 1 - lr * weight_decay, or 1 without decay */
  double l2;       /* weight decay that is added to the gradient; 0 except for Adam */
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
  const double weight_decay = decay ? o->weight_decay : 0;
  int coupled = 0, uncorrected = 0;
  YokeAdamW s;
#if YOKE_ABI_MINOR >= 1
  coupled = o->kind == YOKE_ADAM || o->kind == YOKE_ADAM_UNCORRECTED;
  uncorrected = o->kind == YOKE_ADAMW_UNCORRECTED || o->kind == YOKE_ADAM_UNCORRECTED;
#endif
  s.lr = lr;
  s.keep = coupled ? 1 : 1 - lr * weight_decay;
  s.l2 = coupled ? weight_decay : 0;
  s.beta1 = o->beta1;
  s.beta2 = o->beta2;
  s.eps = o->eps;
  s.correct1 = uncorrected ? 1 : 1 - pow(o->beta1, (double)step);
  s.correct2 = uncorrected ? 1 : sqrt(1 - pow(o->beta2, (double)step));
  return s;
}

/* Returns the new value of one element and advances its moments. gradient: already clipped.
 * exp_avg, exp_avg_sq: the moments, read and written. The value is computed from the
 * unrounded moments; the caller rounds them to the dtype of their array afterwards. */
YOKE_HOST_DEVICE static inline double yoke_adamw(
    const YokeAdamW* s, double value, double gradient, double* exp_avg, double* exp_avg_sq) {
  if (s->l2 != 0) gradient += s->l2 * value;
  *exp_avg = s->beta1 * *exp_avg + (1 - s->beta1) * gradient;
  *exp_avg_sq = s->beta2 * *exp_avg_sq + (1 - s->beta2) * gradient * gradient;
  return s->keep * value -
         s->lr * (*exp_avg / s->correct1 / (sqrt(*exp_avg_sq) / s->correct2 + s->eps));
}

/* ---- Lion ----
 *
 *   p = keep * p - lr * sign(beta1 * m + (1 - beta1) * g)
 *   m = beta2 * m + (1 - beta2) * g
 */

/* The constants of one step for one parameter. */
typedef struct YokeLion {
  double lr;    /* learning rate of the step */
  double keep;  /* factor of the old value: 1 - lr * weight_decay, or 1 without decay */
  double beta1; /* weight of the moment in the direction of the step */
  double beta2; /* decay rate of the moment */
} YokeLion;

/* Returns the constants of a step. decay: as for yoke_adamw_step. */
static inline YokeLion yoke_lion_step(const YokeOptimizer* o, double lr, int decay) {
  YokeLion s;
  s.lr = lr;
  s.keep = decay ? 1 - lr * o->weight_decay : 1;
  s.beta1 = o->beta1;
  s.beta2 = o->beta2;
  return s;
}

/* Returns the new value of one element and advances its moment. gradient: already clipped. exp_avg:
 * the moment, read and written. The sign of 0 is 0. */
YOKE_HOST_DEVICE static inline double yoke_lion(const YokeLion* s,
                                                double value,
                                                double gradient,
                                                double* exp_avg) {
  const double direction = s->beta1 * *exp_avg + (1 - s->beta1) * gradient;
  *exp_avg = s->beta2 * *exp_avg + (1 - s->beta2) * gradient;
  return s->keep * value - s->lr * ((direction > 0) - (direction < 0));
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

/* ---- Any kind ---- */

/* The constants of one step for one parameter, for the optimizer of a run. With Muon, they are for
 * a parameter that is not a hidden matrix. */
typedef struct YokeUpdate {
  int32_t kind; /* YokeOptimizer.kind; decides which of the others has a meaning */
  YokeAdamW adamw;
  YokeLion lion;
  YokeSgd sgd;
} YokeUpdate;

/* Returns the constants of a step. Arguments as for yoke_adamw_step. o->kind must be one of those
 * above. */
static inline YokeUpdate yoke_update_step(const YokeOptimizer* o,
                                          int64_t step,
                                          double lr,
                                          int decay) {
  YokeUpdate u;
  u.kind = o->kind;
  u.adamw = yoke_adamw_step(o, step, lr, decay);
  u.lion = yoke_lion_step(o, lr, decay);
  u.sgd = yoke_sgd_step(o, lr, decay);
  return u;
}

/* Returns the new value of one element and advances its moments, in the order of yoke_moments.
 * gradient: already clipped. Moments that the kind does not have stay as they are. */
static inline double yoke_update(const YokeUpdate* u,
                                 double value,
                                 double gradient,
                                 double moments[2]) {
  if (yoke_is_adam(u->kind) || yoke_is_muon(u->kind))
    return yoke_adamw(&u->adamw, value, gradient, &moments[0], &moments[1]);
  if (yoke_is_lion(u->kind)) return yoke_lion(&u->lion, value, gradient, &moments[0]);
  return yoke_sgd(&u->sgd, value, gradient, &moments[0]);
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_OPTIMIZER_H_ */
