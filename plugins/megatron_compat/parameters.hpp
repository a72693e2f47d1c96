// The parameters of one rank: all of them in the compute dtype, and the master copies of the shards
// that this rank updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/megatron_compat/layout.hpp"
#include "yoke/torch.hpp"

namespace yoke::megatron_compat {

// Binds the parameters of a model to memory with initial values, and unbinds them when it is
// destroyed. One thread at a time; no function communicates.
class Parameters {
 public:
  // dtype: that in which the model computes. rank: number of this rank among the shards. The model
  // and the layout must outlive the parameters. Throws Error: that of init_param or bind_param.
  Parameters(const YokeModel& model, const Layout& layout, at::TensorOptions options, int rank);
  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // Return one bucket of the buffer, and the part of it that this rank updates: flat views.
  at::Tensor bucket(int64_t b) const;
  at::Tensor shard(int64_t b) const;
  // Returns the master copy of shard(b): fp32 if the buffer is bf16, else shard(b) itself.
  const at::Tensor& master(int64_t b) const { return masters_[b]; }
  // Returns a frozen parameter, flat.
  const at::Tensor& frozen(int64_t param) const { return frozen_[param]; }

  // Copies the master copies, rounded, into the buffer. Has no effect where they share memory.
  void publish() const;
  int64_t bytes() const;

 private:
  bool has_copies() const { return buffer_.scalar_type() == at::kBFloat16; }
  void unbind();
  void fill(at::Tensor values, int64_t param, int64_t begin) const;

  const YokeModel& model_;
  const Layout& layout_;
  const int rank_;
  at::Tensor buffer_;                // [layout.size()]
  std::vector<at::Tensor> masters_;  // one per bucket
  std::vector<at::Tensor> frozen_;   // one per parameter; undefined = trainable
  int64_t bound_ = 0;                // number of parameters that are bound
};

}  // namespace yoke::megatron_compat
