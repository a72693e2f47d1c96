#include "core/checkpoint/pieces.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/checkpoint/shapes.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

[[noreturn]] void refuse(const std::string& subject, const std::string& reason) {
  throw Error(YOKE_INTERNAL, subject + ": " + reason + "; this is a defect of the backend");
}

// The stored name is "<name>.<kind>"; 32 bytes of the limit are reserved for the kind.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTensorName - 32 &&
         std::none_of(
             name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

bool is_kind(std::string_view kind) {
  return !kind.empty() && kind.size() < 32 && std::all_of(kind.begin(), kind.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool is_compact(const YokeTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

}  // namespace

StoredTensor tensor_of(const YokePiece& piece) {
  if (piece.header.struct_id != YOKE_ID_PIECE || !YOKE_HAS(YokePiece, &piece, view)) {
    refuse(
        "a piece of state",
        concat(
            "it has struct_id ", piece.header.struct_id, " and size ", piece.header.struct_size));
  }
  StoredTensor tensor;
  tensor.name = view(piece.name);
  tensor.kind = view(piece.kind);
  tensor.dtype = piece.dtype;
  if (!is_name(tensor.name) || !is_kind(tensor.kind))
    refuse(tensor.describe(), "the name or the kind is not allowed");
  safetensors_dtype(piece.dtype);  // throws if the format has no such dtype
  if (piece.ndim < 0 || piece.ndim > static_cast<int32_t>(kMaxTensorDims)) {
    refuse(tensor.describe(), concat("it has ", piece.ndim, " dims; allowed: 0 to 8"));
  }
  tensor.shape.assign(piece.shape, piece.shape + piece.ndim);
  uint64_t bytes = 0;
  if (!tensor_bytes(tensor.shape, tensor.dtype, &bytes)) {
    refuse(tensor.describe(), "the shape " + shape_text(tensor.shape) + " is impossible");
  }
  const StridedSpan span{piece.begin, piece.count, piece.run, piece.stride};
  if (const std::string fault = span.fault(tensor.numel()); !fault.empty())
    refuse(tensor.describe(), fault);
  return tensor;
}

StridedSpan span_of(const YokePiece& piece) {
  return StridedSpan{piece.begin, piece.count, piece.run, piece.stride}.joined();
}

void require_same(const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype == b.dtype && a.shape == b.shape) return;
  refuse(a.describe(),
         concat("its pieces disagree: ",
                dtype_name(a.dtype),
                " ",
                shape_text(a.shape),
                " and ",
                dtype_name(b.dtype),
                " ",
                shape_text(b.shape)));
}

char* data_of(const YokePiece& piece, int32_t dtype) {
  const std::string subject = "tensor '" + std::string(view(piece.name)) + "'";
  if (piece.view == nullptr) refuse(subject, "the piece has no view");
  const YokeTensor& t = *piece.view;
  if (t.device.type != YOKE_DEVICE_CPU && t.device.type != YOKE_DEVICE_CUDA_HOST) {
    refuse(subject, concat("the view is not in host memory (device type ", t.device.type, ")"));
  }
  if (YOKE_DTYPE_OF(t.dtype) != dtype || numel(t) != piece.count || !is_compact(t)) {
    refuse(
        subject,
        concat("the view does not have ", piece.count, " compact elements of ", dtype_name(dtype)));
  }
  return data<char>(t);
}

}  // namespace yoke
