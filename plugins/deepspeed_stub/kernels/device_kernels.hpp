// The table of kernels for a device whose threads run operations.hpp: a CUDA device, or the
// emulated one of the tests.
#pragma once

#include "plugins/deepspeed_stub/kernels/operations.hpp"

namespace yoke::deepspeed_stub {

// Launch is a class with static functions that issue work to a queue:
//   elements(queue, operation, n)    many threads call run_share, if operation.begin() returns true
//   rows(queue, operation, rows)     many threads call run_row for each row
//   squared_norm(queue, n, x, sum)   *sum = the sum of the squares of x
//   once(queue, function)            one thread calls function()
template <class Launch>
class DeviceKernels {
 public:
  static constexpr Kernels table(const char* name) {
    return {name,
            update<float, float, BFloat16>,
            update<float, BFloat16, BFloat16>,
            update<double, double, BFloat16>,
            update<float, Float16, Float16>,
            update<float, float, Float16>,
            Launch::template squared_norm<float>,
            Launch::template squared_norm<BFloat16>,
            Launch::template squared_norm<double>,
            Launch::template squared_norm<Float16>,
            add<float, float>,
            add<double, double>,
            add<BFloat16, BFloat16>,
            add<BFloat16, float>,
            add<Float16, Float16>,
            add<Float16, float>,
            copy<float, BFloat16>,
            copy<BFloat16, float>,
            copy<float, double>,
            copy<float, Float16>,
            copy<Float16, float>,
            copy<uint16_t, uint16_t>,
            copy<uint32_t, uint32_t>,
            copy<uint64_t, uint64_t>,
            set_totals,
            decide_update};
  }

 private:
  template <class Master, class Gradient, class Copy>
  static void update(Queue* queue,
                     int64_t count,
                     const YokeUpdate& step,
                     const UpdateArrays<Master, Gradient, Copy>& arrays,
                     const StepTotals* totals) {
    const bool copies = arrays.copy != nullptr;
    if (yoke_is_lion(step.kind)) {
      const LionCoefficients<Master> c = coefficients<Master>(step.lion);
      copies
          ? Launch::elements(queue, Lion<Master, Gradient, Copy, true>{arrays, c, totals}, count)
          : Launch::elements(queue, Lion<Master, Gradient, Copy, false>{arrays, c, totals}, count);
    } else {
      const AdamWCoefficients<Master> c = adamw_coefficients<Master>(step.adamw);
      copies
          ? Launch::elements(queue, AdamW<Master, Gradient, Copy, true>{arrays, c, totals}, count)
          : Launch::elements(queue, AdamW<Master, Gradient, Copy, false>{arrays, c, totals}, count);
    }
  }

  template <class From, class To>
  static void add(Queue* queue, const Rows& rows, const From* from, To* to) {
    Launch::rows(queue, SumOf<From, To>{from, to}, rows);
  }
  template <class From, class To>
  static void copy(Queue* queue, const Rows& rows, const From* from, To* to) {
    Launch::rows(queue, CopyOf<From, To>{from, to}, rows);
  }

  static void set_totals(Queue* queue, const StepTotals& values, StepTotals* totals) {
    Launch::once(queue, SetTotals{values, totals});
  }
  static void decide_update(Queue* queue, const UpdateRule& rule, StepTotals* totals) {
    Launch::once(queue, DecideUpdate{rule, totals});
  }
};

}  // namespace yoke::deepspeed_stub
