// The probe is in the model, not in the backend: it reads the inputs where the first block receives
// them, so a backend cannot pass other samples unnoticed. Inputs on a device are not read, because
// copying even one number to the host would stall the step. The report then has `unreadable` set,
// and NaN for the number of targets.
#include "core/verify/input_probe.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/base/mix.hpp"

namespace yoke {
namespace {

constexpr double kNotObserved = std::numeric_limits<double>::quiet_NaN();

bool readable(const at::Tensor& t) {
  return t.defined() && t.has_storage() && t.device().is_cpu() && t.dim() > 0;
}

const at::Tensor* find(const TorchInputs& inputs, std::string_view role) {
  for (const auto& [name, tensor] : inputs) {
    if (name == role) return &tensor;
  }
  return nullptr;
}

// Mixes each token with its position and adds up the results. A sum does not depend on the order of
// its terms, so a sequence may be cut anywhere, as context parallelism does.
std::vector<uint64_t> token_prints(const at::Tensor& tokens, const at::Tensor& positions) {
  const at::Tensor ids = tokens.to(at::kLong).contiguous();
  const at::Tensor position_ids = positions.to(at::kLong).contiguous();
  std::vector<uint64_t> prints(ids.size(0), 0);
  const int64_t width = ids.numel() / std::max<int64_t>(ids.size(0), 1);
  const auto* id = ids.const_data_ptr<int64_t>();
  const auto* position = position_ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    prints[i / width] += mix64(mix64(static_cast<uint64_t>(position[i]) + 1) ^ id[i]);
  }
  return prints;
}

// Continues the fingerprint of each row with the bytes of that row.
void add_bytes(const at::Tensor& tensor, std::vector<uint64_t>& prints) {
  const at::Tensor t = tensor.contiguous();
  const auto* bytes = static_cast<const uint8_t*>(t.const_data_ptr());
  const size_t width = t.nbytes() / prints.size();
  for (size_t row = 0; row < prints.size(); ++row) {
    for (size_t i = 0; i < width; ++i)
      prints[row] = mix64(prints[row] + bytes[row * width + i] + 1);
  }
}

}  // namespace

std::optional<std::vector<uint64_t>> fingerprints(const TorchInputs& inputs) {
  const at::Tensor *tokens = find(inputs, "tokens"), *positions = find(inputs, "positions");
  if (tokens != nullptr && positions != nullptr) {
    if (!readable(*tokens) || !readable(*positions)) return std::nullopt;
    return token_prints(*tokens, *positions);
  }
  std::vector<uint64_t> prints;
  for (const auto& [role, tensor] : inputs) {
    if (!readable(tensor)) return std::nullopt;
    prints.resize(tensor.size(0), 0);
    add_bytes(tensor, prints);
  }
  return prints;
}

struct InputProbe::State {
  bool observing = false;
  bool unreadable = false;
  std::vector<std::vector<uint64_t>> received;  // per micro-batch
  std::vector<ObservedLoss> losses;

  // Recomputation runs the forward of a micro-batch a second time. Equal inputs are stored once.
  void observe_inputs(const TorchInputs& inputs) {
    const auto prints = fingerprints(inputs);
    unreadable = unreadable || !prints;
    if (!prints || std::find(received.begin(), received.end(), *prints) != received.end()) return;
    received.push_back(*prints);
  }

  // Records the loss of a micro-batch, and later the gradient with respect to it.
  static void observe_loss(const std::shared_ptr<State>& state,
                           const at::Tensor& loss,
                           double weight) {
    const size_t index = state->losses.size();
    const bool on_cpu = loss.has_storage() && loss.is_cpu();
    state->losses.push_back({on_cpu ? loss.item<double>() : kNotObserved, weight, kNotObserved});
    if (!on_cpu) return;
    loss.register_hook([state, index](const at::Tensor& scale) {
      if (state->observing) state->losses[index].scale = scale.item<double>();
    });
  }
};

void InputProbe::attach(BlockList& list) {
  state_ = std::make_shared<State>();
  if (list.blocks.empty()) return;
  TorchBlock& first = list.blocks.front();
  first.forward = [state = state_, forward = first.forward](const at::Tensor& carry,
                                                            const TorchInputs& inputs) {
    if (state->observing) state->observe_inputs(inputs);
    return forward(carry, inputs);
  };
  TorchBlock& last = list.blocks.back();
  last.forward = [state = state_, forward = last.forward, weight = list.loss_weight](
                     const at::Tensor& carry, const TorchInputs& inputs) {
    at::Tensor loss = forward(carry, inputs);
    // With recomputation, the first forward runs without gradients; only the second is recorded.
    if (!state->observing || !loss.requires_grad()) return loss;
    const bool all_readable = std::all_of(
        inputs.begin(), inputs.end(), [](const auto& input) { return readable(input.second); });
    State::observe_loss(state, loss, all_readable ? weight(inputs) : kNotObserved);
    return loss;
  };
}

void InputProbe::start() {
  state_->observing = true;
  state_->unreadable = false;
  state_->received.clear();
  state_->losses.clear();
}

void InputProbe::stop(RankReport& report) {
  state_->observing = false;
  // When a device replays a recorded step (a CUDA graph), no block function is called at all.
  report.unreadable = state_->unreadable || (state_->received.empty() && state_->losses.empty());
  report.losses = state_->losses;
  for (const auto& micro : state_->received)
    report.received.insert(report.received.end(), micro.begin(), micro.end());
}

}  // namespace yoke
