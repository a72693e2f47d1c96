// Products are observed where LibTorch dispatches them: every kind of them ends there, on plain and
// on distributed tensors, in the forward and in the backward, in every backend. Timers in each
// operator were rejected, because autograd computes some of the gradients without them.
#include "core/kernels/product_meter.hpp"

#include <ATen/ATen.h>

#include <memory>
#include <string_view>

namespace yoke::ops {
namespace {

using Clock = std::chrono::steady_clock;

thread_local ProductMeter* meter = nullptr;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Begin final : at::ObserverContext {
  Clock::time_point at = Clock::now();
};

// None of these operators calls another one of them.
bool is_product(std::string_view name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::_scaled_mm";
}

std::unique_ptr<at::ObserverContext> begin_of(const at::RecordFunction& call) {
  return is_product(call.name()) ? std::make_unique<Begin>() : nullptr;
}

void end_of(const at::RecordFunction&, at::ObserverContext* begin) {
  if (begin != nullptr && meter != nullptr)
    meter->add_product(seconds_since(static_cast<Begin*>(begin)->at));
}

// Returns the bits of the largest number of a format, without the sign.
int64_t largest_bits(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? 0x7b : 0x7e;
}

}  // namespace

ProductMeter::ProductMeter()
    : observer_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(begin_of, end_of).scopes({at::RecordScope::FUNCTION}))) {
  meter = this;
}

ProductMeter::~ProductMeter() {
  at::removeCallback(observer_);
  meter = nullptr;
}

ProductMeter* ProductMeter::current() {
  return meter;
}

double ProductMeter::seconds() const {
  return seconds_since(begin_);
}

std::optional<RoundedNumbers> ProductMeter::rounded() const {
  if (distributed_) return std::nullopt;
  if (!sums_.defined()) return RoundedNumbers{};
  const at::Tensor sums = sums_.cpu();
  return RoundedNumbers{all_, sums[0].item<int64_t>(), sums[1].item<int64_t>()};
}

// The sums stay on the device, so that counting does not wait for it. The time that counting takes
// is not part of the rounding around it.
void ProductMeter::count(const at::Tensor& matrix, const at::Tensor& rounded) {
  if (!matrix.has_storage()) {
    distributed_ = true;
    return;
  }
  const Clock::time_point begin = Clock::now();
  const at::NoGradGuard no_grad;
  if (!sums_.defined()) sums_ = at::zeros({2}, matrix.options().dtype(at::kLong));
  const at::Tensor sizes = rounded.view(at::kByte).bitwise_and(0x7f);
  const at::Tensor zeroed = at::count_nonzero(matrix) - at::count_nonzero(sizes);
  sums_.add_(at::stack({sizes.eq(largest_bits(rounded.scalar_type())).sum(), zeroed}));
  all_ += matrix.numel();
  rounding_seconds_ -= seconds_since(begin);
}

}  // namespace yoke::ops
