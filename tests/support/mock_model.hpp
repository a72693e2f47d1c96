// A tiny YokeModel in plain C++: no LibTorch, backward written by hand.
// With N = sequences * length, its blocks are
//
//   embed   carry = embed.weight[token]                                      [N, 5]
//   mlp     carry = carry + tanh(carry * scale @ up^T + bias) @ down^T       [N, 5]
//   head    logits = gain * carry @ out^T                                    [N, 11]
//           loss = sum of the cross-entropies over targets >= 0
//
// The sizes are deliberately odd. `scale` is frozen, `gain` is a scalar (ndim 0) and `bias` does
// not decay. If the model is tied, `out` is embed.weight, so that one parameter belongs to two
// blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "yoke/tensor.hpp"

namespace yoke::testing {

struct MockModelOptions {
  // YOKE_F64, YOKE_F32 or YOKE_BF16. All arithmetic is in double; inputs and results are rounded.
  int32_t dtype = YOKE_F64;
  bool tied = true;
};

// Counts what the backend has not released yet, and lists the calls that it made.
struct MockModelLog {
  int64_t live_saved = 0;          // results of forward that were neither consumed nor dropped
  int64_t live_tensors = 0;        // managed tensors that are not deleted
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

  // Makes a callback fail once, with YOKE_INTERNAL and a text that quotes `call`. Among the
  // callbacks whose log entry starts with `call` ("forward mlp", "init 1", "bind 0"), the first n
  // succeed and the next one fails.
  void fail_at(const std::string& call, int n);
  // Makes block_backward report the gradient of a parameter index that does not exist. Then
  // block_backward must return the error of on_grad_ready unchanged.
  void report_wrong_parameter(bool on);

  // Returns the initial value of element i of a parameter, as init_param does.
  static float initial(int64_t param, int64_t i);

  // The same model without callbacks, for oracles. Inputs are the parameters, results are the loss
  // sum and the gradients.
  struct Values {
    std::vector<std::vector<double>> params, grads;  // values of each parameter, row-major
    double loss_sum = 0, loss_weight = 0;
  };
  Values initial_values() const;
  // Adds the loss of one micro-batch, and its gradients multiplied by loss_grad.
  void add_micro_batch(const YokeMicroBatch& micro, double loss_grad, Values& values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::testing
