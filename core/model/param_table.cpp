// A backend moves parameters while a step runs: it gathers a unit for the forward, frees it, and
// gathers it elsewhere for the backward. Tensors that autograd has saved in between must follow.
// They share the StorageImpl of the leaf, so bind() keeps the storage and changes only its data
// pointer.
//
// Replacing the storage with set_data() would not do: the saved tensors would keep the old one, and
// a backward would read memory that the backend has freed or reused.
#include "core/model/param_table.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "core/kernels/fp8.hpp"
#include "core/kernels/fp8_weights.hpp"
#include "core/kernels/product_meter.hpp"
#include "core/model/torch_model.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string list_text(const int64_t* shape, int64_t ndim) {
  std::string text = "[";
  for (int64_t i = 0; i < ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool compact(const YokeTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = t.ndim - 1; i >= 0; --i) {
    // The stride of a dim of size 1 is never used, so any value is right.
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

// Returns why this view cannot be the memory of this leaf, as the end of a sentence, or "".
std::string mismatch(const at::Tensor& leaf, const YokeTensor& view) {
  const int32_t dtype = YOKE_DTYPE_OF(view.dtype);
  const bool same_shape =
      view.ndim == leaf.dim() && std::equal(leaf.sizes().begin(), leaf.sizes().end(), view.shape);
  if (!same_shape || dtype != dtype_of(leaf.scalar_type()) || view.dtype.lanes != 1) {
    return concat("is ", dtype_name(dtype), " ", list_text(view.shape, view.ndim));
  }
  if (!compact(view))
    return concat(
        "has strides ", list_text(view.strides, view.ndim), " and is not compact row-major");
  const YokeDevice device = yoke::device_of(leaf);
  if (view.device.type != device.type || view.device.id != device.id) {
    return concat("is on device ",
                  view.device.type,
                  ":",
                  view.device.id,
                  ", not on ",
                  device.type,
                  ":",
                  device.id);
  }
  if (view.data == nullptr && leaf.numel() > 0) return "has no data";
  if (reinterpret_cast<uintptr_t>(data<char>(view)) % leaf.itemsize() != 0)
    return "is not aligned to its elements";
  return "";
}

// Returns whether the hint is possible for this leaf: it either cuts a dim into parts of equal
// size, or cuts nothing and has no parts. Dims of a hint count from 1, because 0 means "no hint".
bool fits(const at::Tensor& leaf, const TpHint& hint) {
  if (hint.cut <= 0) return hint.cut >= YOKE_TP_WHOLE && hint.parts == 0;
  return hint.cut <= leaf.dim() && hint.parts > 0 && leaf.size(hint.cut - 1) % hint.parts == 0;
}

void check_stored_shape(const std::string& name,
                        const at::Tensor& leaf,
                        const std::vector<int64_t>& shape) {
  const auto ndim = static_cast<int32_t>(shape.size());
  if (numel(shape.data(), ndim) == leaf.numel()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("parameter '",
                     name,
                     "' ",
                     shape_text(leaf),
                     " has the stored shape ",
                     list_text(shape.data(), ndim),
                     "; allowed: a shape with as many elements"));
}

// Calls back after autograd has accumulated the gradient of one leaf.
struct GradHook final : torch::autograd::PostAccumulateGradHook {
  GradHook(int64_t p, std::function<void(int64_t, const at::Tensor&)> f)
      : param(p), call(std::move(f)) {}
  void operator()(const torch::autograd::Variable& leaf) override { call(param, leaf); }
  int64_t param;
  std::function<void(int64_t, const at::Tensor&)> call;
};

}  // namespace

std::string shape_text(const at::Tensor& t) {
  return concat(dtype_name(dtype_of(t.scalar_type())), " ", list_text(t.sizes().data(), t.dim()));
}

ParamTable::ParamTable(const std::vector<NamedParams>& params,
                       int32_t dtype,
                       bool decay_matrices,
                       at::Device device,
                       const std::map<std::string, std::vector<int64_t>>& stored_shapes) {
  std::set<std::string> taken;
  for (const NamedParams& of_block : params) {
    std::vector<int64_t> indices;
    for (const auto& [name, leaf] : of_block) {
      // Modules that are tied hold the same TensorImpl. Their memory cannot be compared instead,
      // because no leaf has memory yet.
      const auto same = std::find_if(
          leaves_.begin(), leaves_.end(), [&](const at::Tensor& t) { return t.is_same(leaf); });
      indices.push_back(same - leaves_.begin());
      if (same != leaves_.end()) continue;
      if (!taken.insert(name).second)
        throw Error(YOKE_INVALID_ARGUMENT, concat("two parameters are named '", name, "'"));
      if (!leaf.is_leaf() || !leaf.is_floating_point()) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    concat("parameter '", name, "' is not a leaf of a floating-point dtype"));
      }
      make_unallocated(leaf, scalar_type(dtype), device);
      leaves_.push_back(leaf);
      names_.push_back(name);
    }
    block_params_.push_back(std::move(indices));
  }
  bound_.resize(leaves_.size());
  describe_params(dtype, decay_matrices, stored_shapes);
}

void ParamTable::make_unallocated(const at::Tensor& leaf, at::ScalarType dtype, at::Device device) {
  if (leaf.scalar_type() == dtype && leaf.device() == device && leaf.is_contiguous() &&
      leaf.storage().nbytes() == 0)
    return;
  // set_data() replaces the storage of the leaf. That is allowed only here, before the first
  // forward, while nothing else refers to the storage.
  const bool requires_grad = leaf.requires_grad();
  leaf.set_data(unallocated(leaf.sizes(), dtype, device));
  leaf.set_requires_grad(requires_grad);
}

void ParamTable::describe_params(int32_t dtype,
                                 bool decay_matrices,
                                 const std::map<std::string, std::vector<int64_t>>& stored_shapes) {
  // params_ gets its final size first, because the summary holds pointers to its elements.
  params_.resize(leaves_.size());
  for (size_t i = 0; i < leaves_.size(); ++i) {
    YokeParameter& p = params_[i];
    p.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    p.name = view(names_[i]);
    // The sizes belong to the leaf, which never changes them and lives as long as the table.
    p.shape = leaves_[i].sizes().data();
    p.ndim = static_cast<int32_t>(leaves_[i].dim());
    p.dtype = dtype;
    p.trainable = leaves_[i].requires_grad();
    // Norms and biases have one dim and are usually not decayed.
    const auto stored = stored_shapes.find(names_[i]);
    int64_t dims = leaves_[i].dim();
    if (stored != stored_shapes.end()) {
      dims = static_cast<int64_t>(stored->second.size());
      check_stored_shape(names_[i], leaves_[i], stored->second);
    }
    p.decay = !decay_matrices || dims >= 2;
    param_pointers_.push_back(&p);
  }
  summary_.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  summary_.params = param_pointers_.data();
  summary_.num_params = params_.size();
}

void ParamTable::describe_blocks(const std::vector<TorchBlock>& blocks,
                                 const std::vector<BlockCosts>& costs,
                                 const std::string& more_blocks) {
  blocks_.resize(blocks.size());
  pass_bytes_.resize(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks_[b].header = YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK);
    blocks_[b].name = view(blocks[b].name);
    blocks_[b].params = block_params_[b].data();
    blocks_[b].num_params = block_params_[b].size();
    const BlockCosts cost = b < costs.size() ? costs[b] : BlockCosts{};
    blocks_[b].activation_bytes = cost.activation_bytes;
    blocks_[b].carry_bytes = cost.carry_bytes;
    blocks_[b].forward_flops = cost.forward_flops;
    pass_bytes_[b] = cost.pass_bytes;
    blocks_[b].pass_bytes = pass_bytes_[b].empty() ? nullptr : pass_bytes_[b].data();
    blocks_[b].num_pass_bytes = pass_bytes_[b].size();
    block_pointers_.push_back(&blocks_[b]);
  }
  summary_.blocks = block_pointers_.data();
  summary_.num_blocks = blocks_.size();
  summary_.more_blocks = view(more_blocks);
}

void ParamTable::describe_cuts(const std::function<TpHint(const std::string&)>& tp,
                               int64_t seq_len) {
  summary_.seq_len = seq_len;
  for (size_t i = 0; tp && i < params_.size(); ++i) {
    const TpHint hint = tp(names_[i]);
    if (!fits(leaves_[i], hint)) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("parameter '",
                         names_[i],
                         "' ",
                         shape_text(leaves_[i]),
                         ": the tensor-parallel hint cuts dim ",
                         hint.cut - 1,
                         " into ",
                         hint.parts,
                         " parts; allowed: a dim that exists, of a size that is a multiple of the "
                         "parts"));
    }
    params_[i].tp_cut = hint.cut;
    params_[i].tp_parts = hint.parts;
  }
}

void ParamTable::describe_distributed(const std::vector<BlockCosts>& costs) {
  const bool known = costs.size() == blocks_.size() &&
                     std::all_of(costs.begin(), costs.end(), [](const BlockCosts& of_block) {
                       return of_block.distributed.has_value();
                     });
  if (!known) return;
  for (const BlockCosts& of_block : costs) {
    const auto& [kept, carry, passes] = *of_block.distributed;
    const std::vector<CutPass>& own = cut_passes_.emplace_back(passes);
    cut_blocks_.push_back({kept, carry, own.empty() ? nullptr : own.data(), own.size()});
  }
  cut_costs_.header = YOKE_HEADER(CutCosts, kCutCostsId);
  cut_costs_.header.next = summary_.header.next;
  cut_costs_.blocks = cut_blocks_.data();
  summary_.header.next = &cut_costs_.header;
}

void ParamTable::describe_fp8(const std::map<std::string, Fp8Use>& uses) {
  if (uses.empty()) return;
  for (const std::string& name : names_) {
    const auto use = uses.find(name);
    fp8_uses_.push_back(use == uses.end() ? Fp8Use::kNone : use->second);
  }
  fp8_.header = YOKE_HEADER(Fp8Params, kFp8ParamsId);
  fp8_.uses = fp8_uses_.data();
  fp8_.scale = [](const at::Tensor& amax) { return ops::fp8::scale_of(amax, at::kFloat8_e4m3fn); };
  fp8_.cast = [](const at::Tensor& values, const at::Tensor& scale) {
    const at::Tensor numbers = ops::fp8::cast(values, scale, at::kFloat8_e4m3fn);
    ops::count_rounded(values, numbers);
    return numbers;
  };
  fp8_.keep_roundings = ops::fp8::keep_roundings;
  fp8_.header.next = summary_.header.next;
  summary_.header.next = &fp8_.header;
}

size_t ParamTable::checked(int64_t param) const {
  if (param >= 0 && param < static_cast<int64_t>(leaves_.size())) return static_cast<size_t>(param);
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("parameter ", param, "; allowed: 0 to ", leaves_.size() - 1));
}

void ParamTable::bind(int64_t param, const YokeTensor* view) {
  const at::Tensor& leaf = this->leaf(param);
  c10::StorageImpl* storage = leaf.storage().unsafeGetStorageImpl();
  if (view == nullptr) {
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, leaf.device()));
    storage->set_nbytes(0);
    bound_[static_cast<size_t>(param)] = false;
    return;
  }
  if (const std::string why = mismatch(leaf, *view); !why.empty()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("bind_param: the view for parameter '",
                       name(param),
                       "' ",
                       why,
                       "; it needs a compact ",
                       shape_text(leaf)));
  }
  // This DataPtr has no deleter, because the memory belongs to the backend.
  storage->set_data_ptr_noswap(c10::DataPtr(data<void>(*view), leaf.device()));
  storage->set_nbytes(static_cast<size_t>(leaf.numel() * leaf.itemsize()));
  bound_[static_cast<size_t>(param)] = true;
}

void ParamTable::require_bound(uint64_t block, const char* who) const {
  for (const int64_t param : block_params_[block]) {
    if (bound_[static_cast<size_t>(param)]) continue;
    throw Error(YOKE_FAILED_PRECONDITION,
                concat(who,
                       ": parameter '",
                       name(param),
                       "' of block '",
                       yoke::view(blocks_[block].name),
                       "' has no memory; call bind_param first"));
  }
}

void ParamTable::install_grad_hooks(std::function<void(int64_t, const at::Tensor&)> f) {
  // There is a hook for each leaf, so that the backend can reduce a gradient while autograd still
  // computes the others.
  if (hooked_) return;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!leaves_[i].requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        leaves_[i], std::make_unique<GradHook>(static_cast<int64_t>(i), f));
  }
  hooked_ = true;
}

void ParamTable::remove_grad_hooks() {
  // The modules may outlive this table. A hook left on a leaf would then use a destroyed object.
  if (!hooked_) return;
  for (const at::Tensor& leaf : leaves_)
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  hooked_ = false;
}

}  // namespace yoke
