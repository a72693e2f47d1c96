// Small helpers over the tensors of the contract; no LibTorch.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

inline YokeDataType data_type(int32_t dtype) {
  return {static_cast<uint8_t>(dtype >> 8), static_cast<uint8_t>(dtype & 0xff), 1};
}
inline int64_t item_size(int32_t dtype) {
  return (dtype & 0xff) / 8;
}

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

inline int64_t numel(const int64_t* shape, int32_t ndim) {
  int64_t n = 1;
  for (int32_t i = 0; i < ndim; ++i) n *= shape[i];
  return n;
}
inline int64_t numel(const YokeTensor& t) {
  return numel(t.shape, t.ndim);
}

template <class T>
T* data(const YokeTensor& t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
}

// A copy of a struct that grows, to be changed and handed on; what this side does not know is cut
// off.
template <class T>
T copied(const T& from) {
  T copy{};
  const uint32_t size = from.header.struct_size < sizeof(T) ? from.header.struct_size : sizeof(T);
  std::memcpy(static_cast<void*>(&copy), static_cast<const void*>(&from), size);
  copy.header.struct_size = size;
  return copy;
}

// A contiguous range of `count` elements that may be written. Borrows its memory.
struct Span {
  void* data = nullptr;
  int64_t count = 0;
  int32_t dtype = YOKE_F32;

  void* at(int64_t i) const { return static_cast<char*>(data) + i * item_size(dtype); }
  Span sub(int64_t begin, int64_t n) const { return {at(begin), n, dtype}; }
  int64_t bytes() const { return count * item_size(dtype); }
};

// A contiguous range of `count` elements that is only read. A Span converts to it; there is no way
// back, so a function that takes both cannot be called with a constant range as its output.
struct ConstSpan {
  const void* data = nullptr;
  int64_t count = 0;
  int32_t dtype = YOKE_F32;

  ConstSpan() = default;
  ConstSpan(const void* data_, int64_t count_, int32_t dtype_)
      : data(data_), count(count_), dtype(dtype_) {}
  ConstSpan(const Span& span) : ConstSpan(span.data, span.count, span.dtype) {}

  const void* at(int64_t i) const { return static_cast<const char*>(data) + i * item_size(dtype); }
  ConstSpan sub(int64_t begin, int64_t n) const { return {at(begin), n, dtype}; }
  int64_t bytes() const { return count * item_size(dtype); }
};

// A compact one-dimensional view of count elements at data; borrows data, owns only its shape.
class FlatView {
 public:
  FlatView(void* data, int64_t count, int32_t dtype, YokeDevice device = {YOKE_DEVICE_CPU, 0})
      : count_(count) {
    tensor_.data = data;
    tensor_.device = device;
    tensor_.ndim = 1;
    tensor_.dtype = data_type(dtype);
    tensor_.shape = &count_;
  }
  explicit FlatView(const Span& span) : FlatView(span.data, span.count, span.dtype) {}
  // DLPack has no const, so the view of a ConstSpan is passed only where the callee reads.
  FlatView(const ConstSpan& span, YokeDevice device)
      : FlatView(const_cast<void*>(span.data), span.count, span.dtype, device) {}
  FlatView(const FlatView&) = delete;
  FlatView& operator=(const FlatView&) = delete;
  const YokeTensor* get() const { return &tensor_; }

 private:
  int64_t count_;
  YokeTensor tensor_{};
};

// weight: its targets; 0 = not told.
inline YokeMicroBatch micro_batch(const YokeInput* inputs, uint64_t count, double weight = 0) {
  return {YOKE_HEADER(YokeMicroBatch, YOKE_ID_MICRO_BATCH), inputs, count, weight};
}

struct ManagedDeleter {
  void operator()(YokeManagedTensor* t) const {
    if (t != nullptr && t->deleter != nullptr) t->deleter(t);
  }
};
using ManagedTensor = std::unique_ptr<YokeManagedTensor, ManagedDeleter>;

}  // namespace yoke
