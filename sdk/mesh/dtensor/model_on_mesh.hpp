// The model on distributed tensors: tensor parallelism cuts parameters as the host's hints allow,
// and context parallelism cuts every input along the sequence. The model's code does not change;
// communication follows from the placements.
#pragma once

#include <memory>
#include <vector>

#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/dtensor/mesh.hpp"
#include "yoke/torch.hpp"

namespace yoke::mesh {

// Options of the axes cp and tp.
struct MeshOptions {
  bool sequence_parallel;
  bool loss_parallel;
  SequenceExchange exchange;  // how keys and values are exchanged
  SequenceOrder order;        // which positions a rank has
  bool log_ops;               // whether operators are logged
  int tp_pieces = 1;          // Mesh::Axis::pieces of tp; several need sequence_parallel
};

// Holds one rank's view of the model. It is used by one thread at a time.
class ModelOnMesh {
 public:
  // Converts the parameters in place. Returns nullptr if neither cp nor tp has more than one rank.
  // All arguments but the options must outlive it. Not collective.
  static std::unique_ptr<ModelOnMesh> make(const YokeModelSummary& model,
                                           const std::vector<at::Tensor>& params,
                                           const MeshOptions& options,
                                           const ModelComms& comms,
                                           const YokeHost& host);
  ~ModelOnMesh();  // turns the parameters back into plain leaves
  ModelOnMesh(const ModelOnMesh&) = delete;
  ModelOnMesh& operator=(const ModelOnMesh&) = delete;

  // Returns the inputs of a micro-batch, cut along the sequence between the ranks of cp. Tensors of
  // the inputs are [batch, sequence, ...] and the same on all ranks of cp and tp. Causes no
  // communication.
  TorchInputs distribute(const TorchInputs& inputs);
  Mesh& mesh() { return mesh_; }
  // The ranks along cp and tp share a batch, and only one of them counts its targets. Returns true
  // on that rank.
  bool is_first() const;

 private:
  ModelOnMesh(const std::vector<at::Tensor>& params,
              const MeshOptions& options,
              const ModelComms& comms);

  const std::vector<at::Tensor>& params_;
  const ModelComms& comms_;
  Mesh mesh_;
  at::Tensor sequence_;  // positions of this rank of cp, ascending; undefined for cp = 1
};

// Returns the tensor that has the memory of a model's parameter: the parameter itself or, for a
// DTensor, its local tensor.
const at::Tensor& memory_of(const at::Tensor& param);
// Returns the local gradient in the layout in which this rank accumulates it. It is complete over
// tp, unless sequence parallelism is on and tp does not cut the parameter: then it is a partial sum
// over tp. Over cp it is always a partial sum. Plain gradients are returned unchanged.
at::Tensor local_gradient(const at::Tensor& param, const at::Tensor& grad);
// Returns this rank's share of a scalar: the shares of all ranks add up to it. A plain scalar is
// returned unchanged.
at::Tensor local_sum(const at::Tensor& sum);

}  // namespace yoke::mesh
