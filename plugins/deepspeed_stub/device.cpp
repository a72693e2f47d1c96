// Chooses the kernel for a pair of dtypes. The kernels are typed and the spans are not, so this
// file is where a mismatch of dtypes or lengths becomes an error instead of a wrong result.
#include "plugins/deepspeed_stub/device.hpp"

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Returns one number for two dtypes, for use in a switch.
constexpr int64_t pair(int32_t from, int32_t to) {
  return int64_t{from} << 32 | to;
}

const Platform& platform_of(const YokeDevice& device) {
  if (device.type == YOKE_DEVICE_CPU) return cpu_platform();
  if (device.type == YOKE_DEVICE_CUDA && cuda_platform() != nullptr) return *cuda_platform();
  throw Error(YOKE_UNIMPLEMENTED,
              device.type == YOKE_DEVICE_CUDA
                  ? "this deepspeed_stub was built without CUDA; set device = \"cpu\", or build it "
                    "on a machine that has nvcc"
                  : concat("deepspeed_stub runs on the CPU and on CUDA devices, not on devices of "
                           "type ",
                           device.type));
}

[[noreturn]] void unknown(const char* what, const ConstSpan& from, const Span& to) {
  throw Error(YOKE_INTERNAL,
              concat("there is no kernel for the ",
                     what,
                     " of ",
                     dtype_name(from.dtype),
                     " and ",
                     dtype_name(to.dtype)));
}

Rows one_row(const char* what, const ConstSpan& a, const Span& b) {
  if (a.count == b.count) return deepspeed_stub::one_row(a.count);
  throw Error(YOKE_INTERNAL,
              concat("the ",
                     what,
                     " of two arrays needs equal lengths, but they have ",
                     a.count,
                     " and ",
                     b.count,
                     " elements"));
}

}  // namespace

Device::Device(const YokeDevice& id, void* stream)
    : platform_(platform_of(id)),
      kernels_(platform_.kernels()),
      id_(id),
      queue_(platform_.open(id, stream)) {}

Device::~Device() {
  platform_.close(queue_);
}

void Device::upload(const void* host, const Span& to) const {
  platform_.upload(queue_, host, to.data, to.bytes());
}

void Device::download(const Span& from, void* host) const {
  platform_.download(queue_, from.data, host, from.bytes());
}

void Device::issue_upload(const void* host, const Span& to) const {
  platform_.issue_upload(queue_, host, to.data, to.bytes());
}

void Device::issue_download(const Span& from, void* host) const {
  platform_.issue_download(queue_, from.data, host, from.bytes());
}

Device::Mark::Mark(const Device& device)
    : mark_(device.platform_.mark(device.queue_), Drop{&device}) {}

void Device::Mark::await() {
  if (mark_ == nullptr) return;
  const Device& device = *mark_.get_deleter().device;
  device.platform_.await(device.queue_, mark_.release());
}

void Device::copy(const ConstSpan& from, const Span& to) const {
  if (from.data == to.data && from.dtype == to.dtype) return;
  copy_rows(from, to, one_row("copy", from, to));
}

void Device::add(const Span& x, const Span& sum) const {
  add_rows(x, sum, one_row("sum", x, sum));
}

void Device::copy_rows(const ConstSpan& from, const Span& to, const Rows& rows) const {
  const Kernels& k = kernels_;
  const auto run = [&]<class From, class To>(RowKernel<From, To> kernel) {
    kernel(queue_, rows, static_cast<const From*>(from.data), static_cast<To*>(to.data));
  };
  if (rows.total == 0) return;
  // If the dtypes are equal, the size of an element determines the kernel.
  if (from.dtype == to.dtype) {
    const int64_t item = item_size(from.dtype);
    return item == 2 ? run(k.copy_2) : item == 4 ? run(k.copy_4) : run(k.copy_8);
  }
  switch (pair(from.dtype, to.dtype)) {
    case pair(YOKE_F32, YOKE_BF16):
      return run(k.fp32_to_bf16);
    case pair(YOKE_BF16, YOKE_F32):
      return run(k.bf16_to_fp32);
    case pair(YOKE_F32, YOKE_F16):
      return run(k.fp32_to_fp16);
    case pair(YOKE_F16, YOKE_F32):
      return run(k.fp16_to_fp32);
    case pair(YOKE_F32, YOKE_F64):
      return run(k.fp32_to_fp64);
    default:
      unknown("copy", from, to);
  }
}

void Device::add_rows(const Span& x, const Span& sum, const Rows& rows) const {
  const Kernels& k = kernels_;
  const auto run = [&]<class From, class To>(RowKernel<From, To> kernel) {
    kernel(queue_, rows, static_cast<const From*>(x.data), static_cast<To*>(sum.data));
  };
  if (rows.total == 0) return;
  switch (pair(x.dtype, sum.dtype)) {
    case pair(YOKE_F32, YOKE_F32):
      return run(k.add_fp32);
    case pair(YOKE_F64, YOKE_F64):
      return run(k.add_fp64);
    case pair(YOKE_BF16, YOKE_BF16):
      return run(k.add_bf16);
    case pair(YOKE_BF16, YOKE_F32):
      return run(k.add_bf16_to_fp32);
    case pair(YOKE_F16, YOKE_F16):
      return run(k.add_fp16);
    case pair(YOKE_F16, YOKE_F32):
      return run(k.add_fp16_to_fp32);
    default:
      unknown("sum", x, sum);
  }
}

void Device::squared_norm(const Span& x, double* sum) const {
  const auto run = [&]<class T>(NormKernel<T> kernel) {
    kernel(queue_, x.count, static_cast<const T*>(x.data), sum);
  };
  switch (x.dtype) {
    case YOKE_F32:
      return run(kernels_.squared_norm_fp32);
    case YOKE_F64:
      return run(kernels_.squared_norm_fp64);
    case YOKE_BF16:
      return run(kernels_.squared_norm_bf16);
    case YOKE_F16:
      return run(kernels_.squared_norm_fp16);
    default:
      unknown("norm", x, x);
  }
}

}  // namespace yoke::deepspeed_stub
