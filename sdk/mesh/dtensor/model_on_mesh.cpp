// For tp and cp, this file decides only the placements of parameters and inputs: a parameter is cut
// along the dim that its hint names, every input along the sequence. Everything else follows from
// the operator rules. Plans by module name, which PyTorch's parallelize_module uses, would repeat
// for each model what its author states once in the hints.
//
// The DTensor of a parameter has no memory of its own. Its local tensor has an empty storage, which
// the executor points into the gathered buffer.
#include "sdk/mesh/dtensor/model_on_mesh.hpp"

#include <ATen/ATen.h>

#include <string>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "sdk/mesh/dtensor/redistribute.hpp"

namespace yoke::mesh {
namespace {

// Returns the axes that have more than one rank, cp first.
std::vector<Mesh::Axis> axes_of(const MeshOptions& options, const ModelComms& comms) {
  Mesh::Axis cp, tp;
  cp.name = "cp";
  cp.comm = comms.cp;
  cp.cuts_parameters = false;
  cp.exchange = options.exchange;
  cp.order = options.order;
  tp.name = "tp";
  tp.comm = comms.tp;
  tp.sequence_parallel = options.sequence_parallel;
  tp.loss_parallel = options.loss_parallel;
  tp.pieces = options.tp_pieces;
  std::vector<Mesh::Axis> axes;
  if (cp.comm.size() > 1) axes.push_back(cp);
  if (tp.comm.size() > 1) axes.push_back(tp);
  return axes;
}

// Returns placements for the mesh, which does not have axes with only one rank.
Placements on_mesh(const ModelComms& comms, const Placement& along_cp, const Placement& along_tp) {
  if (comms.cp.size() == 1) return placements({along_tp});
  if (comms.tp.size() == 1) return placements({along_cp});
  return placements({along_cp, along_tp});
}

// Returns the sequence positions of this rank of cp, ascending: one part of the sequence, or two
// parts of half the size.
at::Tensor positions_of(int64_t seq_len, const Comm& cp, SequenceOrder order, at::Device device) {
  const int ranks = cp.size(), rank = cp.rank();
  const at::Tensor all = at::arange(seq_len, at::TensorOptions().dtype(at::kLong).device(device));
  if (order == SequenceOrder::kPlain) return all.chunk(ranks)[rank];
  const std::vector<at::Tensor> parts = all.chunk(2 * ranks);
  return at::cat({parts[rank], parts[2 * ranks - 1 - rank]});
}

// Returns a tensor with empty storage and the sizes of this rank's part of a leaf.
at::Tensor part_without_memory(const at::Tensor& leaf, const Mesh& mesh, const Placements& lie) {
  const Sizes sizes = local_sizes(leaf.sizes().vec(), lie, mesh.coordinates());
  const at::Tensor part = at::empty({0}, leaf.options().requires_grad(false));
  part.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return part;
}

// Returns the placements in which gradients are accumulated. Where a parameter is Replicate, each
// rank has the gradient for its own part of the sequence. That gradient stays Partial: the
// reduction over shards or replicas, or ReducePartialGrads, sums it once per step instead of once
// per operator.
Placements gradient_placements(const Mesh& mesh, Placements of_param) {
  for (int a = 0; a < mesh.ndim(); ++a) {
    const bool parts = !mesh.axis(a).cuts_parameters || mesh.axis(a).sequence_parallel;
    if (of_param[a].is_replicate() && parts && mesh.size(a) > 1) of_param[a] = partial();
  }
  return of_param;
}

}  // namespace

std::unique_ptr<ModelOnMesh> ModelOnMesh::make(const YokeModelSummary& model,
                                               const std::vector<at::Tensor>& params,
                                               const MeshOptions& options,
                                               const ModelComms& comms,
                                               const YokeHost& host) {
  if (comms.cp.size() == 1 && comms.tp.size() == 1) return nullptr;
  std::unique_ptr<ModelOnMesh> made(new ModelOnMesh(params, options, comms));
  if (options.log_ops) {
    made->mesh_.trace().set_sink(
        [&host](const std::string& line) { host.log(host.ctx, YOKE_LOG_INFO, view(line)); });
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const int32_t cut = model.params[p]->tp_cut;
    const Placements lie = on_mesh(comms, replicate(), cut > 0 ? shard(cut - 1) : replicate());
    convert_parameter(
        params[p], part_without_memory(params[p], made->mesh_, lie), made->mesh_, lie);
  }
  if (comms.cp.size() > 1)
    made->sequence_ = positions_of(model.seq_len, comms.cp, options.order, params[0].device());
  return made;
}

ModelOnMesh::ModelOnMesh(const std::vector<at::Tensor>& params,
                         const MeshOptions& options,
                         const ModelComms& comms)
    : params_(params), comms_(comms), mesh_(axes_of(options, comms)) {}

ModelOnMesh::~ModelOnMesh() {
  for (const at::Tensor& param : params_) revert_parameter(param);
}

TorchInputs ModelOnMesh::distribute(const TorchInputs& inputs) {
  // Without context parallelism every rank uses the whole inputs; plain tensors count as Replicate.
  if (!sequence_.defined()) return inputs;
  TorchInputs cut;
  for (const auto& [role, tensor] : inputs) {
    // This needs no communication: every rank of cp has the whole sequence and selects its
    // positions.
    cut.emplace_back(role,
                     from_local(tensor.index_select(1, sequence_),
                                mesh_,
                                on_mesh(comms_, shard(1), replicate()),
                                tensor.sizes()));
  }
  return cut;
}

bool ModelOnMesh::is_first() const {
  return comms_.cp.rank() == 0 && comms_.tp.rank() == 0;
}

const at::Tensor& memory_of(const at::Tensor& param) {
  return is_dtensor(param) ? local_of(param) : param;
}

at::Tensor local_gradient(const at::Tensor& param, const at::Tensor& grad) {
  if (!grad.defined() || !is_dtensor(param)) return grad;
  Mesh& mesh = mesh_of(param);
  const Placements from = is_dtensor(grad) ? placements_of(grad) : Placements{};
  return redistribute_local(mesh,
                            memory_of(grad),
                            grad.sizes().vec(),
                            from,
                            gradient_placements(mesh, placements_of(param)));
}

at::Tensor local_sum(const at::Tensor& sum) {
  if (!is_dtensor(sum)) return sum;
  Placements to = placements_of(sum);
  for (int a = 0; a < mesh_of(sum).ndim(); ++a) to[a] = partial();
  return redistribute_local(mesh_of(sum), local_of(sum), sum.sizes().vec(), placements_of(sum), to);
}

}  // namespace yoke::mesh
