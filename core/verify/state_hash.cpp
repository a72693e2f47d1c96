// Each element contributes a mix of its bits and its index in the whole tensor, and the
// contributions are added up. Mixing makes the sum depend on the position of each value, and adding
// makes it independent of how the tensor is cut into pieces and of their order. An ordinary hash of
// the bytes, such as CRC, depends on both: comparing two layouts with it would require gathering
// whole tensors.
#include "core/verify/state_hash.hpp"

#include <algorithm>

#include "core/base/mix.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Hashes `count` elements that lie next to each other, from index `begin` of the tensor.
template <class Bits>
uint64_t hash_span(const Bits* bits, int64_t begin, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += mix64(uint64_t{bits[i]} ^ static_cast<uint64_t>(begin + i + 1) * 0x9E3779B97F4A7C15ull);
  }
  return sum;
}

template <class Bits>
uint64_t hash(const YokePiece& piece) {
  const auto* bits = data<const Bits>(*piece.view);
  uint64_t sum = 0;
  int64_t begin = piece.begin;
  for (int64_t done = 0; done < piece.count; done += piece.run, begin += piece.stride)
    sum += hash_span(bits + done, begin, std::min(piece.run, piece.count - done));
  return sum;
}

}  // namespace

uint64_t state_hash(const YokePiece& piece) {
  switch (piece.view->dtype.bits) {
    case 8:
      return hash<uint8_t>(piece);
    case 16:
      return hash<uint16_t>(piece);
    case 32:
      return hash<uint32_t>(piece);
    case 64:
      return hash<uint64_t>(piece);
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("a piece of state with elements of ", piece.view->dtype.bits, " bits") +
                      "; allowed: 8, 16, 32, 64");
  }
}

}  // namespace yoke
