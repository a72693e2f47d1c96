// What one rank trains: the whole model, or the part of it that tensor, context and pipeline
// parallelism leave it. An engine for data parallelism works on either.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "sdk/compat/batch_pass.hpp"
#include "sdk/compat/flat_layout.hpp"
#include "sdk/compat/recompute.hpp"
#include "sdk/mesh/part/stage_pass.hpp"
#include "yoke/backend.hpp"

namespace yoke::compat {

// How a model is divided between ranks, and which layers compute their activations again.
struct Division {
  mesh::Pipeline pipeline;
  mesh::MeshOptions mesh;
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 1;
};

// One thread at a time.
class Part {
 public:
  virtual ~Part() = default;

  // Returns the part as a model; numbers of parameters and blocks below are those in it. Parameters
  // have the shapes in which this rank has them.
  virtual const YokeModel& model() const = 0;
  // Creates what runs the blocks. The part must outlive the pass.
  virtual std::unique_ptr<BatchPass> pass(PassHooks hooks) = 0;
  // Returns whether the norm of this rank includes a parameter. Of the ranks of pp and tp that have
  // the same parameter, one includes it.
  virtual bool counts(int64_t param) const = 0;
  // Returns whether another rank of pp has the parameter, too.
  virtual bool is_shared(int64_t param) const = 0;
  // Completes gradients that ranks of tp or pp have parts of. gradients: the buffer, reduced over
  // the data ranks; owned: the ranges of it that this rank updates. Ranks that share a parameter
  // must own the same elements of it. Collective over tp and pp.
  virtual void complete(const FlatLayout& layout,
                        const at::Tensor& gradients,
                        const std::vector<Range>& owned) const = 0;
  // Calls `visit` with arguments for a checkpoint of the part, whose pieces it passes on to `args`.
  virtual void checkpoint(const YokeCheckpointArgs& args,
                          const mesh::Copies& copies,
                          const std::function<void(const YokeCheckpointArgs&)>& visit) const = 0;
  // Returns the bytes of activations at the peak of a step; -1 = unknown.
  virtual int64_t activation_bytes() = 0;
  // Returns the bytes that a step exchanges over pp; 0 = none, or unknown.
  virtual int64_t message_bytes() = 0;
};

// Returns the part of this rank. division.pipeline must be that of all ranks. comms: those of the
// plan. All arguments but the division must outlive the part. Not collective. Throws
// Error(FAILED_PRECONDITION) if a model that is divided is not attached as LibTorch objects.
std::unique_ptr<Part> make_part(const YokeModel& model,
                                const Division& division,
                                const mesh::ModelComms& comms,
                                const YokePlan& plan,
                                const YokeHost& host);

}  // namespace yoke::compat
