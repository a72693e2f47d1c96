// The parameters of one rank: all of them in the compute dtype, and the master copies of those
// that this rank updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/compat/flat_layout.hpp"
#include "yoke/torch.hpp"

namespace yoke::compat {

// Returns the dtype and the device of the parameters of a run.
at::TensorOptions param_options(const YokePlan& plan, const YokeHost& host);

// Binds the parameters of a model to memory with initial values, and unbinds them when it is
// destroyed. One thread at a time; no function communicates.
class Parameters {
 public:
  // options: dtype in which the model computes, and device. owned: parts of the buffer that this
  // rank updates. The model and the layout must outlive the parameters. Throws Error: that of
  // init_param or bind_param.
  Parameters(const YokeModel& model,
             const FlatLayout& layout,
             at::TensorOptions options,
             std::vector<Range> owned);
  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // Returns a part of the buffer: a flat view.
  at::Tensor part(const Range& range) const { return buffer_.narrow(0, range.begin, range.count); }
  const std::vector<Range>& owned() const { return owned_; }
  // Returns the master copy of a range of owned(): fp32 if the buffer is bf16, else part() itself.
  const at::Tensor& master(size_t i) const { return masters_[i]; }
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
  const FlatLayout& layout_;
  const std::vector<Range> owned_;
  at::Tensor buffer_;                // [layout.size()]
  std::vector<at::Tensor> masters_;  // one per range of owned_
  std::vector<at::Tensor> frozen_;   // one per parameter; undefined = trainable
  int64_t bound_ = 0;                // number of parameters that are bound
};

}  // namespace yoke::compat
