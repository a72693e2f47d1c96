// A step of a language model with random tokens.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "yoke/parallel_backend.h"
#include "yoke/text.hpp"
#include "yoke/torch.hpp"

namespace yoke::testing {

// The micro-batches of a step: every data rank gets the same tokens, which are below 256. The
// targets are the tokens.
class TokenBatch {
 public:
  struct Size {
    int micros = 1, sequences = 1, tokens = 64, data_ranks = 1;
  };

  explicit TokenBatch(const Size& size) {
    for (int i = 0; i < size.micros; ++i) {
      auto& tensors = tensors_.emplace_back();
      tensors.push_back(at::randint(256, {size.sequences, size.tokens}, at::kLong));
      tensors.push_back(tensors[0].clone());
      tensors.push_back(at::arange(size.tokens).expand({size.sequences, size.tokens}).contiguous());
      auto& views = views_.emplace_back();
      for (const at::Tensor& t : tensors) views.emplace_back(t);
      inputs_.push_back({{view("tokens"), *views[0].get()},
                         {view("targets"), *views[1].get()},
                         {view("positions"), *views[2].get()}});
    }
    const double targets = static_cast<double>(size.sequences) * size.tokens;
    for (const auto& list : inputs_) {
      micros_.push_back(micro_batch(list.data(), list.size()));
      micros_.back().token_weight = targets;
    }
    for (const YokeMicroBatch& micro : micros_) pointers_.push_back(&micro);
    batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
    batch_.micros = pointers_.data();
    batch_.num_micros = pointers_.size();
    batch_.token_weight = targets * size.micros * size.data_ranks;
  }
  TokenBatch(const TokenBatch&) = delete;
  TokenBatch& operator=(const TokenBatch&) = delete;

  const YokeBatch& batch() const { return batch_; }

 private:
  YokeBatch batch_{};
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<std::vector<TensorView>> views_;
  std::vector<std::vector<YokeInput>> inputs_;
  std::vector<YokeMicroBatch> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
};

}  // namespace yoke::testing
