// How NCCL's communicators use the GPU and the network: the keys comm.nccl_*.
#pragma once

#include <cstdint>

namespace yoke {

struct NcclSettings {
  // What NCCL prefers for collectives. kDefault: speed. kEfficiency: using fewer multiprocessors.
  // kZero: using none, where copy engines or the NVLink switch can do the work.
  enum class CtaPolicy : uint8_t { kDefault, kEfficiency, kZero };
  CtaPolicy cta_policy = CtaPolicy::kDefault;
  int nvls_ctas = 0;  // blocks of collectives inside the NVLink switch; 0 = NCCL decides
  bool registers_memory = false;  // let NCCL access the tensors without copies
  bool splits = false;            // split communicators off one of all ranks
};

}  // namespace yoke
