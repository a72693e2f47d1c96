// This cache rounds weights once for several products. A backend asks for it in steps of several
// micro-batches (KeptRoundings in yoke/fp8_params.hpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

#include "core/kernels/fp8_operand.hpp"

namespace yoke::ops::fp8 {

// Only one thread at a time may use an object.
class KeptWeights : public torch::CustomClassHolder {
 public:
  // Returns what the products of a linear layer need of a weight, which it rounds when it sees it
  // for the first time. The weight must not change while this object exists.
  const RoundedWeight& get(const at::Tensor& weight, const Recipe& recipe);

  // Returns whether a weight can be kept. Distributed tensors, which have no storage, cannot; and
  // only leaves are parameters, which have the same tensor at every use.
  static bool takes(const at::Tensor& weight);

 private:
  struct Entry {
    at::Tensor weight;  // owner of the key
    RoundedWeight rounded;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

// Makes products on this thread keep rounded weights, or stops that, as KeptRoundings says.
void keep_roundings(bool keep);

// Returns the cache of this thread, or null if there is none.
const c10::intrusive_ptr<KeptWeights>& kept_weights();

}  // namespace yoke::ops::fp8
