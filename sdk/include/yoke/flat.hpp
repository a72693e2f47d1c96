// The state of a replica in flat arrays: yoke/flat.h as a class that throws and frees itself. fp32
// and fp64, AdamW, Adam, Lion, Muon and SGD, on the CPU. Does not need LibTorch.
//
//   YokeStepResult step(const YokeStepArgs& args) override {
//     auto [loss, targets] = ranks_.sum(state_.run(args, host_));
//     if (!yoke::is_training(args)) return yoke::step_result(args, loss, targets, yoke::kUnknown);
//     ranks_.all_reduce(state_.grad()).wait();
//     const double norm = state_.norm();
//     state_.update(args, norm);
//     return yoke::step_result(args, loss, targets, norm);
//   }
//
// sdk/examples/replicas.cpp is the complete backend.
#pragma once

#include <array>

#include "yoke/backend.hpp"
#include "yoke/flat.h"
#include "yoke/tensor.hpp"

namespace yoke {

// Returns whether a step updates the parameters; otherwise it is an evaluation (forward only).
inline bool is_training(const YokeStepArgs& args) {
  return (args.flags & YOKE_STEP_FORWARD_ONLY) == 0;
}

// Fills the unset fields of a plan for a backend with a Flat state whose ranks are all on one axis,
// and refuses what it does not support: other axes, dtypes except for fp32 and fp64, and unknown
// optimizers. hint: what the user should write instead of a refused degree.
inline void resolve_flat(
    const YokePlanArgs& args, YokePlan& plan, PlanReport& report, int axis, const char* hint) {
  report.add(yoke_resolve_degrees(&args, &plan, axis, hint));
  report.add(yoke_resolve_flat(&args, &plan));
}

// The parameters, gradients and optimizer state of one rank. A backend that changes parameters or
// moments itself, such as one that averages them, uses YokeFlat of yoke/flat.h instead, whose
// arrays are open; sdk/examples/signsgd.cpp shows it. Neither copied nor moved: the model
// holds pointers into it. One thread at a time; no function is collective.
class Flat {
 public:
  // Allocates, initialises and binds every parameter. model and args must outlive it. Throws Error:
  // UNIMPLEMENTED if the device is not the CPU, RESOURCE_EXHAUSTED, INVALID_ARGUMENT.
  Flat(const YokeModel& model, const YokeInitArgs& args) {
    if (args.host->device.type != YOKE_DEVICE_CPU)
      throw Error(YOKE_UNIMPLEMENTED, "this backend works on the CPU only; set device = \"cpu\"");
    call([&](YokeError* err) { return yoke_flat_make(&flat_, &model, args.plan, err); });
    activations_ = yoke_walk_bytes(model.summary, args.plan->micro_batch);
  }
  // Unbinds the parameters and frees all memory.
  ~Flat() { yoke_flat_free(&flat_); }
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;

  // Runs all micro-batches of this rank, forward and, if training, backward. Returns the sum of
  // their losses and the number of their targets. grad() then holds this rank's share of the
  // gradient of the mean loss over the whole batch. Throws Error: CANCELLED, or that of a block.
  std::array<double, 2> run(const YokeStepArgs& args, const YokeHost& host) {
    std::array<double, 2> sums{};
    call([&](YokeError* err) { return yoke_flat_run(&flat_, &args, &host, sums.data(), err); });
    return sums;
  }

  // For backends that compute gradients without run(), e.g. with autograd: clear_grad() sets all
  // gradients to zero, and each call of add_gradient() adds to the gradient of parameter `param`.
  void clear_grad() { std::memset(grad().data, 0, static_cast<size_t>(grad().bytes())); }
  void add_gradient(size_t param, const YokeTensor& grad) {
    call([&](YokeError* err) {
      return yoke_flat_add_gradient(&flat_, static_cast<int64_t>(param), &grad, err);
    });
  }

  // Returns the gradients of all trainable parameters, to be summed over the ranks in place.
  Span grad() const { return {flat_.grad, flat_.trainable, flat_.dtype}; }

  // Returns the 2-norm of grad(), +infinity if it is not finite. Call it after the sum.
  double norm() const { return yoke_flat_norm(&flat_); }

  // Clips the gradients and makes update number args.step. Changes nothing if the norm is not
  // finite.
  void update(const YokeStepArgs& args, double norm) {
    yoke_flat_update(&flat_, args.step, args.lr, norm);
  }

  // Reports the whole state to the visitor of a checkpoint: saves, loads or describes it. replica:
  // pass the number of this rank, YokeHost.rank; the copy with number 0, that of rank 0, is the one
  // that is written. Throws the visitor's Error.
  void visit(const YokeCheckpointArgs& args, int64_t replica) {
    call([&](YokeError* err) { return yoke_flat_visit(&flat_, &args, replica, err); });
  }

  // Returns the memory of the state, and that of a micro-batch whose blocks have all run, as
  // Wrapped::wrap_result reports it. summed_axis: the axis along which grad() is summed once in
  // every step, whose traffic is then reported, too; -1 = none.
  YokeWrapResult bytes(int summed_axis = -1) const {
    YokeWrapResult result{};
    yoke_flat_bytes(&flat_, &result);
    result.activation_bytes = activations_;
    if (summed_axis >= 0) result.axis_bytes[summed_axis] = result.grad_bytes;
    return result;
  }

 private:
  YokeFlat flat_;
  int64_t activations_;
};

}  // namespace yoke
