/* What every plan function needs: the names of the axes, their keys in a run file, the product of
 * the degrees, divisors and multiples for messages, default dtypes.
 *
 * C99 or C++; there is nothing to link. Functions neither allocate nor fail, and may be called from
 * any thread. For C++, yoke/plan.hpp turns the results into texts for messages. */
#ifndef YOKE_PLAN_H_
#define YOKE_PLAN_H_

#include "yoke/parallel_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Axes and their keys ---- */

/* Initialisers of arrays with YOKE_NUM_AXES strings, in the order of YOKE_PP ... YOKE_TP. The names
 * are used in meshes, logs and records; the keys are used in run files and refusals. */
#define YOKE_AXIS_NAMES \
  { "pp", "dp_replicate", "dp_shard", "cp", "tp" }
#define YOKE_DEGREE_KEYS \
  { "pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree" }

/* Returns the name of an axis, "dp_shard" for YOKE_DP_SHARD. axis: YOKE_PP ... YOKE_TP; no other
 * value is allowed, here and below. The text is a literal. */
static inline const char* yoke_axis_name(int axis) {
  static const char* const names[YOKE_NUM_AXES] = YOKE_AXIS_NAMES;
  return names[axis];
}

/* Returns the key that sets the degree of an axis in a run file, "dp_shards" for YOKE_DP_SHARD. The
 * text is a literal. */
static inline const char* yoke_degree_key(int axis) {
  static const char* const keys[YOKE_NUM_AXES] = YOKE_DEGREE_KEYS;
  return keys[axis];
}

/* Returns the product of the degrees, which is the number of ranks that they need. A degree that is
 * unset (0) counts as 1. A product above INT64_MAX is returned as INT64_MAX. */
static inline int64_t yoke_degree_product(const int32_t degree[YOKE_NUM_AXES]) {
  int64_t product = 1;
  int axis;
  for (axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (degree[axis] <= 1) continue;
    if (product > INT64_MAX / degree[axis]) return INT64_MAX;
    product *= degree[axis];
  }
  return product;
}

/* ---- Allowed values for messages: divisors and multiples ----
 *
 * A degree must divide what it cuts, and a batch must be a multiple of the ranks that share it. A
 * good refusal names the nearest values that would be accepted. */

/* Returns the smallest divisor of n above d, or 0 if there is none. n, d >= 0. Takes about sqrt(n)
 * steps. This loop visits all divisors in ascending order:
 *
 *   for (d = yoke_next_divisor(n, 0); d != 0; d = yoke_next_divisor(n, d)) ...
 */
static inline int64_t yoke_next_divisor(int64_t n, int64_t d) {
  int64_t k, quotient;
  /* First try the candidates up to the root. k <= n / k means k * k <= n, without overflow. */
  for (k = d + 1; k <= n / k; ++k)
    if (n % k == 0) return k;
  /* No divisor lies between d and the root of n. Those above the root are n / q for the divisors q
   * below it, so the largest such q gives the smallest of them. */
  quotient = n / (d + 1);
  for (k = quotient < k ? quotient : k; k > 0; --k)
    if (n % k == 0) return n / k;
  return 0;
}

/* The nearest legal values below and above a value that is not allowed. */
typedef struct YokeNearest {
  int64_t below; /* 0 = none */
  int64_t above; /* 0 = none; equal to below if the value itself is legal */
} YokeNearest;

/* Returns the divisors of n nearest to d; n, d >= 1. yoke_nearest_divisors(12, 5) is {4, 6}. */
static inline YokeNearest yoke_nearest_divisors(int64_t n, int64_t d) {
  YokeNearest nearest = {0, 0};
  int64_t k;
  /* The loop leaves the last divisor up to d in below, and the first one above d in k. */
  for (k = yoke_next_divisor(n, 0); k != 0 && k <= d; k = yoke_next_divisor(n, k))
    nearest.below = k;
  nearest.above = nearest.below == d ? d : k;
  return nearest;
}

/* Returns the multiples of unit nearest to n; n >= 0, unit >= 1. Zero is not a legal multiple, so
 * yoke_nearest_multiples(3, 4) is {0, 4}. If n is a multiple itself, below is n and above is the
 * next one. */
static inline YokeNearest yoke_nearest_multiples(int64_t n, int64_t unit) {
  YokeNearest nearest;
  nearest.below = n / unit * unit;
  nearest.above = nearest.below + unit;
  return nearest;
}

/* ---- Default dtypes ---- */

/* Returns the dtype in which gradients are reduced if precision.reduce is unset: fp64 for fp64,
 * else fp32. A backend that supports only one dtype for everything may use param_dtype instead. */
static inline int32_t yoke_default_reduce_dtype(int32_t param_dtype) {
  return param_dtype == YOKE_F64 ? YOKE_F64 : YOKE_F32;
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_PLAN_H_ */
