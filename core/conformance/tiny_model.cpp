#include "core/conformance/tiny_model.hpp"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <limits>

#include "core/kernels/ops.hpp"
#include "core/model/llama.hpp"

namespace yoke {
namespace {

using conformance::FaultInjection;
using conformance::ModelSpec;
using torch::nn::Module;

constexpr int64_t kDim = 5, kHidden = 7, kLargeHidden = 14'000;

at::Tensor leaf(at::IntArrayRef shape, int32_t dtype) {
  return unallocated(shape, scalar_type(dtype));
}

struct Embed : Module {
  explicit Embed(int32_t dtype) {
    weight = register_parameter("weight", leaf({ModelSpec::kVocab, kDim}, dtype));
  }
  at::Tensor weight;
};

// Computes x + tanh(x * scale @ up^T + bias) @ down^T.
struct Mlp : Module {
  explicit Mlp(const ModelSpec& spec) {
    const int64_t hidden = spec.large ? kLargeHidden : kHidden;
    up = register_parameter("up", leaf({hidden, kDim}, spec.dtype));
    bias = register_parameter("bias", leaf({hidden}, spec.dtype));
    scale = register_parameter("scale", leaf({kDim}, spec.dtype), /*requires_grad=*/false);
    down = register_parameter("down", leaf({kDim, hidden}, spec.dtype));
    if (spec.unused) register_parameter("unused", leaf({3}, spec.dtype));
  }
  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor hidden = at::tanh(at::matmul(x * scale, up.t()) + bias);
    return x + at::matmul(hidden, down.t());
  }
  at::Tensor up, bias, scale, down;
};

struct Head : Module {
  Head(int32_t dtype, const at::Tensor& tied) {
    gain = register_parameter("gain", leaf({}, dtype));
    weight = register_parameter("weight",
                                tied.defined() ? tied : leaf({ModelSpec::kVocab, kDim}, dtype));
  }
  at::Tensor gain, weight;
};

// A small model with a frozen parameter, a scalar one, a parameter that can be tied and one that
// can be unused. Its sizes are odd, so that no degree divides them.
BlockList odd_blocks(const ModelSpec& spec) {
  BlockList list;
  auto embed = std::make_shared<Embed>(spec.dtype);
  auto mlp = std::make_shared<Mlp>(spec);
  auto head = std::make_shared<Head>(spec.dtype, spec.tied ? embed->weight : at::Tensor());
  add_block(list,
            {"embed",
             embed,
             [embed](const at::Tensor&, const TorchInputs& in) {
               return at::embedding(embed->weight, input(in, "tokens"));
             }},
            "embed");
  add_block(
      list,
      {"mlp", mlp, [mlp](const at::Tensor& x, const TorchInputs&) { return mlp->forward(x); }},
      "mlp");
  add_block(list,
            {"head",
             head,
             [head](const at::Tensor& x, const TorchInputs& in) {
               const at::Tensor logits = at::matmul(x * head->gain, head->weight.t());
               return ops::composite::cross_entropy_sum(logits, input(in, "targets"));
             }},
            "head");
  list.init = [](const std::string& name) -> ParamInit {
    if (name == "mlp.scale" || name == "head.gain") return {ParamInit::kConstant, 1.5};
    return {ParamInit::kUniform, 0.4};
  };
  list.loss_weight = [](const TorchInputs& in) { return ops::count_targets(input(in, "targets")); };
  return list;
}

// A Llama whose heads, widths and sequence length can be divided by 2 and 4.
BlockList sequence_blocks(const ModelSpec& spec) {
  ModelConfig config;
  config.dim = 16;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.ffn_dim = 12;
  config.vocab = 12;
  config.tied = spec.tied;
  FamilyArgs args;
  args.param_dtype = spec.dtype;
  args.seq_len = ModelSpec::kSeqLen;
  return llama_family(config).make_blocks(args);
}

// Makes one element of the gradient of the first block's output infinite. The block is a look-up,
// so one element of the gradient of its table becomes infinite.
at::Tensor with_infinite_element(const at::Tensor& grad) {
  at::Tensor changed = grad.clone();
  changed.view(-1)[0] = std::numeric_limits<double>::infinity();
  return changed;
}

at::Tensor scaled_loss(const at::Tensor& loss,
                       const TorchInputs& inputs,
                       const FaultInjection& injection) {
  double factor = injection.loss_factor;
  const int64_t first = input(inputs, "positions").view(-1)[0].item<int64_t>();
  if (injection.loss_factor_in_positions && first != 0) factor *= static_cast<double>(first);
  return factor != 1 ? loss * factor : loss;
}

}  // namespace

BlockList make_tiny_model(const ModelSpec& spec, FaultInjection& injection) {
  BlockList list = spec.kind == ModelSpec::kOdd ? odd_blocks(spec) : sequence_blocks(spec);
  for (TorchBlock& block : list.blocks) {
    const bool first = &block == &list.blocks.front(), last = &block == &list.blocks.back();
    block.forward = [forward = block.forward, name = block.name, first, last, &injection](
                        const at::Tensor& carry, const TorchInputs& inputs) {
      if (injection.fail_forward >= 0 && injection.fail_forward-- == 0)
        throw Error(YOKE_RESOURCE_EXHAUSTED, "the check made the forward of '" + name + "' fail");
      const at::Tensor out = forward(carry, inputs);
      if (first && injection.infinite_element && out.requires_grad())
        out.register_hook(with_infinite_element);
      return last ? scaled_loss(out, inputs, injection) : out;
    };
  }
  return list;
}

}  // namespace yoke
