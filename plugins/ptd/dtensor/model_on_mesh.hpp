// The model on distributed tensors: tensor parallelism cuts parameters as the host's hints say,
// context parallelism cuts the sequence of every input. The model's code stays as it is; what
// happens between ranks follows from placements (dtensor/).
#pragma once

#include <memory>
#include <vector>

#include "plugins/ptd/collectives/comm.hpp"
#include "plugins/ptd/dtensor/mesh.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {

// How the axes cp and tp compute; the keys of [ptd] with these names.
struct MeshOptions {
  bool sequence_parallel;
  bool loss_parallel;
  SequenceExchange exchange;
  SequenceOrder order;
  bool log_ops;  // ptd.debug_ops
};

class ModelOnMesh {
 public:
  // Converts the parameters in place; nullptr if neither cp nor tp has more than one rank. All
  // arguments outlive it.
  static std::unique_ptr<ModelOnMesh> make(const YokeModelSummary& model,
                                           const std::vector<at::Tensor>& params,
                                           const MeshOptions& options,
                                           const Comms& comms,
                                           const YokeHost& host);
  ~ModelOnMesh();  // the parameters are plain leaves again
  ModelOnMesh(const ModelOnMesh&) = delete;
  ModelOnMesh& operator=(const ModelOnMesh&) = delete;

  // The inputs of a micro-batch, cut along the sequence between the ranks of cp.
  TorchInputs distribute(const TorchInputs& inputs);
  // Whether this rank speaks for the ranks of cp and tp, which have the same batch.
  bool is_first() const;

 private:
  ModelOnMesh(const std::vector<at::Tensor>& params,
              const MeshOptions& options,
              const Comms& comms);

  const std::vector<at::Tensor>& params_;
  const Comms& comms_;
  Mesh mesh_;
  at::Tensor sequence_;  // positions that this rank of cp has, ascending; undefined for cp = 1
};

// The memory behind a parameter of the model: its own, or that of this rank's part.
const at::Tensor& memory_of(const at::Tensor& param);
// A gradient as this rank accumulates it: complete where tensor parallelism cuts the parameter, a
// part of the sum over cp, and over tp under sequence parallelism. Plain ones as they are.
at::Tensor local_gradient(const at::Tensor& param, const at::Tensor& grad);
// What this rank has of a sum: the local sums of all ranks add up to it. A plain one as it is.
at::Tensor local_sum(const at::Tensor& sum);

}  // namespace yoke::ptd
