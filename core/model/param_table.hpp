// The parameters of a model: leaves without memory of their own, what the contract says about them,
// and the binding of memory to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "yoke/model.hpp"

namespace yoke {

// "fp32 [4, 16]"
std::string shape_text(const at::Tensor& t);

// One per model; one thread at a time. Leaves keep their TensorImpl and their StorageImpl for life:
// only the data pointer of the storage changes, so whatever autograd saved follows.
class ParamTable {
 public:
  using NamedParams = std::vector<std::pair<std::string, at::Tensor>>;

  // params: per block. The same tensor in two blocks is one parameter under its first name.
  ParamTable(const std::vector<NamedParams>& params,
             int32_t dtype,
             bool decay_matrices,
             at::Device device);
  ParamTable(const ParamTable&) = delete;
  ParamTable& operator=(const ParamTable&) = delete;

  // Turns a leaf, in place, into a contiguous one of dtype on device whose storage has no memory.
  static void make_unallocated(const at::Tensor& leaf, at::ScalarType dtype, at::Device device);

  // bytes: per block, or empty.
  void describe_blocks(const std::vector<TorchBlock>& blocks, const std::vector<BlockBytes>& bytes);
  // What may be cut: tensor-parallel hints by name (may be empty), and the length of a sequence.
  // Throws Error(INVALID_ARGUMENT) naming a parameter whose hint does not fit its shape.
  void describe_cuts(const std::function<TpHint(const std::string& name)>& tp, int64_t seq_len);
  const YokeModelSummary& summary() const { return summary_; }

  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  // Throw Error(INVALID_ARGUMENT) for an index out of range.
  const at::Tensor& leaf(int64_t param) const { return leaves_[checked(param)]; }
  const std::string& name(int64_t param) const { return names_[checked(param)]; }
  const std::vector<int64_t>& of_block(uint64_t block) const { return block_params_[block]; }

  // Binds borrowed memory, or frees it (NULL). Throws Error(INVALID_ARGUMENT) naming the parameter
  // if the view is not compact or has another shape, dtype or device.
  void bind(int64_t param, const YokeTensor* view);
  // Throws Error(FAILED_PRECONDITION) naming a parameter of the block that has no memory.
  void require_bound(uint64_t block, const char* who) const;

  // Calls f(param, leaf) right after a backward wrote leaf.grad. Only the first call installs: a
  // model that a backend drives through the LibTorch extension never has these hooks.
  void install_grad_hooks(std::function<void(int64_t, const at::Tensor&)> f);
  void remove_grad_hooks();

 private:
  size_t checked(int64_t param) const;
  void describe_params(int32_t dtype, bool decay_matrices);

  std::vector<at::Tensor> leaves_;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> block_params_;
  std::vector<bool> bound_;
  bool hooked_ = false;

  std::vector<YokeParameter> params_;
  std::vector<const YokeParameter*> param_pointers_;
  std::vector<YokeBlock> blocks_;
  std::vector<const YokeBlock*> block_pointers_;
  YokeModelSummary summary_{};
};

}  // namespace yoke
