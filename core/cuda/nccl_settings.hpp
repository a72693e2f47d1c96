// How NCCL's communicators use the GPU and the network: the keys comm.nccl_*.
#pragma once

#include <cstdint>

namespace yoke {

struct NcclSettings {
  // What NCCL prefers for collectives: kDefault the fastest way, kEfficiency fewer multiprocessors,
  // kZero none where the copy engines or the switch can do the work.
  enum class CtaPolicy : uint8_t { kDefault, kEfficiency, kZero };
  CtaPolicy cta_policy = CtaPolicy::kDefault;
  int nvls_ctas = 0;  // blocks of collectives inside the NVLink switch; 0 = NCCL decides
  bool registers_memory = false;  // let NCCL access the tensors without copies
  bool splits = false;            // make communicators from one of all ranks
};

}  // namespace yoke
