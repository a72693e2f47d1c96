// Optimizers that update the flat shards. AdamW and Adam use one fused kernel, which also clips
// where its precision allows; Lion, Muon and SGD run as sequences of operators. The formulas are
// those of YokeOptimizer in the contract.
//
//   optimizer.begin_step(n, lr);        // step number and learning rate
//   optimizer.update(scale);            // or update_with(clip), on a device
//   optimizer.commit();                 // the step counts: last_step() == n
//
// A step that fails or whose gradient norm is not finite is not committed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/optim/grad_norm.hpp"
#include "plugins/ptd/state/shard_state.hpp"
#include "sdk/mesh/collectives/comm.hpp"
#include "yoke/torch_device.hpp"

namespace yoke::ptd {

// A moment of some or all trainable elements.
struct Moment {
  // Make zero moments: of all elements of ShardState::params, or of those that lie in the ranges,
  // which are in order.
  Moment(const char* kind, const at::Tensor& params);
  Moment(const char* kind, const at::Tensor& params, std::vector<FlatRange> ranges);

  // Returns a view of the moments of consecutive elements of ShardState::params; undefined if these
  // have no moment of this kind. They must lie in one range, or outside of all.
  at::Tensor of(int64_t begin, int64_t count) const;

  const char* kind;               // kind of the checkpoint pieces with these values
  at::Tensor values;              // flat, one range after the other
  std::vector<FlatRange> ranges;  // elements that have the moment
};

// Used by one thread at a time. update() and update_with() of Muon are collective over the ranks
// with the shards of one replica; no other function is.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Starts training step `step` (1 is the first) with learning rate lr. Both are also written into
  // tensors that update_with() reads, so this call must not be part of a recorded graph: a replay
  // would write the old values.
  virtual void begin_step(int64_t step, double lr);

  // Updates state.params from state.grads times scale, a number above 0: the clip divided by the
  // factor of the loss. The values in state.grads are unspecified afterwards.
  virtual void update(double scale) = 0;
  // Does the same without reading device memory on the host. The work that it issues may be
  // recorded in a graph and replayed after another begin_step(). Changes nothing if clip.skip is 1.
  virtual void update_with(const ClipTensors& clip) = 0;

  void commit() { last_step_ = step_; }
  int64_t last_step() const { return last_step_; }  // last committed step; 0 = none
  void restore(int64_t last_step) { last_step_ = last_step; }

  const std::vector<Moment>& moments() const { return moments_; }

 protected:
  // Makes an optimizer that does not read the two scalar tensors.
  Optimizer() = default;
  explicit Optimizer(const ShardState& state);
  double lr() const { return lr_; }

  std::vector<Moment> moments_;
  // Step and learning rate as scalar tensors for LibTorch's kernels; fp32 is exact for steps up to
  // 16 million. Undefined if the optimizer does not read them.
  at::Tensor fp32_step_, fp32_lr_;

 private:
  int64_t step_ = 0, last_step_ = 0;
  double lr_ = 0;
};

// Returns an optimizer of config.kind. model: the blocks of this rank. unshard: the communicator of
// the ranks with the shards of one replica. kernels: those of the host's device; nullptr = none.
// The references and pointers must outlive the optimizer. Throws Error(INVALID_ARGUMENT) for an
// unknown kind.
std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config,
                                          const ShardState& state,
                                          const ModelSpec& model,
                                          const Comm& unshard,
                                          const TorchKernels* kernels = nullptr);

// Returns whether make_optimizer() will use the kernel of the device for all elements. It also
// writes ShardState::copies, if these are defined before.
bool uses_device_adamw(const YokeOptimizer& config,
                       const Dtypes& dtypes,
                       const TorchKernels* kernels);

// The optimizers, each in its own file. make_adamw and make_device_adamw are for all kinds that are
// variants of AdamW; they update only the elements of `spans`.
std::unique_ptr<Optimizer> make_adamw(const YokeOptimizer& config,
                                      const ShardState& state,
                                      const std::vector<FlatSpan>& spans);
std::unique_ptr<Optimizer> make_device_adamw(const YokeOptimizer& config,
                                             const ShardState& state,
                                             const std::vector<FlatSpan>& spans,
                                             const TorchKernels& kernels);
std::unique_ptr<Optimizer> make_muon(const YokeOptimizer& config,
                                     const ShardState& state,
                                     const ModelSpec& model,
                                     const Comm& unshard);
std::unique_ptr<Optimizer> make_lion(const YokeOptimizer& config, const ShardState& state);
std::unique_ptr<Optimizer> make_sgd(const YokeOptimizer& config, const ShardState& state);

// Returns the number of elements of which an update may have copies at a time: so many fit into a
// CPU's cache, or use only a small part of a device's memory. params: decides which.
int64_t elements_at_a_time(const at::Tensor& params);

}  // namespace yoke::ptd
