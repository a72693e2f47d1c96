#include "plugins/validate/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

bool is_compact(const YokeTensor& t) {
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; t.strides != nullptr && d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

// Mixes every bit of a number into every bit of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t element(const char* data, int64_t index, int64_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, data + index * bytes, static_cast<size_t>(bytes));
  return bits;
}

// The exponent bits of a 16-bit float; all of them are 1 in an infinity and in NaN.
constexpr uint16_t kHalfExponent = 0x7c00, kBfloatExponent = 0x7f80;

}  // namespace

bool is_known_dtype(int32_t dtype) {
  constexpr int32_t kDtypes[] = {
      YOKE_I32, YOKE_I64, YOKE_U8, YOKE_F16, YOKE_F32, YOKE_F64, YOKE_BF16};
  return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) != std::end(kDtypes);
}

bool is_float(int32_t dtype) {
  return is_known_dtype(dtype) && dtype != YOKE_I32 && dtype != YOKE_I64 && dtype != YOKE_U8;
}

std::string shape_text(int32_t dtype, const int64_t* shape, int32_t ndim) {
  std::string text = std::string(dtype_name(dtype)) + " [";
  for (int32_t d = 0; d < ndim; ++d) text += concat(d > 0 ? ", " : "", shape[d]);
  return text + "]";
}

std::string shape_text(const YokeTensor& t) {
  return shape_text(YOKE_DTYPE_OF(t.dtype), t.shape, t.ndim);
}

std::string tensor_fault(const char* what, const YokeTensor* tensor, const YokeDevice& device) {
  if (tensor == nullptr) return concat(what, " is NULL");
  const YokeTensor& t = *tensor;
  if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr))
    return concat(what, " has ndim ", t.ndim, t.ndim > 0 ? " and no shape" : "");
  if (!is_known_dtype(YOKE_DTYPE_OF(t.dtype)) || t.dtype.lanes != 1)
    return concat(what, " has the dtype ", string_printf("0x%x", YOKE_DTYPE_OF(t.dtype)));
  if (!is_compact(t)) return concat(what, " is not compact");
  if (t.data == nullptr && numel(t) > 0) return concat(what, " has no memory");
  if (t.device.type != device.type || t.device.id != device.id)
    return concat(what, " is on device ", t.device.type, ":", t.device.id);
  return "";
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  return mix(hash * 0x9E3779B97F4A7C15ull + value);
}

int64_t bytes_of(const YokeTensor& t) {
  return numel(t) * item_size(YOKE_DTYPE_OF(t.dtype));
}

uint64_t hash_of(const void* memory, int64_t size) {
  const auto* bytes = static_cast<const char*>(memory);
  uint64_t hash = static_cast<uint64_t>(size);
  int64_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + at, sizeof word);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  for (; at < size; ++at) hash = (hash ^ static_cast<unsigned char>(bytes[at])) * 0x100000001b3ull;
  return hash;
}

uint64_t hash_of_piece(const YokePiece& piece) {
  const auto* bytes = data<const char>(*piece.view);
  const int64_t size = item_size(piece.dtype);
  uint64_t sum = 0;
  for (int64_t done = 0, begin = piece.begin; done < piece.count;
       done += piece.run, begin += piece.stride) {
    const int64_t count = std::min(piece.run, piece.count - done);
    for (int64_t i = 0; i < count; ++i)
      sum += mix(element(bytes, done + i, size) ^
                 static_cast<uint64_t>(begin + i + 1) * 0x9E3779B97F4A7C15ull);
  }
  return sum;
}

bool has_nonfinite(const YokeTensor& t) {
  const int64_t count = numel(t);
  const auto any = [&](auto* values, auto is_nonfinite) {
    return std::any_of(values, values + count, is_nonfinite);
  };
  const auto wide = [](auto value) { return !std::isfinite(value); };
  switch (YOKE_DTYPE_OF(t.dtype)) {
    case YOKE_F64:
      return any(data<const double>(t), wide);
    case YOKE_F32:
      return any(data<const float>(t), wide);
    case YOKE_F16:
      return any(data<const uint16_t>(t),
                 [](uint16_t bits) { return (bits & kHalfExponent) == kHalfExponent; });
    case YOKE_BF16:
      return any(data<const uint16_t>(t),
                 [](uint16_t bits) { return (bits & kBfloatExponent) == kBfloatExponent; });
    default:
      return false;
  }
}

}  // namespace yoke::validate
