// Elements of tensors as the kernels read and write them, up to 16 bytes with one access: the
// kernels of this folder do little arithmetic, so they are as fast as their accesses to memory.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/cuda/host_device.hpp"

namespace yoke {

// How the threads of a device share an operation; see kernels.hpp.
enum class Kind { kElements, kRows, kReductions, kPasses };

// The type in which a kernel computes with elements of type T.
template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <class T>
using Wide = typename WideOf<T>::type;

constexpr int kAccessBytes = 16;  // the widest access to memory of one thread

// Neighbouring elements.
template <class T, int n>
struct alignas(n * sizeof(T) < kAccessBytes ? n * sizeof(T) : kAccessBytes) Pack {
  T v[n];
};

// The number of elements that one access moves.
template <class T>
constexpr int kPack = kAccessBytes / static_cast<int>(sizeof(T));

template <int n, class T>
YOKE_HOST_DEVICE Pack<T, n> load(const T* from) {
  return *reinterpret_cast<const Pack<T, n>*>(from);
}

template <class T, int n>
YOKE_HOST_DEVICE void store(const Pack<T, n>& pack, T* to) {
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// Returns whether all addresses are multiples of the widest access.
inline bool are_aligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % kAccessBytes != 0) return false;
  }
  return true;
}

// Rows of `columns` elements whose beginnings are `stride` elements apart.
struct StridedRows {
  int64_t columns, stride;

  // Returns the offset of element i of all rows. Most tensors are small enough for a division of
  // 32 bits, which is faster.
  YOKE_HOST_DEVICE int64_t at(int64_t i) const {
    if (stride == columns) return i;
    if ((i | columns) <= UINT32_MAX) {
      const auto n = static_cast<uint32_t>(i), width = static_cast<uint32_t>(columns);
      return int64_t{n / width} * stride + n % width;
    }
    return i / columns * stride + i % columns;
  }
  template <class T>
  bool takes_packs() const {
    return stride == columns || (stride % kPack<T> == 0 && columns % kPack<T> == 0);
  }
};

// The part of a sum that one thread has added up.
template <class W>
struct ThreadSum {
  W value = 0;
  YOKE_HOST_DEVICE ThreadSum merged(const ThreadSum& other) const { return {value + other.value}; }
};

}  // namespace yoke
