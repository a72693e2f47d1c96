/* Muon: which parameters are hidden matrices, and the update of one by the formula at YokeOptimizer
 * in the contract. Everything is computed in double precision. C99 and C++; needs libm.
 *
 *   memory = calloc(yoke_muon_memory(optimizer, model), sizeof *memory);
 *   ...
 *   if (yoke_updates_matrix(optimizer, model, i))
 *     yoke_muon(optimizer, lr, scale, &matrix, memory);
 *   else
 *     ...                                            // yoke_update of yoke/optimizer.h
 *
 * A backend with kernels of its own takes the constants from here. Functions never fail and may be
 * called from any thread. */
#ifndef YOKE_MUON_H_
#define YOKE_MUON_H_

#include "yoke/author.h"
#include "yoke/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Hidden matrices ---- */

/* Returns whether a block lists the parameter with index i. */
static inline int yoke_block_lists(const YokeBlock* block, int64_t i) {
  uint64_t k;
  for (k = 0; k < block->num_params; ++k)
    if (block->params[k] == i) return 1;
  return 0;
}

/* Returns whether the parameter with index i is a hidden matrix. */
static inline int yoke_is_hidden_matrix(const YokeModelSummary* model, int64_t i) {
  const YokeParameter* p = model->params[i];
  if (!p->trainable || p->ndim != 2 || model->num_blocks == 0) return 0;
  return !yoke_block_lists(model->blocks[0], i) &&
         !yoke_block_lists(model->blocks[model->num_blocks - 1], i);
}

/* Returns whether the optimizer is Muon and updates the parameter with index i as a matrix. */
static inline int yoke_updates_matrix(const YokeOptimizer* o,
                                      const YokeModelSummary* model,
                                      int64_t i) {
  return yoke_is_muon(o->kind) && yoke_is_hidden_matrix(model, i);
}

/* Writes the kinds of the moments of the parameter with index i, as yoke_moments does. A frozen
 * parameter has none, and a matrix that Muon updates has the first one only. */
static inline int yoke_moments_of(const YokeOptimizer* o,
                                  const YokeModelSummary* model,
                                  int64_t i,
                                  const char* kinds[2]) {
  int count = yoke_moments(o, kinds), m;
  if (!model->params[i]->trainable) count = 0;
  if (yoke_updates_matrix(o, model, i)) count = 1;
  for (m = count; m < 2; ++m) kinds[m] = NULL;
  return count;
}

/* ---- The update ---- */

/* The coefficients a, b and c of one repetition of orthogonal(), the smallest norm, the number of
 * repetitions, and the factor of the step that does not depend on the shape. */
#define YOKE_MUON_A 3.4445
#define YOKE_MUON_B (-4.7750)
#define YOKE_MUON_C 2.0315
#define YOKE_MUON_EPS 1e-7
#define YOKE_MUON_REPETITIONS 5
#define YOKE_MUON_SCALE 0.2

/* Returns the factor of the learning rate for a matrix of this shape. */
static inline double yoke_muon_scale(int64_t rows, int64_t columns) {
  return YOKE_MUON_SCALE * sqrt((double)(rows > columns ? rows : columns));
}

/* Returns the number of elements that yoke_orthogonalize needs as scratch memory. */
static inline int64_t yoke_orthogonalize_scratch(int64_t rows, int64_t columns) {
  const int64_t small = rows < columns ? rows : columns;
  return (2 * small + 1) * small;
}

/* Replaces a row-major matrix by orthogonal(x), in plain loops. With m = min(rows, columns), they
 * take about 7.5 * rows * columns * m + 5 * m^3 multiplications. scratch: memory for
 * yoke_orthogonalize_scratch(rows, columns) elements. */
static inline void yoke_orthogonalize(double* x, int64_t rows, int64_t columns, double* scratch) {
  /* x has `small` lines of `large` elements, which are its rows or its columns. */
  const int64_t small = rows < columns ? rows : columns, large = rows < columns ? columns : rows;
  const int64_t line = rows < columns ? columns : 1, next = rows < columns ? 1 : columns;
  double *s = scratch, *factor = s + small * small, *old = factor + small * small;
  double squares = 0, norm;
  int64_t i, j, k;
  int n;
  for (k = 0; k < rows * columns; ++k) squares += x[k] * x[k];
  norm = sqrt(squares) > YOKE_MUON_EPS ? sqrt(squares) : YOKE_MUON_EPS;
  for (k = 0; k < rows * columns; ++k) x[k] /= norm;
  for (n = 0; n < YOKE_MUON_REPETITIONS; ++n) {
    for (i = 0; i < small; ++i) {
      for (j = 0; j <= i; ++j) {
        double sum = 0;
        for (k = 0; k < large; ++k) sum += x[i * line + k * next] * x[j * line + k * next];
        s[i * small + j] = s[j * small + i] = sum;
      }
    }
    for (i = 0; i < small; ++i) {
      for (j = 0; j < small; ++j) {
        double sum = 0;
        for (k = 0; k < small; ++k) sum += s[i * small + k] * s[j * small + k];
        factor[i * small + j] = YOKE_MUON_B * s[i * small + j] + YOKE_MUON_C * sum;
      }
    }
    for (k = 0; k < large; ++k) {
      for (i = 0; i < small; ++i) old[i] = x[i * line + k * next];
      for (i = 0; i < small; ++i) {
        double sum = YOKE_MUON_A * old[i];
        for (j = 0; j < small; ++j) sum += factor[i * small + j] * old[j];
        x[i * line + k * next] = sum;
      }
    }
  }
}

/* Returns the number of elements of memory that yoke_muon needs for the largest hidden matrix; 0 if
 * the optimizer is not Muon or the model has none. */
static inline int64_t yoke_muon_memory(const YokeOptimizer* o, const YokeModelSummary* model) {
  int64_t most = 0, i;
  for (i = 0; i < (int64_t)model->num_params; ++i) {
    const int64_t* shape = model->params[i]->shape;
    int64_t count;
    if (!yoke_updates_matrix(o, model, i)) continue;
    count = shape[0] * shape[1] + yoke_orthogonalize_scratch(shape[0], shape[1]);
    if (count > most) most = count;
  }
  return most;
}

/* A hidden matrix in memory, row-major. */
typedef struct YokeMatrix {
  const YokeParameter* param;
  void *value, *exp_avg; /* arrays of value_dtype, read and written */
  const void* gradient;  /* array of gradient_dtype */
  int32_t value_dtype, gradient_dtype;
} YokeMatrix;

/* Updates a matrix. lr: learning rate of the step. scale: clip factor of the gradient. memory: for
 * yoke_muon_memory() elements, with unspecified values before and afterwards. */
static inline void yoke_muon(
    const YokeOptimizer* o, double lr, double scale, const YokeMatrix* matrix, double* memory) {
  const YokeParameter* p = matrix->param;
  const int64_t rows = p->shape[0], columns = p->shape[1], count = rows * columns;
  const double mu = o->momentum, keep = p->decay ? 1 - lr * o->weight_decay : 1;
  const double rate = lr * yoke_muon_scale(rows, columns);
  int64_t k;
  for (k = 0; k < count; ++k) {
    const double g = scale * yoke_get(matrix->gradient, matrix->gradient_dtype, k);
    const double m = mu * yoke_get(matrix->exp_avg, matrix->value_dtype, k) + (1 - mu) * g;
    yoke_set(matrix->exp_avg, matrix->value_dtype, k, m);
    memory[k] = mu * m + (1 - mu) * g;
  }
  yoke_orthogonalize(memory, rows, columns, memory + count);
  for (k = 0; k < count; ++k) {
    const double value = yoke_get(matrix->value, matrix->value_dtype, k);
    yoke_set(matrix->value, matrix->value_dtype, k, keep * value - rate * memory[k]);
  }
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_MUON_H_ */
