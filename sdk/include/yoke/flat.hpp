// The state of a replica in flat arrays: yoke/flat.h for C++. fp32 and fp64, AdamW
// and SGD, on the CPU.
#pragma once

#include <array>

#include "yoke/backend.hpp"
#include "yoke/flat.h"
#include "yoke/tensor.hpp"

namespace yoke {

inline bool is_training(const YokeStepArgs& args) {
  return (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
}

// What a Flat can do on ranks that are all on one axis; hint: what to write instead of another
// degree.
inline void resolve_flat(
    const YokePlanArgs& args, YokePlan& plan, PlanReport& report, int axis, const char* hint) {
  report.add(yoke_resolve_degrees(&args, &plan, axis, hint));
  report.add(yoke_resolve_flat(&args, &plan));
}

class Flat {
 public:
  // Allocates, initialises and binds every parameter; model and args outlive it. Throws Error.
  Flat(const YokeModel& model, const YokeInitArgs& args) {
    if (args.host->device.type != YOKE_DEVICE_CPU)
      throw Error(YOKE_UNIMPLEMENTED, "it works on the CPU only; set device = \"cpu\"");
    call([&](YokeError* err) { return yoke_flat_make(&flat_, &model, args.plan, err); });
  }
  ~Flat() { yoke_flat_free(&flat_); }
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;

  // Forward and, if training, backward of all micro-batches of this rank. Returns the sums of the
  // losses and of the targets; gradients of the mean over the whole batch are in grad().
  std::array<double, 2> run(const YokeStepArgs& args, const YokeHost& host) {
    std::array<double, 2> sums{};
    call([&](YokeError* err) { return yoke_flat_run(&flat_, &args, &host, sums.data(), err); });
    return sums;
  }
  // What run() does, for who computes gradients without the blocks' callbacks.
  void clear_grad() { std::memset(grad().data, 0, static_cast<size_t>(grad().bytes())); }
  void add_gradient(size_t param, const YokeTensor& grad) {
    call([&](YokeError* err) {
      return yoke_flat_add_gradient(&flat_, static_cast<int64_t>(param), &grad, err);
    });
  }
  Span grad() const { return {flat_.grad, flat_.trainable, flat_.dtype}; }
  double norm() const { return yoke_flat_norm(&flat_); }
  // Clips and updates; nothing if the norm is not finite.
  void update(const YokeStepArgs& args, double norm) {
    yoke_flat_update(&flat_, args.step, args.lr, norm);
  }

  // replica: 0 = this rank's copy is the one to write.
  void visit(const YokeCheckpointArgs& args, int64_t replica) {
    call([&](YokeError* err) { return yoke_flat_visit(&flat_, &args, replica, err); });
  }
  YokeWrapResult bytes() const {
    YokeWrapResult result{};
    yoke_flat_bytes(&flat_, &result);
    return result;
  }

 private:
  YokeFlat flat_;
};

}  // namespace yoke
