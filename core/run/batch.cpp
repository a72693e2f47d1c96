#include "core/run/batch.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <memory>

#include "yoke/error.hpp"

namespace yoke {
namespace {

TorchInputs read_tokens(const DataSet& data, const Sampler& part, int64_t first, int64_t count) {
  const auto host = std::make_shared<HostMicroBatch>(read_micro_batch(data, part, first, count));
  const auto tensor = [&](std::vector<int64_t>& values) {
    return at::from_blob(
        values.data(), {count, data.seq_len}, [host](void*) {}, at::TensorOptions(at::kLong));
  };
  return {{"tokens", tensor(host->tokens)},
          {"targets", tensor(host->targets)},
          {"positions", tensor(host->positions)}};
}

std::string text(const TorchInputs& inputs) {
  std::string out;
  for (const auto& [role, tensor] : inputs) {
    out += (out.empty() ? "" : ", ") + role + " " + c10::toString(tensor.scalar_type()) + " " +
           c10::str(tensor.sizes());
  }
  return out.empty() ? "nothing" : out;
}

bool alike(const TorchInputs& a, const TorchInputs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() &&
           x.second.sizes() == y.second.sizes();
  });
}

TorchInputs read_samples(const Samples& own, const Sampler& part, int64_t first, int64_t count) {
  std::vector<TorchInputs> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(own.read(part.window(first + i)));
    if (alike(samples.back(), samples.front()) && !samples.front().empty()) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                "sample " + std::to_string(part.window(first + i)) + " of the family has " +
                    text(samples.back()) + ", sample " + std::to_string(part.window(first)) +
                    " has " + text(samples.front()) +
                    "; allowed: at least one input, and the same ones in every sample");
  }
  TorchInputs stacked;
  for (size_t input = 0; input < samples.front().size(); ++input) {
    std::vector<at::Tensor> rows;
    for (const TorchInputs& sample : samples) rows.push_back(sample[input].second);
    stacked.emplace_back(samples.front()[input].first, at::stack(rows));
  }
  return stacked;
}

// From pinned memory, which LibTorch keeps until the copy is done: the call does not wait.
at::Tensor moved(const at::Tensor& input, at::Device device) {
  if (device.is_cpu()) return input;
  return input.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

Batch::Batch(
    const Source& source, const Sampler& part, int64_t sample, const Deal& deal, at::Device device)
    : micros_(deal.accumulation),
      global_{sample, deal.global_batch()},
      tokens_(deal.global_batch() * source.data.seq_len),
      batch_{} {
  const bool tokens = source.data.stream != nullptr;
  for (int32_t a = 0; a < deal.accumulation; ++a) {
    Micro& m = micros_[a];
    const int64_t first = sample + (int64_t{a} * deal.data_ranks + deal.data_rank) * deal.sequences;
    m.inputs = tokens ? read_tokens(source.data, part, first, deal.sequences)
                      : read_samples(source.own, part, first, deal.sequences);
    for (int32_t i = 0; i < deal.sequences; ++i) samples_.push_back(first + i);
    for (const auto& [role, tensor] : m.inputs) {
      const TensorView& there = m.views.emplace_back(moved(tensor, device));
      m.contract_inputs.push_back({view(role), *there.get()});
    }
    m.contract =
        micro_batch(m.contract_inputs.data(),
                    m.contract_inputs.size(),
                    static_cast<double>(count_targets(source.data, part, first, deal.sequences)));
    pointers_.push_back(&m.contract);
  }
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
  const int64_t targets = count_targets(source.data, part, sample, deal.global_batch());
  if (targets == 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "no target counts in the samples from " + std::to_string(sample) +
                    " on: all of them are data.pad_token; allowed: batches with at least one");
  }
  batch_.token_weight = static_cast<double>(targets);
}

}  // namespace yoke
