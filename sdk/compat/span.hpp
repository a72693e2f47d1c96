// A tensor of LibTorch as a range of memory, for the collectives of yoke/comm.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "yoke/torch.hpp"

namespace yoke::compat {

// Returns the elements of a contiguous tensor as a range of the contract.
inline Span span(const at::Tensor& t) {
  return {t.data_ptr(), t.numel(), dtype_of(t.scalar_type())};
}

}  // namespace yoke::compat
