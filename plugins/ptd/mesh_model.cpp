#include "plugins/ptd/mesh_model.hpp"

#include <ATen/ATen.h>

#include <string>

#include "plugins/ptd/dtensor/dtensor.hpp"
#include "plugins/ptd/dtensor/redistribute.hpp"

namespace yoke::ptd {
namespace {

constexpr int kCp = 0, kTp = 1;  // axes of the mesh

std::vector<Mesh::Axis> axes_of(const PtdOptions& options, const Comms& comms) {
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
  return {cp, tp};
}

// Positions of rank r, ascending: one part, or two parts of half the size.
at::Tensor positions_of(int64_t seq_len, const Mesh& mesh, at::Device device) {
  const int ranks = mesh.size(kCp), rank = mesh.rank(kCp);
  const at::Tensor all = at::arange(seq_len, at::TensorOptions().dtype(at::kLong).device(device));
  if (mesh.axis(kCp).order == SequenceOrder::kPlain) return all.chunk(ranks)[rank];
  const std::vector<at::Tensor> parts = all.chunk(2 * ranks);
  return at::cat({parts[rank], parts[2 * ranks - 1 - rank]});
}

Placements placements_for(const YokeParameter& param) {
  return placements({replicate(), param.tp_cut > 0 ? shard(param.tp_cut - 1) : replicate()});
}

at::Tensor part_without_memory(const at::Tensor& leaf, const Mesh& mesh, const Placements& lie) {
  const Sizes sizes = local_sizes(leaf.sizes().vec(), lie, mesh.coordinates());
  const at::Tensor part = at::empty({0}, leaf.options().requires_grad(false));
  part.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return part;
}

Placements gradient_placements(const Mesh& mesh, Placements of_param) {
  for (int a = 0; a < mesh.ndim(); ++a) {
    const bool parts = !mesh.axis(a).cuts_parameters || mesh.axis(a).sequence_parallel;
    if (of_param[a].is_replicate() && parts && mesh.size(a) > 1) of_param[a] = partial();
  }
  return of_param;
}

}  // namespace

std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp) {
  std::vector<ParamCut> cuts(model.num_params);
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    if (tp == 1 || param.tp_cut <= 0) continue;
    const std::vector<int64_t> shape(param.shape, param.shape + param.ndim);
    cuts[p] = ParamCut::along(shape, param.tp_cut - 1, tp_rank, tp);
  }
  return cuts;
}

std::unique_ptr<MeshModel> MeshModel::make(const YokeModelSummary& model,
                                           const std::vector<at::Tensor>& params,
                                           const PtdOptions& options,
                                           const Comms& comms,
                                           const YokeHost& host) {
  if (comms.cp.size() == 1 && comms.tp.size() == 1) return nullptr;
  std::unique_ptr<MeshModel> made(new MeshModel(params, axes_of(options, comms)));
  if (options.debug_ops) {
    made->mesh_.debug = [&host](const std::string& line) {
      host.log(host.ctx, YOKE_LOG_INFO, view(line));
    };
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const Placements lie = placements_for(*model.params[p]);
    convert_parameter(
        params[p], part_without_memory(params[p], made->mesh_, lie), made->mesh_, lie);
  }
  if (comms.cp.size() > 1)
    made->sequence_ = positions_of(model.seq_len, made->mesh_, params[0].device());
  return made;
}

MeshModel::MeshModel(const std::vector<at::Tensor>& params, std::vector<Mesh::Axis> axes)
    : params_(params), mesh_(std::move(axes)) {}

MeshModel::~MeshModel() {
  for (const at::Tensor& param : params_) revert_parameter(param);
}

TorchInputs MeshModel::distribute(const TorchInputs& inputs) {
  // Without context parallelism every rank has all of them, as plain tensors are taken to be.
  if (!sequence_.defined()) return inputs;
  TorchInputs cut;
  for (const auto& [role, tensor] : inputs) {
    cut.emplace_back(role,
                     from_local(tensor.index_select(1, sequence_),
                                mesh_,
                                placements({shard(1), replicate()}),
                                tensor.sizes()));
  }
  return cut;
}

bool MeshModel::is_first() const {
  return mesh_.rank(kCp) == 0 && mesh_.rank(kTp) == 0;
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

}  // namespace yoke::ptd
