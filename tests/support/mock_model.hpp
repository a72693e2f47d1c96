// A tiny model behind the neutral contract, in plain C++: no LibTorch, backward written by hand.
//
//   embed   carry = embed.weight[token]                                     [N, 5], N = sequences *
//   length mlp     carry + tanh(carry * scale @ up^T + bias) @ down^T head    logits = gain * carry
//   @ out^T; loss = sum of cross-entropies over targets >= 0
//
// Sizes are odd on purpose. `scale` is frozen, `gain` is a scalar (ndim 0), `bias` does not decay,
// and `out` is embed.weight when the model is tied: then that parameter stands in two blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "yoke/tensor.hpp"

namespace yoke::testing {

struct MockModelOptions {
  int32_t dtype =
      YOKE_F64;  // or YOKE_F32, YOKE_BF16; all arithmetic is double, rounded at the border
  bool tied = true;
};

// What the backend must have balanced at the end, and what it did, one word per callback.
struct MockModelLog {
  int64_t live_saved = 0;          // handed out, neither consumed nor dropped
  int64_t live_tensors = 0;        // managed tensors not yet deleted
  std::vector<std::string> calls;  // "forward embed", "backward mlp", "bind 2", "drop"
};

class MockModel {
 public:
  static constexpr int64_t kVocab = 11, kDim = 5, kHidden = 7;

  explicit MockModel(const MockModelOptions& options = {});
  ~MockModel();
  const YokeModel& model() const;
  const YokeModelSummary& summary() const;
  MockModelLog& log();

  // The callback that starts with this word ("forward mlp", "init 1", "bind 0") fails once, at its
  // n-th call from now, with YOKE_INTERNAL and a text that quotes the word.
  void fail_at(const std::string& call, int n);
  // on_grad_ready's error must come out of block_backward unchanged; this makes the mock hand the
  // gradient of a parameter index that does not exist.
  void report_wrong_parameter(bool on);

  // Initial value of element i of a parameter, as init_param gives it.
  static float initial(int64_t param, int64_t i);

  // The same mathematics without any callback, for oracles: parameters in, loss sum and gradients
  // out.
  struct Values {
    std::vector<std::vector<double>> params, grads;  // by parameter index, row-major
    double loss_sum = 0, loss_weight = 0;
  };
  Values initial_values() const;
  // Adds the loss and the gradients times loss_grad of one micro-batch.
  void add_micro_batch(const YokeMicroBatch& micro, double loss_grad, Values& values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::testing
