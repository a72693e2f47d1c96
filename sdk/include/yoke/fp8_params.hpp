// This header says which parameters of a model are used by matrix products in fp8. A backend can
// move such parameters between ranks as fp8 numbers, and can let products keep rounded weights
// during a step. The header itself does not need LibTorch.
//
// A product with one scale for a whole parameter rounds the parameter p, whose largest element in
// absolute value is amax, to the e4m3 numbers q = cast(p, scale(amax)). The scale is a power of
// two, so the numbers q / scale are exact in every compute type, and a product that rounds them
// again leaves them as they are. A backend may therefore replace p by q / scale without changing
// the result of any product.
#pragma once

#include <cstdint>

#include "yoke/parallel_backend.h"
#include "yoke/tensor.hpp"

namespace at {
class Tensor;
}

namespace yoke {

enum class Fp8Use : uint8_t {
  kNone,        // something other than products in fp8 uses the parameter
  kOneScale,    // only products use it, with one e4m3 scale for all of its elements
  kManyScales,  // only products use it, with other scales
};

inline constexpr uint32_t kFp8ParamsId = 65;  // a struct id that the contract does not use

// An extension of YokeModelSummary, filled in by a host whose model has products in fp8. Lives as
// long as the summary.
struct Fp8Params {
  YokeHeader header;   // id kFp8ParamsId
  const Fp8Use* uses;  // use of each parameter of the summary
  // These functions do not wait for a device. Call scale and cast only if the host has attached a
  // TorchModel (yoke/torch.hpp), because their tensors are LibTorch objects.
  //
  // Returns the scale of a parameter with this largest absolute value, in fp32 and in the shape of
  // `amax`. It is NaN for NaN, and 0 for infinity.
  at::Tensor (*scale)(const at::Tensor& amax);
  // Returns the e4m3 numbers of some elements of a parameter in its compute type. scale: a tensor
  // of one element. NaN remains NaN.
  at::Tensor (*cast)(const at::Tensor& values, const at::Tensor& scale);
  // Makes products on this thread keep the rounded numbers of weights until the call with false,
  // which frees them. Use KeptRoundings below: the field was appended, and may be absent.
  void (*keep_roundings)(bool keep);
};

// A kept weight needs at most this many bytes for each element, without its scales: one for the
// product in the forward, and one for the product that gives the gradient of the input.
inline constexpr int64_t kKeptRoundingBytes = 2;

// Returns the extension of a summary; NULL if no parameter is multiplied in fp8.
inline const Fp8Params* fp8_params(const YokeModelSummary& summary) {
  for (const YokeHeader* h = summary.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == kFp8ParamsId) return reinterpret_cast<const Fp8Params*>(h);
  }
  return nullptr;
}

// Returns the bytes that a rank needs to keep the rounded numbers of all parameters that only
// products in fp8 use; 0 if there are none. A tied head is rounded as well, but does not count.
inline int64_t kept_rounding_bytes(const YokeModelSummary& summary) {
  const Fp8Params* const fp8 = fp8_params(summary);
  int64_t elements = 0;
  for (uint64_t p = 0; fp8 != nullptr && p < summary.num_params; ++p) {
    const YokeParameter& param = *summary.params[p];
    if (fp8->uses[p] != Fp8Use::kNone) elements += numel(param.shape, param.ndim);
  }
  return elements * kKeptRoundingBytes;
}

// While an object of this class exists, products on the thread that constructed it round each
// weight once and keep its numbers, instead of rounding it at every use. A backend makes one for a
// step of several micro-batches, if its parameters are whole and do not change between two products
// in the scope. It changes no result, and does nothing if nothing is multiplied in fp8.
class KeptRoundings {
 public:
  // keep: false = do nothing.
  KeptRoundings(const Fp8Params* fp8, bool keep)
      : keep_(keep && fp8 != nullptr && YOKE_HAS(Fp8Params, fp8, keep_roundings)
                  ? fp8->keep_roundings
                  : nullptr) {
    if (keep_ != nullptr) keep_(true);
  }
  ~KeptRoundings() {
    if (keep_ != nullptr) keep_(false);
  }
  KeptRoundings(const KeptRoundings&) = delete;
  KeptRoundings& operator=(const KeptRoundings&) = delete;

 private:
  void (*const keep_)(bool keep);
};

}  // namespace yoke
