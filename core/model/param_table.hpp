// The parameters of a model: leaf tensors without memory of their own, their description in the
// contract's structs, and the binding of memory to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "yoke/model.hpp"

namespace yoke {

// "fp32 [4, 16]"
std::string shape_text(const at::Tensor& t);

// One per model; one thread at a time. A leaf keeps its TensorImpl and its StorageImpl as long as
// the table lives. Binding changes only the data pointer of the storage, so tensors that autograd
// has saved use the new memory too.
class ParamTable {
 public:
  using NamedParams = std::vector<std::pair<std::string, at::Tensor>>;

  // params: names and leaves of each block. The same tensor in two blocks is one parameter, under
  // its first name. decay_matrices: weight decay applies only to parameters that have two or more
  // dims, in files if stored_shapes has them. Throws Error(INVALID_ARGUMENT) for two parameters
  // with the same name, or a tensor that is not a floating-point leaf.
  ParamTable(const std::vector<NamedParams>& params,
             int32_t dtype,
             bool decay_matrices,
             at::Device device,
             const std::map<std::string, std::vector<int64_t>>& stored_shapes);
  ParamTable(const ParamTable&) = delete;
  ParamTable& operator=(const ParamTable&) = delete;

  // Changes a leaf in place: afterwards it is contiguous, has this dtype and device, and its
  // storage has no memory.
  static void make_unallocated(const at::Tensor& leaf, at::ScalarType dtype, at::Device device);

  // Fills the descriptions of the blocks. costs: one entry per block, or empty = unknown. The
  // strings in `blocks` and more_blocks must live as long as the table.
  void describe_blocks(const std::vector<TorchBlock>& blocks,
                       const std::vector<BlockCosts>& costs,
                       const std::string& more_blocks);
  // Fills in how parallelism may cut the parameters. `tp` returns the tensor-parallel hint of a
  // parameter and may be empty; seq_len is the length of a sequence. Throws
  // Error(INVALID_ARGUMENT), naming the parameter, for a hint that does not fit its shape.
  void describe_cuts(const std::function<TpHint(const std::string& name)>& tp, int64_t seq_len);
  // Extends the description by what blocks cost with distributed tensors, unless a block does not
  // say so. costs: as for describe_blocks().
  void describe_distributed(const std::vector<BlockCosts>& costs);
  // Extends the description by the uses of parameters in fp8 products, unless there are none.
  void describe_fp8(const std::map<std::string, Fp8Use>& uses);
  // Returns the contract's description, owned by the table.
  const YokeModelSummary& summary() const { return summary_; }

  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  // These throw Error(INVALID_ARGUMENT) for an index out of range.
  const at::Tensor& leaf(int64_t param) const { return leaves_[checked(param)]; }
  const std::string& name(int64_t param) const { return names_[checked(param)]; }
  // Returns the indices of the parameters of a block, which must exist.
  const std::vector<int64_t>& of_block(uint64_t block) const { return block_params_[block]; }

  // Binds the memory of `view`, which stays the caller's, or unbinds it if view is NULL. Throws
  // Error(INVALID_ARGUMENT), naming the parameter, if the view is not contiguous or has the wrong
  // shape, dtype or device.
  void bind(int64_t param, const YokeTensor* view);
  // Throws Error(FAILED_PRECONDITION), naming the parameter, if a parameter of the block has no
  // memory. The message begins with `who`.
  void require_bound(uint64_t block, const char* who) const;

  // Makes autograd call f(param, leaf) each time it has written leaf.grad. Only the first call has
  // an effect. It is made by the first block_backward, so that a model that a backend runs through
  // the LibTorch extension never has these hooks.
  void install_grad_hooks(std::function<void(int64_t, const at::Tensor&)> f);
  void remove_grad_hooks();

 private:
  size_t checked(int64_t param) const;
  void describe_params(int32_t dtype,
                       bool decay_matrices,
                       const std::map<std::string, std::vector<int64_t>>& stored_shapes);

  std::vector<at::Tensor> leaves_;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> block_params_;
  std::vector<bool> bound_;
  bool hooked_ = false;

  std::vector<YokeParameter> params_;
  std::vector<const YokeParameter*> param_pointers_;
  std::vector<YokeBlock> blocks_;
  std::vector<std::vector<YokePassBytes>> pass_bytes_;
  std::vector<const YokeBlock*> block_pointers_;
  std::vector<Fp8Use> fp8_uses_;
  Fp8Params fp8_{};
  std::deque<std::vector<CutPass>> cut_passes_;
  std::vector<CutBlock> cut_blocks_;
  CutCosts cut_costs_{};
  YokeModelSummary summary_{};
};

}  // namespace yoke
