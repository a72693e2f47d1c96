// Tensors of the contract in C++: dtypes, sizes, ranges of elements, and ownership. Does not
// need LibTorch.
//
//   Span, ConstSpan    a contiguous range of elements, writable or read-only
//   FlatView           a range as a tensor of the contract, to pass to the host
//   ManagedTensor      a tensor received from the host, freed when it goes out of scope
//
// All functions are local and may be called from any thread. Memory is borrowed, except for that of
// a ManagedTensor. Shapes and strides count elements; sizes in bytes have "bytes" in their name.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

// ---- Dtypes and sizes ----

// Returns the contract's data type for a dtype number such as YOKE_F32. YOKE_DTYPE_OF is the
// inverse.
inline YokeDataType data_type(int32_t dtype) {
  return {static_cast<uint8_t>(dtype >> 8), static_cast<uint8_t>(dtype & 0xff), 1};
}
// Returns the size in bytes of one element of a dtype. The dtype number contains the size in bits,
// which is a multiple of 8 for all dtypes of the contract.
inline int64_t item_size(int32_t dtype) {
  return (dtype & 0xff) / 8;
}

// Returns the name of a dtype in run files and messages, "fp32" for YOKE_F32. The text is a
// literal. Never fails: an unknown number gives "unknown dtype".
inline const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case YOKE_F64:
      return "fp64";
    case YOKE_F32:
      return "fp32";
    case YOKE_BF16:
      return "bf16";
    case YOKE_F16:
      return "fp16";
    case YOKE_I64:
      return "int64";
    case YOKE_I32:
      return "int32";
    case YOKE_U8:
      return "uint8";
    default:
      return "unknown dtype";
  }
}

// Return the number of elements of a shape or a tensor; 1 for a scalar.
inline int64_t numel(const int64_t* shape, int32_t ndim) {
  int64_t n = 1;
  for (int32_t i = 0; i < ndim; ++i) n *= shape[i];
  return n;
}
// Strides are ignored, because elements are counted, not memory.
inline int64_t numel(const YokeTensor& t) {
  return numel(t.shape, t.ndim);
}

// Returns the address of the first element. T must fit the dtype; it is not checked.
template <class T>
T* data(const YokeTensor& t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
}

// Returns a copy of a struct of the contract, to be changed and passed on. struct_size becomes the
// smaller of the source's size and sizeof(T): fields that only one side has are left out. The copy
// shares everything that the struct points to, including header.next.
//
// After plain assignment the copy would keep the struct_size of the source, which may be larger
// than T, and the next reader would look for fields past the end of the copy.
template <class T>
T copied(const T& from) {
  T copy{};
  const uint32_t size = from.header.struct_size < sizeof(T) ? from.header.struct_size : sizeof(T);
  std::memcpy(static_cast<void*>(&copy), static_cast<const void*>(&from), size);
  copy.header.struct_size = size;
  return copy;
}

// ---- Ranges of elements ----

// A contiguous range of elements that may be written. Borrows its memory. The default range is
// empty.
struct Span {
  void* data = nullptr;  // first element
  int64_t count = 0;     // number of elements
  int32_t dtype = YOKE_F32;

  // Returns the address of element i. Indices are not checked, here and below.
  void* at(int64_t i) const { return static_cast<char*>(data) + i * item_size(dtype); }
  // Returns the range of n elements that starts at element `begin`.
  Span sub(int64_t begin, int64_t n) const { return {at(begin), n, dtype}; }
  // Returns the size of the range in bytes.
  int64_t bytes() const { return count * item_size(dtype); }
};

// A contiguous range of elements that is only read. A Span converts to a ConstSpan but not the
// reverse, so a ConstSpan cannot be passed as the output of a function.
struct ConstSpan {
  const void* data = nullptr;  // first element
  int64_t count = 0;           // number of elements
  int32_t dtype = YOKE_F32;

  ConstSpan() = default;
  // Borrows `count_` elements of `dtype_` at `data_`.
  ConstSpan(const void* data_, int64_t count_, int32_t dtype_)
      : data(data_), count(count_), dtype(dtype_) {}
  // Implicit, because a writable range may also be read.
  ConstSpan(const Span& span) : ConstSpan(span.data, span.count, span.dtype) {}

  // See Span.
  const void* at(int64_t i) const { return static_cast<const char*>(data) + i * item_size(dtype); }
  ConstSpan sub(int64_t begin, int64_t n) const { return {at(begin), n, dtype}; }
  int64_t bytes() const { return count * item_size(dtype); }
};

// A compact tensor of the contract with one dimension, over borrowed memory. It owns only its
// shape, to which the tensor points. Therefore it can be neither copied nor moved, and must outlive
// every use of get().
class FlatView {
 public:
  // Views `count` elements of `dtype` at `data`, memory of `device`.
  FlatView(void* data, int64_t count, int32_t dtype, YokeDevice device = {YOKE_DEVICE_CPU, 0})
      : count_(count) {
    tensor_.data = data;
    tensor_.device = device;
    tensor_.ndim = 1;
    tensor_.dtype = data_type(dtype);
    tensor_.shape = &count_;
  }
  // Views a range in memory of the CPU.
  explicit FlatView(const Span& span) : FlatView(span.data, span.count, span.dtype) {}
  // Views a range in memory of `device`. DLPack has no const: pass the view of a ConstSpan only to
  // a function that does not write.
  FlatView(const ConstSpan& span, YokeDevice device)
      : FlatView(const_cast<void*>(span.data), span.count, span.dtype, device) {}
  // A copy would point to the shape of the original.
  FlatView(const FlatView&) = delete;
  FlatView& operator=(const FlatView&) = delete;
  // Returns the tensor, which is valid for as long as this object lives.
  const YokeTensor* get() const { return &tensor_; }

 private:
  int64_t count_;
  YokeTensor tensor_{};
};

// ---- Structs of the contract ----

// Returns a micro-batch of the contract over `count` inputs, which it borrows. weight: number of
// targets, 0 = unknown.
inline YokeMicroBatch micro_batch(const YokeInput* inputs, uint64_t count, double weight = 0) {
  return {YOKE_HEADER(YokeMicroBatch, YOKE_ID_MICRO_BATCH), inputs, count, weight};
}

// ---- Ownership ----

// Owns a YokeManagedTensor of the contract and calls its deleter once, when it is destroyed. For
// results of block_forward and block_backward.
struct ManagedDeleter {
  void operator()(YokeManagedTensor* t) const {
    if (t != nullptr && t->deleter != nullptr) t->deleter(t);
  }
};
// Pass &t->tensor to functions that borrow, and t.release() to those that take the ownership:
//
//   yoke::ManagedTensor carry(result.carry_out);
//   args.carry_in = &carry->tensor;
using ManagedTensor = std::unique_ptr<YokeManagedTensor, ManagedDeleter>;

}  // namespace yoke
