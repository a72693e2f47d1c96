// The squared gradient norm as one sum of squares for each parameter. A norm over flat tensors adds
// up the elements in the order in which they lie on a rank, which depends on the pipeline. The sum
// of a whole parameter does not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/state/shard_state.hpp"
#include "sdk/mesh/schedule/units.hpp"

namespace yoke::ptd {

// Computes the sums for the parameters of one rank. Used by one thread at a time.
class ParamSquares {
 public:
  // model: the blocks of this rank. Each parameter of the state must be whole, in a single shard.
  ParamSquares(const ModelSpec& model, const ShardState& state);

  int64_t size() const { return size_; }  // number of parameters of the model

  // For each parameter that this rank is responsible for, sets out[p] to the sum of squares of its
  // gradient, where p is the index of the parameter in the model. The other elements stay as they
  // are. out: fp64 [size()], on the device of the state. NaN and infinity propagate.
  void write(const at::Tensor& out) const;

 private:
  int64_t size_;
  std::vector<at::Tensor> grads_;  // views of the state's gradients
  at::Tensor indices_;             // int64 tensor with the parameter of each view
};

// Returns the sum of the squares of all parameters, added in their order.
at::Tensor sum_in_order(const at::Tensor& squares);

}  // namespace yoke::ptd
