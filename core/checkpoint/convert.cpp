// State is kept in fp32 or fp64, but it arrives and leaves in other dtypes: a bf16 file of Hugging
// Face, a backend with bf16 parameters, a comparison that widens everything to fp64. The loops are
// scalar and work on bits, so they give the same result on every machine. The one subtle pair is
// fp64 -> bf16: see to_float_odd().

#include "core/checkpoint/convert.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "yoke/error.hpp"
#include "yoke/half.h"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

float to_float(Fp16 value) {
  return yoke_half_to_float(value.bits);
}

// Rounds to nearest even: adding just under half of the last kept bit, plus that bit itself,
// carries into it exactly when the value must be rounded up.
Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value))
    return {
        static_cast<uint16_t>((bits >> 16) | 0x40)};  // quiet NaN; truncating could give infinity
  const uint32_t half_and_tie = 0x7fff + ((bits >> 16) & 1);
  return {static_cast<uint16_t>((bits + half_and_tie) >> 16)};
}

// Rounding to fp32 and then to bf16 would round twice, which may give a different result from
// rounding once. "Round to odd" avoids that: it truncates to fp32 and, if bits are lost, sets the
// last bit. The second rounding then cannot mistake the value for a tie.
float to_float_odd(double value) {
  auto near = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(near) == value) return near;
  if (std::fabs(static_cast<double>(near)) > std::fabs(value)) near = std::nextafter(near, 0.0F);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(near) | 1U);
}

void assign(float value, double& out) {
  out = value;
}
void assign(double value, float& out) {
  out = static_cast<float>(value);
}
void assign(Bf16 value, float& out) {
  out = to_float(value);
}
void assign(Bf16 value, double& out) {
  out = to_float(value);
}
void assign(Fp16 value, float& out) {
  out = to_float(value);
}
void assign(Fp16 value, double& out) {
  out = to_float(value);
}
void assign(float value, Bf16& out) {
  out = to_bf16(value);
}
void assign(double value, Bf16& out) {
  out = to_bf16(to_float_odd(value));
}

template <class From, class To>
void loop(const void* src, void* dst, int64_t count) {
  const auto* in = static_cast<const char*>(src);
  auto* out = static_cast<char*>(dst);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    To result;
    std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    assign(value, result);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(To)), &result, sizeof(To));
  }
}

using Loop = void (*)(const void*, void*, int64_t);

Loop find_loop(int32_t from, int32_t to) {
  if (from == YOKE_F32 && to == YOKE_F64) return loop<float, double>;
  if (from == YOKE_F64 && to == YOKE_F32) return loop<double, float>;
  if (from == YOKE_BF16 && to == YOKE_F32) return loop<Bf16, float>;
  if (from == YOKE_BF16 && to == YOKE_F64) return loop<Bf16, double>;
  if (from == YOKE_F16 && to == YOKE_F32) return loop<Fp16, float>;
  if (from == YOKE_F16 && to == YOKE_F64) return loop<Fp16, double>;
  if (from == YOKE_F32 && to == YOKE_BF16) return loop<float, Bf16>;
  if (from == YOKE_F64 && to == YOKE_BF16) return loop<double, Bf16>;
  return nullptr;
}

}  // namespace

bool can_convert(int32_t from, int32_t to) {
  return from == to || find_loop(from, to) != nullptr;
}

void convert(const void* src, int32_t from, void* dst, int32_t to, int64_t count) {
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(count * item_size(from)));
    return;
  }
  const Loop copy = find_loop(from, to);
  if (copy == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                std::string("cannot convert ") + dtype_name(from) + " to " + dtype_name(to) +
                    "; fp64, fp32 and bf16 can be, and fp16 to fp32 and fp64");
  }
  copy(src, dst, count);
}

}  // namespace yoke
