// A backend on LibTorch calls the forward functions of TorchModel and LibTorch's autograd instead
// of the callbacks. The functions are wrapped here. What happens inside of autograd, and what the
// backend does to the parameters, is not visible.
#include "plugins/validate/torch_blocks.hpp"

#include <torch/nn/module.h>

#include "yoke/text.hpp"
#include "yoke/torch.hpp"

namespace yoke::validate {
namespace {

constexpr const char* kCall = "TorchBlock.forward";

// Returns the name of a parameter without memory; "" = there is none.
std::string unbound_parameter(torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& p = item.value();
    if (p.has_storage() && p.numel() > 0 && p.storage().nbytes() == 0) return item.key();
  }
  return "";
}

class TorchModelExtension final : public WatchedTorchModel {
 public:
  TorchModelExtension(const TorchModel& real, Monitor& monitor)
      : monitor_(monitor), blocks_(*real.blocks), model_(real) {
    for (TorchBlock& block : blocks_) {
      block.forward =
          [this, name = block.name, module = block.module, real_forward = block.forward](
              const at::Tensor& carry, const TorchInputs& inputs) {
            return forward(name, *module, [&] { return real_forward(carry, inputs); });
          };
    }
    model_.blocks = &blocks_;
  }

  const YokeHeader* header() const override { return &model_.header; }

 private:
  template <class F>
  at::Tensor forward(const std::string& name, torch::nn::Module& module, F&& real_forward) {
    Stopwatch watch(monitor_);
    if (monitor_.current().thread != std::this_thread::get_id() &&
        monitor_.violated(Rule::kThreadOfTheCall, kCall, "block '" + name + "' runs elsewhere"))
      monitor_.require_none();
    if (const std::string unbound = unbound_parameter(module);
        !unbound.empty() && monitor_.violated(Rule::kBoundBeforeUse,
                                              kCall,
                                              "block '" + name + "' runs while its parameter '" +
                                                  unbound + "' has no memory"))
      monitor_.require_none();
    at::Tensor output = watch.forward(real_forward);
    if (monitor_.trace().on()) {
      Fields fields;
      fields.add("block", name).add("count", output.numel());
      fields.add("bytes", output.numel() * static_cast<int64_t>(output.element_size()));
      monitor_.trace_call("backend", kCall, YOKE_OK, watch, fields);
    }
    return output;
  }

  Monitor& monitor_;
  std::vector<TorchBlock> blocks_;
  TorchModel model_;
};

}  // namespace

std::unique_ptr<WatchedTorchModel> watch_torch_model(const YokeModel& model, Monitor& monitor) {
  const TorchModel* real = torch_model(model);
  if (real == nullptr) return nullptr;
  return std::make_unique<TorchModelExtension>(*real, monitor);
}

}  // namespace yoke::validate
