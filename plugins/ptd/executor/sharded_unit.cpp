// The model's parameters have no memory of their own, so gathering them needs no extra copy. Their
// storages are pointed into the gathered buffer (bind_storage) and emptied again at reshard.
// Tensors that autograd saved share these storages and change with them. PyTorch's FSDP swaps the
// parameter objects of modules instead, and copies out of the gathered buffer.
//
// Gradients take the opposite path: backward adds them to views of a flat buffer in the reduce
// type, or leaves them in .grad, from where collect_gradient() adds them. The reduce-scatter reads
// that buffer directly. With one shard that buffer is the gradient shard itself.
#include "plugins/ptd/executor/sharded_unit.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "sdk/mesh/dtensor/model_on_mesh.hpp"

namespace yoke::ptd {
namespace {

// Returns the buffer for whole parameters with a single shard: the memory of the master copies,
// unless the model computes in a different type. copy: memory for that type; undefined = none.
FlatBuffer whole_params(const at::Tensor& shard, const at::Tensor& copy, at::ScalarType compute) {
  if (shard.scalar_type() == compute) return FlatBuffer(shard);
  return FlatBuffer(copy.defined() ? copy : at::empty_like(shard, shard.options().dtype(compute)));
}

std::vector<at::Tensor> memory_of_all(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& param : params) leaves.push_back(memory_of(param));
  return leaves;
}

// Returns a buffer for gradients. For a frozen unit it is empty and never attached.
FlatBuffer gradient_buffer(const at::Tensor& shard, int64_t numel, DevicePool& pool) {
  return FlatBuffer(
      shard.defined() ? numel : 0, shard.defined() ? shard.scalar_type() : at::kFloat, pool);
}

}  // namespace

ShardedUnit::ShardedUnit(const FlatLayout& layout, Parts parts, int shards, DevicePool& pool)
    : shards_(shards),
      slots_(layout.slots()),
      params_of_model_(std::move(parts.params)),
      leaves_(memory_of_all(params_of_model_)),
      param_shard_(std::move(parts.param_shard)),
      grad_shard_(std::move(parts.grad_shard)),
      copied_(parts.copy.defined()),
      casts_(leaves_.front().scalar_type() != param_shard_.scalar_type()),
      params_(shards > 1 ? FlatBuffer(layout.numel(), leaves_.front().scalar_type(), pool)
                         : whole_params(param_shard_, parts.copy, leaves_.front().scalar_type())),
      cast_(casts_ && shards > 1 ? layout.shard_numel() : 0, leaves_.front().scalar_type(), pool),
      grads_(shards == 1 ? FlatBuffer(grad_shard_)
                         : gradient_buffer(grad_shard_, layout.numel(), pool)),
      partial_(gradient_buffer(grad_shard_, layout.shard_numel(), pool)) {
  if (parts.fp8 != nullptr) {
    const at::ScalarType compute = leaves_.front().scalar_type();
    fp8_.emplace(layout, parts.shard, param_shard_, compute, *parts.fp8, pool);
  }
  if (shards == 1) bind_leaves(params_.tensor().data_ptr());
  if (!grad_shard_.defined()) return;
  // The gaps between the parameters are padding. They are reduced like the rest and must be zero.
  int64_t end = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto [param, offset, numel] = slots_[i];
    sums_.push_back({grads_.tensor().narrow(0, offset, numel).view(leaves_[i].sizes())});
    if (offset > end) gaps_.push_back(grads_.tensor().narrow(0, end, offset - end));
    end = offset + numel;
  }
  if (layout.numel() > end) gaps_.push_back(grads_.tensor().narrow(0, end, layout.numel() - end));
}

ShardedUnit::~ShardedUnit() {
  bind_leaves(nullptr);
}

void ShardedUnit::bind_leaves(void* base) {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const int64_t offset = slots_[i].offset * params_.tensor().itemsize();
    bind_storage(leaves_[i], base == nullptr ? nullptr : static_cast<char*>(base) + offset);
  }
}

void ShardedUnit::add_second_gradient(size_t slot) {
  seconds_[slot].values = at::empty_like(sums_[slot].values);
}

void ShardedUnit::begin_step() {
  shard_written_ = false;
  if (shards_ > 1) return;
  // With a single shard there is no reshard or reduction that resets this state, so it is reset
  // here.
  grads_open_ = false;
  if (casts_ && !copied_) params_.tensor().copy_(param_shard_);
}

void ShardedUnit::start_unshard(const Comm& comm) {
  if (fp8_) {
    gathering_ = fp8_->start_gather(comm);
    return;
  }
  params_.attach();
  if (casts_) {
    cast_.attach();
    cast_.tensor().copy_(param_shard_);
  }
  gathering_ = comm.all_gather(params_.tensor(), casts_ ? cast_.tensor() : param_shard_);
}

void ShardedUnit::finish_unshard() {
  gathering_.wait();
  if (fp8_) {
    params_.attach();
    fp8_->finish_gather(params_.tensor());
  }
  cast_.detach();
  bind_leaves(params_.tensor().data_ptr());
}

void ShardedUnit::reshard() {
  bind_leaves(nullptr);
  params_.detach();
}

// Attaches the gradient buffer for a micro-batch or for the step, unless it is open already.
void ShardedUnit::open_gradients() {
  if (grads_open_) return;
  grads_.attach();
  for (const at::Tensor& gap : gaps_) gap.zero_();
  for (GradientSums::Sum& sum : sums_) sum.written = false;
  for (auto& [slot, sum] : seconds_) sum.written = false;
  grads_open_ = true;
}

GradientSums::Sum& ShardedUnit::gradient_sum(size_t slot, bool second) {
  open_gradients();
  return second ? seconds_.at(slot) : sums_[slot];
}

void ShardedUnit::collect_gradient(size_t slot, bool second) {
  GradientSums::Sum& sum = gradient_sum(slot, second);
  const at::Tensor& param = params_of_model_[slot];
  const at::Tensor grad = local_gradient(param, std::exchange(param.mutable_grad(), at::Tensor()));
  if (grad.defined()) sum.add(grad);
}

// Zeroes the gradients that no backward produced.
void ShardedUnit::zero_unwritten() {
  for (GradientSums::Sum& sum : sums_) {
    if (!sum.written) sum.values.zero_();
    sum.written = true;
  }
}

void ShardedUnit::complete_gradients() {
  if (shards_ > 1) return;
  for (auto& [slot, second] : seconds_) {
    if (std::exchange(second.written, false)) sums_[slot].add(second.values);
  }
  zero_unwritten();
}

// The first micro-batch is reduced directly into the gradient shard. Later ones are reduced into
// partial_, which finish_reduce() adds to the shard.
void ShardedUnit::start_reduce(const Comm& comm) {
  zero_unwritten();
  if (shard_written_) partial_.attach();
  work_ =
      comm.reduce_scatter_sum(shard_written_ ? partial_.tensor() : grad_shard_, grads_.tensor());
}

void ShardedUnit::finish_reduce() {
  work_.wait();
  if (shard_written_) grad_shard_.add_(partial_.tensor());
  partial_.detach();
  grads_.detach();
  grads_open_ = false;
  shard_written_ = true;
}

void ShardedUnit::start_all_reduce(const Comm& comm) {
  complete_gradients();
  work_ = comm.all_reduce_sum(grad_shard_);
}

int64_t ShardedUnit::copy_bytes() const {
  if (fp8_) return fp8_->bytes();
  return casts_ && shards_ == 1 ? static_cast<int64_t>(params_.tensor().nbytes()) : 0;
}

int64_t ShardedUnit::second_gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& [slot, second] : seconds_) bytes += static_cast<int64_t>(second.values.nbytes());
  return bytes;
}

void ShardedUnit::abandon_step() {
  for (const at::Tensor& param : params_of_model_) param.mutable_grad().reset();
  partial_.detach();
  cast_.detach();
  if (fp8_) fp8_->abandon_gather();
  if (shards_ == 1) return;
  reshard();
  grads_.detach();
  grads_open_ = false;
}

}  // namespace yoke::ptd
