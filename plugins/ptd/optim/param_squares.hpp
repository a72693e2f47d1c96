// The squared gradient norm as one sum of squares for each parameter. A norm over flat tensors adds
// up the elements in the order in which they lie on a rank, which depends on the pipeline. The sum
// of a whole parameter does not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/schedule/units.hpp"
#include "plugins/ptd/state/shard_state.hpp"

namespace yoke::ptd {

class ParamSquares {
 public:
  // model: the blocks of this rank. Each parameter of the state must be whole, in a single shard.
  ParamSquares(const ModelSpec& model, const ShardState& state);

  int64_t size() const { return size_; }  // number of parameters of the model

  // Writes the sum of squares of the gradient of each parameter that this rank counts to
  // out[index of the parameter]; the other elements of `out`, fp64 [size()], stay as they are. NaN
  // and infinity propagate.
  void write(const at::Tensor& out) const;

 private:
  int64_t size_;
  std::vector<at::Tensor> grads_;  // views of the state's gradients
  at::Tensor indices_;             // int64: the parameter of each view
};

}  // namespace yoke::ptd
