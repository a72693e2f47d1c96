// Turns samples into the micro-batches of a step.
//
// SampleAssignment decides which samples belong to this data rank; this file only reads them.
// Every rank of the world reads its own share from the mapped file. Reading on one rank and sending
// the samples to the others was rejected: it would add a collective to every step.
#include "core/run/batch.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <memory>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Reads token windows. The tensors share one HostMicroBatch, which stays alive until the last of
// them is freed.
TorchInputs read_tokens(const DataSet& data,
                        const SampleOrder& part,
                        int64_t first,
                        int64_t count) {
  const auto host = std::make_shared<HostMicroBatch>(read_micro_batch(data, part, first, count));
  const auto tensor = [&](std::vector<int64_t>& values) {
    return at::from_blob(
        values.data(), {count, data.seq_len}, [host](void*) {}, at::TensorOptions(at::kLong));
  };
  TorchInputs inputs{{"tokens", tensor(host->tokens)},
                     {"targets", tensor(host->targets)},
                     {"positions", tensor(host->positions)}};
  if (data.document_end) inputs.emplace_back("document_starts", tensor(host->document_starts));
  return inputs;
}

// Returns "image float [3, 32, 32], label long []", for messages.
std::string text(const TorchInputs& inputs) {
  std::string out;
  for (const auto& [role, tensor] : inputs) {
    out += (out.empty() ? "" : ", ") + role + " " + c10::toString(tensor.scalar_type()) + " " +
           c10::str(tensor.sizes());
  }
  return out.empty() ? "nothing" : out;
}

// Returns whether two samples have the same roles, dtypes and shapes, so that they can be stacked.
bool alike(const TorchInputs& a, const TorchInputs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() &&
           x.second.sizes() == y.second.sizes();
  });
}

// Reads samples of the model family and stacks them along a new first dimension.
TorchInputs read_samples(const Samples& own,
                         const SampleOrder& part,
                         int64_t first,
                         int64_t count) {
  std::vector<TorchInputs> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(own.read(part.window(first + i)));
    if (alike(samples.back(), samples.front()) && !samples.front().empty()) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("sample ", part.window(first + i), " of the model family has ") +
                    concat(text(samples.back()), ", but sample ", part.window(first), " has ") +
                    text(samples.front()) +
                    "; allowed: at least one input, with the same roles, dtypes and shapes in "
                    "every sample");
  }
  TorchInputs stacked;
  for (size_t input = 0; input < samples.front().size(); ++input) {
    std::vector<at::Tensor> rows;
    for (const TorchInputs& sample : samples) rows.push_back(sample[input].second);
    stacked.emplace_back(samples.front()[input].first, at::stack(rows));
  }
  return stacked;
}

// Copies an input to the device through pinned memory, so that the call does not wait for the copy.
// LibTorch keeps the pinned block until the copy is done.
at::Tensor copy_to(const at::Tensor& input, at::Device device) {
  if (device.is_cpu()) return input;
  return input.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

Batch::Batch(const SampleSource& source,
             const SampleOrder& part,
             int64_t start,
             const SampleAssignment& assignment,
             at::Device device)
    : micros_(assignment.accumulation),
      global_{start, assignment.global_batch()},
      tokens_(assignment.global_batch() * source.data.seq_len),
      batch_{} {
  const bool has_tokens = source.data.has_tokens();
  const int32_t count = assignment.micro_batch;
  for (int32_t a = 0; a < assignment.accumulation; ++a) {
    Micro& micro = micros_[a];
    const int64_t first = assignment.first_sample(start, a);
    for (int32_t i = 0; i < count; ++i) samples_.push_back(first + i);
    micro.inputs = has_tokens ? read_tokens(source.data, part, first, count)
                              : read_samples(source.own, part, first, count);
    for (const auto& [role, tensor] : micro.inputs) {
      const TensorView& there = micro.views.emplace_back(copy_to(tensor, device));
      micro.contract_inputs.push_back({view(role), *there.get()});
    }
    micro.contract =
        micro_batch(micro.contract_inputs.data(),
                    micro.contract_inputs.size(),
                    static_cast<double>(count_targets(source.data, part, first, count)));
    pointers_.push_back(&micro.contract);
  }
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
  // The loss is divided by the targets of all data ranks, so each rank counts the whole batch.
  targets_ = count_targets(source.data, part, start, assignment.global_batch());
  batch_.token_weight = static_cast<double>(targets_);
}

void Batch::require_targets() const {
  if (targets_ > 0) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("no target of the global batch at sample ", global_.first, " counts: ") +
                  "each of them is data.pad_token, is left out by its label mask, or begins a "
                  "separate document; allowed: batches with at least one other target; raise "
                  "train.global_batch or data.seq_len");
}

}  // namespace yoke
