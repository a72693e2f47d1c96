#include "core/verify/input_probe.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/base/mix.hpp"

namespace yoke {
namespace {

constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();

bool readable(const at::Tensor& t) {
  return t.defined() && t.has_storage() && t.device().is_cpu() && t.dim() > 0;
}

const at::Tensor* find(const TorchInputs& inputs, std::string_view role) {
  for (const auto& [name, tensor] : inputs) {
    if (name == role) return &tensor;
  }
  return nullptr;
}

// Of tokens at positions: a sum, so that a sequence may be cut anywhere.
std::vector<uint64_t> of_tokens(const at::Tensor& tokens, const at::Tensor& positions) {
  const at::Tensor ids = tokens.to(at::kLong).contiguous();
  const at::Tensor places = positions.to(at::kLong).contiguous();
  std::vector<uint64_t> prints(ids.size(0), 0);
  const int64_t width = ids.numel() / std::max<int64_t>(ids.size(0), 1);
  const auto* id = ids.const_data_ptr<int64_t>();
  const auto* place = places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    prints[i / width] += mix64(mix64(static_cast<uint64_t>(place[i]) + 1) ^ id[i]);
  }
  return prints;
}

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
    return of_tokens(*tokens, *positions);
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
  bool watching = false;
  bool blind = false;
  // Per micro-batch. Recomputation shows a micro-batch a second time.
  std::vector<std::vector<uint64_t>> fed;
  std::vector<ObservedLoss> losses;

  void see(const TorchInputs& inputs) {
    const auto prints = fingerprints(inputs);
    blind = blind || !prints;
    if (!prints || std::find(fed.begin(), fed.end(), *prints) != fed.end()) return;
    fed.push_back(*prints);
  }
};

void InputProbe::watch(BlockList& list) {
  state_ = std::make_shared<State>();
  if (list.blocks.empty()) return;
  TorchBlock& first = list.blocks.front();
  first.forward = [state = state_, forward = first.forward](const at::Tensor& carry,
                                                            const TorchInputs& inputs) {
    if (state->watching) state->see(inputs);
    return forward(carry, inputs);
  };
  TorchBlock& last = list.blocks.back();
  last.forward = [state = state_, forward = last.forward, weight = list.loss_weight](
                     const at::Tensor& carry, const TorchInputs& inputs) {
    at::Tensor loss = forward(carry, inputs);
    if (!state->watching || !loss.requires_grad()) return loss;
    const size_t index = state->losses.size();
    const bool plain = loss.has_storage() && loss.is_cpu();  // a look at a device waits for it
    const bool plain_inputs = std::all_of(
        inputs.begin(), inputs.end(), [](const auto& input) { return readable(input.second); });
    state->losses.push_back(
        {plain ? loss.item<double>() : kUnseen, plain_inputs ? weight(inputs) : kUnseen, kUnseen});
    if (plain) {
      loss.register_hook([state, index](const at::Tensor& scale) {
        if (state->watching) state->losses[index].scale = scale.item<double>();
      });
    }
    return loss;
  };
}

void InputProbe::start() {
  state_->watching = true;
  state_->blind = false;
  state_->fed.clear();
  state_->losses.clear();
}

void InputProbe::stop(RankReport& report) {
  state_->watching = false;
  // A step that a device repeats runs no block on the CPU.
  report.blind = state_->blind || (state_->fed.empty() && state_->losses.empty());
  report.losses = state_->losses;
  for (const auto& micro : state_->fed)
    report.fed.insert(report.fed.end(), micro.begin(), micro.end());
}

}  // namespace yoke
