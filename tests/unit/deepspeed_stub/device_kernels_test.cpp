// Compares the kernels of a CUDA device with those of the CPU: for every dtype, for rows, and for
// sizes and alignments that leave a remainder at either end. Memory before and after every result
// must not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "plugins/deepspeed_stub/array.hpp"
#include "tests/unit/deepspeed_stub/tested_host.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

// The bounds allow for a few roundings, as either side may fuse multiplications and additions.
constexpr double kFp32 = 1e-6, kFp64 = 1e-14;
constexpr int64_t kMargin = 20;  // elements past the end of each array, which must not change
constexpr int64_t kSizes[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 1000, 4099, 100003};

YokeHost cpu_host() {
  YokeHost host{};
  host.device = {YOKE_DEVICE_CPU, 0};
  return host;
}

class DeviceKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* why = TestedHost::missing()) GTEST_SKIP() << why;
    tested_ = std::make_unique<TestedHost>();
    device_ = std::make_unique<Device>(tested_->host());
  }

  // The same values on both devices, starting `offset` elements after an aligned address.
  struct Twins {
    Array cpu, cuda;
    int64_t offset, count;
    Span on_cpu() const { return cpu.sub(offset, count); }
    Span on_cuda() const { return cuda.sub(offset, count); }
  };
  Twins normal(int64_t count, int32_t dtype, double scale = 1, bool positive = false) {
    const auto offset = static_cast<int64_t>(random_() % 10), all = offset + count + kMargin;
    Array values(cpu_, all, YOKE_F32);
    std::normal_distribution<double> distribution;
    for (int64_t i = 0; i < all; ++i) {
      const double x = scale * distribution(random_);
      static_cast<float*>(values.span().data)[i] = static_cast<float>(positive ? std::fabs(x) : x);
    }
    Twins twins{Array(cpu_, all, dtype), Array(*device_, all, dtype), offset, count};
    cpu_.copy(values.span(), twins.cpu.span());
    device_->upload(twins.cpu.span().data, twins.cuda.span());
    return twins;
  }

  std::vector<char> downloaded(const Array& array) const {
    std::vector<char> bytes(array.bytes());
    device_->download(array.span(), bytes.data());
    return bytes;
  }
  void expect_equal(const Twins& twins, const std::string& what) const {
    const std::vector<char> theirs = downloaded(twins.cuda);
    ASSERT_EQ(std::memcmp(theirs.data(), twins.cpu.span().data, theirs.size()), 0) << what;
  }
  void expect_close(const Twins& twins, const std::string& what) const {
    Array bytes(cpu_, twins.cuda.span().count, twins.cuda.span().dtype);
    device_->download(twins.cuda.span(), bytes.span().data);
    const bool wide = bytes.span().dtype == YOKE_F64;
    const auto at = [&](const Span& span, int64_t i) {
      return wide ? *static_cast<double*>(span.at(i)) : *static_cast<float*>(span.at(i));
    };
    for (int64_t i = 0; i < bytes.span().count; ++i) {
      const double ours = at(twins.cpu.span(), i), bound = wide ? kFp64 : kFp32;
      ASSERT_NEAR(at(bytes.span(), i), ours, bound * (std::fabs(ours) + 1e-2)) << what << " " << i;
    }
  }

  struct Moments {
    int32_t master, gradient;
    int32_t copy;  // dtype of the copies; 0 = none
  };
  void compare_update(int32_t kind, int64_t count, const Moments& dtypes, int64_t update);
  double norm(const Device& device, const Span& x) const;

  const Device cpu_{cpu_host()};
  std::unique_ptr<TestedHost> tested_;
  std::unique_ptr<Device> device_;
  std::mt19937 random_{7};
};

std::string named(const char* what, int32_t from, int32_t to, int64_t count) {
  return std::string(what) + " of " + dtype_name(from) + " to " + dtype_name(to) + ", " +
         std::to_string(count) + " elements";
}

constexpr int32_t kCopies[][2] = {{YOKE_F32, YOKE_F32},
                                  {YOKE_F64, YOKE_F64},
                                  {YOKE_BF16, YOKE_BF16},
                                  {YOKE_F32, YOKE_BF16},
                                  {YOKE_BF16, YOKE_F32},
                                  {YOKE_F32, YOKE_F16},
                                  {YOKE_F16, YOKE_F32},
                                  {YOKE_F32, YOKE_F64}};
constexpr int32_t kSums[][2] = {{YOKE_F32, YOKE_F32},
                                {YOKE_F64, YOKE_F64},
                                {YOKE_BF16, YOKE_BF16},
                                {YOKE_BF16, YOKE_F32},
                                {YOKE_F16, YOKE_F16},
                                {YOKE_F16, YOKE_F32}};

TEST_F(DeviceKernels, CopiesAndCastsEqualTheCpus) {
  for (const auto& [from, to] : kCopies) {
    for (const int64_t count : kSizes) {
      for (int i = 0; i < 4; ++i) {
        const Twins x = normal(count, from), y = normal(count, to);
        cpu_.copy(x.on_cpu(), y.on_cpu());
        device_->copy(x.on_cuda(), y.on_cuda());
        expect_equal(y, named("copy", from, to, count));
      }
    }
  }
}

TEST_F(DeviceKernels, SumsEqualTheCpus) {
  for (const auto& [from, to] : kSums) {
    for (const int64_t count : kSizes) {
      for (int i = 0; i < 4; ++i) {
        const Twins x = normal(count, from), y = normal(count, to);
        cpu_.add(x.on_cpu(), y.on_cpu());
        device_->add(x.on_cuda(), y.on_cuda());
        expect_equal(y, named("sum", from, to, count));
      }
    }
  }
}

TEST_F(DeviceKernels, RowsEqualTheCpus) {
  for (const int64_t width : {1, 5, 8, 37, 600}) {
    for (const int64_t rows : {1, 2, 7}) {
      for (const int64_t gap : {0, 3, 8}) {
        const int64_t total = width * rows - width / 2;
        const Rows shape{total, width, width, width + gap};
        const Twins x = normal(total, YOKE_BF16), y = normal(rows * (width + gap), YOKE_F32);
        cpu_.copy_rows(x.on_cpu(), y.on_cpu(), shape);
        device_->copy_rows(x.on_cuda(), y.on_cuda(), shape);
        cpu_.add_rows(x.on_cpu(), y.on_cpu(), shape);
        device_->add_rows(x.on_cuda(), y.on_cuda(), shape);
        expect_equal(y, std::to_string(rows) + " rows of " + std::to_string(width));
      }
    }
  }
}

TEST_F(DeviceKernels, CastsKeepInfinityAndNaN) {
  const uint32_t special[] = {0x3f808000,
                              0x3f818000,
                              0x3f808001,
                              0x7f7fffff,
                              0x80000000,
                              0x00000001,
                              0x7f800000,
                              0xff800000,
                              0x7f800001,
                              0x7fc00000};
  for (const int32_t narrow : {YOKE_BF16, YOKE_F16}) {
    Twins x = normal(std::size(special), YOKE_F32), y = normal(std::size(special), narrow);
    std::memcpy(x.on_cpu().data, special, sizeof special);
    device_->upload(x.cpu.span().data, x.cuda.span());
    cpu_.copy(x.on_cpu(), y.on_cpu());
    device_->copy(x.on_cuda(), y.on_cuda());
    expect_equal(y, std::string("special values in ") + dtype_name(narrow));
  }
}

// Returns the constants of step 5 with weight decay.
YokeUpdate step_of(int32_t kind) {
  YokeOptimizer o{};
  o.kind = kind;
  o.beta1 = 0.9;
  o.beta2 = 0.95;
  o.eps = 1e-8;
  o.weight_decay = 0.1;
  return yoke_update_step(&o, 5, 3e-3, 1);
}

void DeviceKernels::compare_update(int32_t kind,
                                   int64_t count,
                                   const Moments& dtypes,
                                   int64_t update) {
  const Twins p = normal(count, dtypes.master), m = normal(count, dtypes.master, 1e-2),
              v = normal(count, dtypes.master, 1e-3, true), g = normal(count, dtypes.gradient, 0.1),
              copy = normal(count, dtypes.copy == 0 ? YOKE_BF16 : dtypes.copy);
  const YokeUpdate step = step_of(kind);
  const auto run = [&]<class Master, class Gradient, class Copy>(
                       const Device& device,
                       UpdateKernel<Master, Gradient, Copy> kernel,
                       Span (Twins::*side)() const) {
    const Array totals(device, sizeof(StepTotals) / sizeof(double), YOKE_F64);
    const StepTotals values{0, 0, 0, 0.37, update};
    device.upload(&values, totals.span());
    const auto master = [&](const Twins& t) { return static_cast<Master*>((t.*side)().data); };
    kernel(device.queue(),
           count,
           step,
           {master(p),
            master(m),
            kind == YOKE_LION ? nullptr : master(v),
            static_cast<const Gradient*>((g.*side)().data),
            dtypes.copy != 0 ? static_cast<Copy*>((copy.*side)().data) : nullptr},
           static_cast<const StepTotals*>(totals.span().data));
  };
  const auto run_both = [&](auto member) {
    run(cpu_, cpu_.kernels().*member, &Twins::on_cpu);
    run(*device_, device_->kernels().*member, &Twins::on_cuda);
  };
  if (dtypes.master == YOKE_F64) {
    run_both(&Kernels::update_fp64);
  } else if (dtypes.gradient == YOKE_F16) {
    run_both(&Kernels::update_fp16);
  } else if (dtypes.copy == YOKE_F16) {
    run_both(&Kernels::update_fp32_to_fp16);
  } else if (dtypes.gradient == YOKE_F32) {
    run_both(&Kernels::update_fp32);
  } else {
    run_both(&Kernels::update_bf16);
  }
  const std::string what =
      named("update", dtypes.gradient, dtypes.master, count) + " with kind " + std::to_string(kind);
  for (const Twins* twins : {&p, &m, &v}) expect_close(*twins, what);
  // Each copy contains the rounded parameters of its own device, so it is compared with those.
  if (dtypes.copy != 0 && update != 0) {
    device_->download(p.on_cuda(), p.on_cpu().data);
    cpu_.copy(p.on_cpu(), copy.on_cpu());
  }
  expect_equal(copy, what + ": the copy");
}

TEST_F(DeviceKernels, UpdatesEqualTheCpus) {
  constexpr Moments kAll[] = {{YOKE_F32, YOKE_F32, 0},
                              {YOKE_F32, YOKE_F32, YOKE_BF16},
                              {YOKE_F32, YOKE_BF16, 0},
                              {YOKE_F32, YOKE_BF16, YOKE_BF16},
                              {YOKE_F32, YOKE_F32, YOKE_F16},
                              {YOKE_F32, YOKE_F16, YOKE_F16},
                              {YOKE_F64, YOKE_F64, 0}};
  for (const int32_t kind : {YOKE_ADAMW, YOKE_ADAM, YOKE_ADAM_UNCORRECTED, YOKE_LION}) {
    for (const Moments& dtypes : kAll) {
      for (const int64_t count : kSizes) {
        // A direction near 0 may have another sign on the other device; few elements have none.
        if (kind == YOKE_LION && count > 5000) continue;
        for (int i = 0; i < 3; ++i) compare_update(kind, count, dtypes, 1);
      }
      compare_update(kind, 1000, dtypes, 0);
    }
  }
}

double DeviceKernels::norm(const Device& device, const Span& x) const {
  const Array sum(device, 1, YOKE_F64);
  device.squared_norm(x, static_cast<double*>(sum.span().data));
  double value = 0;
  device.download(sum.span(), &value);
  return value;
}

TEST_F(DeviceKernels, TheNormIsTheSameWhereverTheArrayBegins) {
  for (const int32_t dtype : {YOKE_F32, YOKE_F64, YOKE_BF16, YOKE_F16}) {
    for (const int64_t count : kSizes) {
      const Twins x = normal(count, dtype);
      const double on_cpu = norm(cpu_, x.on_cpu()), on_cuda = norm(*device_, x.on_cuda());
      EXPECT_NEAR(on_cuda, on_cpu, kFp64 * on_cpu) << dtype_name(dtype) << " " << count;
      for (const int64_t offset : {0, 1, 8}) {
        const Array moved(*device_, offset + count, dtype);
        device_->copy(x.on_cuda(), moved.sub(offset, count));
        EXPECT_EQ(norm(*device_, moved.sub(offset, count)), on_cuda) << offset;
      }
    }
  }
}

TEST_F(DeviceKernels, DecidesAnUpdateLikeTheCpu) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double squared : {0.0, 0.25, 9.0, 1e300, inf, std::nan("")}) {
    for (const double weight : {8.0, 9.0}) {
      StepTotals decided[2];
      const Device* const devices[] = {&cpu_, device_.get()};
      for (int i = 0; i < 2; ++i) {
        const Array totals(*devices[i], sizeof(StepTotals) / sizeof(double), YOKE_F64);
        auto* const memory = static_cast<StepTotals*>(totals.span().data);
        const Kernels& k = devices[i]->kernels();
        k.set_totals(devices[i]->queue(), {2.5, weight, squared, 0, 7}, memory);
        k.decide_update(devices[i]->queue(), {8, 1, 4}, memory);
        devices[i]->download(totals.span(), &decided[i]);
      }
      EXPECT_EQ(decided[1].update, decided[0].update) << squared;
      EXPECT_EQ(decided[1].loss, 2.5);
      if (decided[0].update != 0) {
        EXPECT_EQ(decided[1].scale, decided[0].scale) << squared;
      }
    }
  }
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
