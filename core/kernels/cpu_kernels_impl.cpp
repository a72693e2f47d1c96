// The row kernels, compiled once per instruction set. YOKE_KERNELS is the name of the table that
// this compilation defines. See cpu_vector_math.hpp for what may be used here.
//
// Each kernel reads its rows as few times as possible and computes in Wide<T>, so that a 16-bit
// tensor is rounded only when a result is stored. The reductions inside a row are vectorised (omp
// simd): their order of summation depends on the instruction set, but not on the number of threads,
// because one thread computes a whole row.
#include "core/kernels/cpu_attention.hpp"
#include "core/kernels/cpu_vector_math.hpp"

namespace yoke {
namespace {

template <class T>
struct Kernels {
  using W = Wide<T>;

  static void rms_forward(
      int64_t rows, int64_t dim, const T* x, const T* weight, W eps, T* y, W* rstd) {
    for (int64_t r = 0; r < rows; ++r, x += dim, y += dim) {
      W squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < dim; ++i) squares += wide(x[i]) * wide(x[i]);
      const W scale = 1 / root(squares / static_cast<W>(dim) + eps);
      rstd[r] = scale;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) store(y[i], wide(x[i]) * scale * wide(weight[i]));
    }
  }

  // With w = weight, c = rstd: dx = c (dy w - x c^2 mean(dy w x)). The mean comes from the
  // derivative of rstd. dweight is summed over the rows here; the caller adds up the sums of
  // several threads. The residual is added in a loop of its own, while the row is in the cache, so
  // that the sum has the bits of a separate addition: a fused multiply-add would round differently.
  static void rms_backward(int64_t rows,
                           int64_t dim,
                           const T* dy,
                           const T* x,
                           const T* weight,
                           const W* rstd,
                           const T* residual,
                           T* dx,
                           W* dweight) {
    for (int64_t r = 0; r < rows; ++r, dy += dim, x += dim, dx += dim) {
      const W scale = rstd[r];
      W dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < dim; ++i) dot += wide(dy[i]) * wide(weight[i]) * wide(x[i]);
      const W back = dot * scale * scale / static_cast<W>(dim);
      // Adds to the gradient of the weight, and returns that of the input.
      const auto gradient = [&](int64_t i) {
        dweight[i] += wide(dy[i]) * (wide(x[i]) * scale);
        return scale * (wide(dy[i]) * wide(weight[i]) - wide(x[i]) * back);
      };
      if (residual == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < dim; ++i) store(dx[i], gradient(i));
        continue;
      }
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) store(dx[i], gradient(i) + wide(residual[i]));
      residual += dim;
    }
  }

  static void rotary(int64_t tokens,
                     int64_t heads,
                     int64_t head_dim,
                     const T* x,
                     const W* cos,
                     const W* sin,
                     W sign,
                     T* y) {
    const int64_t half = head_dim / 2;
    for (int64_t t = 0; t < tokens; ++t, cos += half, sin += half) {
      for (int64_t h = 0; h < heads; ++h, x += head_dim, y += head_dim) {
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const W a = wide(x[i]), b = wide(x[half + i]), s = sin[i] * sign;
          store(y[i], a * cos[i] - b * s);
          store(y[half + i], b * cos[i] + a * s);
        }
      }
    }
  }

  static void swiglu_forward(int64_t count, const T* gate, const T* up, T* y) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const W g = wide(gate[i]);
      store(y[i], g / (1 + exp_of(-g)) * wide(up[i]));
    }
  }

  // With g = gate, s = sigmoid(g): d(g s)/dg = s (1 + g (1 - s)).
  static void swiglu_backward(
      int64_t count, const T* dy, const T* gate, const T* up, T* dgate, T* dup) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const W g = wide(gate[i]), d = wide(dy[i]);
      const W sigmoid = 1 / (1 + exp_of(-g));
      store(dup[i], d * g * sigmoid);
      store(dgate[i], d * wide(up[i]) * sigmoid * (1 + g * (1 - sigmoid)));
    }
  }

  // -log softmax(x)[t] = lse - x[t], with lse = max + log sum exp(x - max). Subtracting the maximum
  // keeps exp from overflowing. The losses are added up in double: there may be millions of them.
  static double cross_entropy_forward(int64_t rows,
                                      int64_t vocab,
                                      const T* logits,
                                      const int64_t* targets,
                                      int64_t ignored,
                                      W* lse) {
    double loss = 0;
    for (int64_t r = 0; r < rows; ++r, logits += vocab) {
      W top = wide(logits[0]);
#pragma omp simd reduction(max : top)
      for (int64_t i = 0; i < vocab; ++i) top = top > wide(logits[i]) ? top : wide(logits[i]);
      W sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < vocab; ++i) sum += exp_of(wide(logits[i]) - top);
      lse[r] = top + log_of(sum);
      if (targets[r] != ignored)
        loss += static_cast<double>(lse[r]) - static_cast<double>(wide(logits[targets[r]]));
    }
    return loss;
  }

  static void cross_entropy_backward(int64_t rows,
                                     int64_t vocab,
                                     T* logits,
                                     const int64_t* targets,
                                     int64_t ignored,
                                     const W* lse,
                                     W scale) {
    for (int64_t r = 0; r < rows; ++r, logits += vocab) {
      if (targets[r] == ignored) {
        for (int64_t i = 0; i < vocab; ++i) store(logits[i], W{0});
        continue;
      }
      // A local variable, because the stores might change lse[r] for all that the compiler knows.
      const W shift = lse[r];
      // Subtracting 1 from the stored value would add to its rounding error.
      const W wanted = (exp_of(wide(logits[targets[r]]) - shift) - 1) * scale;
#pragma omp simd
      for (int64_t i = 0; i < vocab; ++i) store(logits[i], exp_of(wide(logits[i]) - shift) * scale);
      store(logits[targets[r]], wanted);
    }
  }

  // Tiles of two vectors of queries are faster, unless the queries attend to so few keys that the
  // scores which the mask hides are a large part of a tile.
  using ShortAttention = CausalAttention<T, 1>;
  using LongAttention = CausalAttention<T, 2>;
  static bool is_short(const AttentionShape& s) {
    return s.seq_len <= 128 || (s.window > 0 && s.window <= 128);
  }

  static int64_t attention_scratch(const AttentionShape& s) {
    return is_short(s) ? ShortAttention::scratch(s) : LongAttention::scratch(s);
  }
  static void attention_forward(
      const AttentionShape& s, int64_t begin, int64_t end, const AttentionData<T>& d, W* scratch) {
    (is_short(s) ? ShortAttention::forward : LongAttention::forward)(s, begin, end, d, scratch);
  }
  static void attention_backward(
      const AttentionShape& s, int64_t begin, int64_t end, const AttentionData<T>& d, W* scratch) {
    (is_short(s) ? ShortAttention::backward : LongAttention::backward)(s, begin, end, d, scratch);
  }

  static constexpr CpuKernels<T> table() {
    return {rms_forward,
            rms_backward,
            rotary,
            swiglu_forward,
            swiglu_backward,
            cross_entropy_forward,
            cross_entropy_backward,
            attention_scratch,
            attention_forward,
            attention_backward};
  }
};

// See core/model/init.hpp. The factors are multiplied in the order of the definition: computing
// sqrt(3) * std first would round differently.
void init_uniform(uint64_t key, double std, int64_t begin, int64_t count, float* dst) {
  constexpr double kSqrt3 = 1.7320508075688772;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = key + static_cast<uint64_t>(begin + i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const double u = static_cast<double>(static_cast<int32_t>(z >> 40)) * 0x1p-24;
    dst[i] = static_cast<float>((2 * u - 1) * kSqrt3 * std);
  }
}

}  // namespace

#define YOKE_TEXT_(x) #x
#define YOKE_TEXT(x) YOKE_TEXT_(x)
extern const CpuKernelTable YOKE_KERNELS;
const CpuKernelTable YOKE_KERNELS = {YOKE_TEXT(YOKE_KERNELS),
                                     Kernels<float>::table(),
                                     Kernels<double>::table(),
                                     Kernels<BFloat16>::table(),
                                     Kernels<Float16>::table(),
                                     init_uniform};

}  // namespace yoke
