#include "core/model/modules.hpp"

#include <algorithm>
#include <cmath>

#include "core/checkpoint/adapter.hpp"
#include "core/checkpoint/hf_weights.hpp"
#include "core/kernels/fp8.hpp"
#include "core/model/fp8_choice.hpp"

namespace yoke {
namespace {

ops::Product fp8_product(const PrecisionConfig& precision) {
  const std::string recipe = precision.fp8_recipe.value_or("tensorwise");
  if (recipe == "rowwise") return ops::Product::kRowwise;
  return recipe == "rowwise_gw_hp" ? ops::Product::kRowwiseGwHp : ops::Product::kTensorwise;
}

// Returns how a module uses one of its own parameters.
Fp8Use use_of(const torch::nn::Module& module, const at::Tensor& param) {
  const auto* const linear = dynamic_cast<const Linear*>(&module);
  if (linear == nullptr || !param.is_same(linear->weight)) return Fp8Use::kNone;
  if (linear->product == ops::Product::kPlain) return Fp8Use::kNone;
  const ops::fp8::Recipe& recipe = ops::fp8::recipe_of(linear->product);
  const ops::fp8::Rounding one{ops::fp8::Scaling::kTensor, at::kFloat8_e4m3fn};
  return recipe.weight == one && recipe.weight_for_dx == one ? Fp8Use::kOneScale
                                                             : Fp8Use::kManyScales;
}

// Returns how the parameters are used, by the name that they have in the first block that has them.
// A parameter that several modules share, such as a tied head, has a use only if it is the same in
// all of them.
std::map<std::string, Fp8Use> fp8_uses(const BlockList& list) {
  std::map<const at::TensorImpl*, Fp8Use> uses;
  for (const TorchBlock& block : list.blocks) {
    for (const auto& module : block.module->modules()) {
      for (const at::Tensor& param : module->parameters(/*recurse=*/false)) {
        const Fp8Use use = use_of(*module, param);
        const auto [known, is_new] = uses.try_emplace(param.unsafeGetTensorImpl(), use);
        if (!is_new && known->second != use) known->second = Fp8Use::kNone;
      }
    }
  }
  std::map<std::string, Fp8Use> by_name;
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) {
      const auto use = uses.find(leaf.unsafeGetTensorImpl());
      if (use == uses.end()) continue;
      by_name[name] = use->second;
      uses.erase(use);
    }
  }
  return by_name;
}

}  // namespace

ops::Documents documents_of(const TorchInputs& inputs) {
  for (const auto& [role, tensor] : inputs) {
    if (role == "document_starts") return {tensor, input(inputs, "positions")};
  }
  return {};
}

Conv1d::Conv1d(int64_t in, const std::vector<int64_t>& out, at::ScalarType dtype)
    : Linear([&] {
        std::vector<int64_t> shape{in};
        shape.insert(shape.end(), out.begin(), out.end());
        return unallocated(shape, dtype);
      }()) {
  bias = register_parameter("bias", unallocated(out, dtype));
  input_first = true;
}

std::vector<int64_t> Linear::out_shape() const {
  const at::IntArrayRef sizes = weight.sizes();
  return (input_first ? sizes.slice(1) : sizes.slice(0, sizes.size() - 1)).vec();
}

// B has the output dims of the weight, so tensor parallelism can cut it in the same way.
void Linear::adapt(int64_t rank, double scale) {
  const at::ScalarType dtype = weight.scalar_type();
  std::vector<int64_t> up = out_shape();
  up.push_back(rank);
  lora_a =
      register_module("lora_A", std::make_shared<Weight>(at::IntArrayRef{rank, inputs()}, dtype));
  lora_b = register_module("lora_B", std::make_shared<Weight>(up, dtype));
  lora_scale = scale;
}

ops::Matrix Linear::matrix() const {
  ops::Matrix m{weight, product, bias, input_first};
  if (lora_a) m.adapter = {lora_a->weight, lora_b->weight, lora_scale};
  return m;
}

ParamInit matrix_init(bool residual, int64_t layers) {
  constexpr double kRange = 0.02;
  return {ParamInit::kUniform,
          residual ? kRange / std::sqrt(2.0 * static_cast<double>(layers)) : kRange};
}

void add_layer(BlockList& list,
               const std::string& prefix,
               const LayerHalf& first,
               const LayerHalf& second,
               std::array<const char*, 2> names,
               bool as_halves) {
  if (as_halves) {
    add_block(list, {prefix + names[0], first.module, first.forward}, prefix);
    add_block(list, {prefix + names[1], second.module, second.forward}, prefix);
    return;
  }
  const auto both = [=](const at::Tensor& x, const TorchInputs& in) {
    return second.forward(first.forward(x, in), in);
  };
  add_block(
      list, {prefix, std::make_shared<WholeLayer>(*first.module, *second.module), both}, prefix);
}

void choose_products(BlockList& list, const PrecisionConfig& precision) {
  if (precision.product != "fp8") return;
  std::vector<NamedMatrix> matrices;
  std::vector<Linear*> layers;
  for (size_t block = 0; block < list.blocks.size(); ++block) {
    for (const auto& module : list.blocks[block].module->modules()) {
      auto* const linear = dynamic_cast<Linear*>(module.get());
      if (linear == nullptr) continue;
      const auto named =
          std::find_if(list.params[block].begin(), list.params[block].end(), [&](const auto& p) {
            return p.second.is_same(linear->weight);
          });
      const std::string name = named->first.substr(0, named->first.rfind(".weight"));
      matrices.push_back({name, linear->weight.size(0), linear->weight.size(1)});
      layers.push_back(linear);
    }
  }
  const std::vector<bool> chosen = choose_fp8(matrices, precision.fp8_skip);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (chosen[i]) layers[i]->product = fp8_product(precision);
  }
  list.fp8_uses = fp8_uses(list);
  // Rounding takes memory that the costs of the blocks do not count.
  for (BlockCosts& costs : list.costs) {
    costs.pass_bytes.clear();
    if (costs.distributed) costs.distributed->passes.clear();
  }
}

void open_stored(BlockList& list,
                 const std::string& folder,
                 const std::string& embedding,
                 bool tied,
                 const std::string& optional_prefix) {
  const std::string head = "lm_head.weight";
  Shapes shapes;
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) {
      const auto stored = list.stored_shapes.find(name);
      shapes[name] = stored == list.stored_shapes.end() ? leaf.sizes().vec() : stored->second;
    }
  }
  // Weights without adapters are those of a model to which this run adds new ones.
  if (!has_adapter_config(folder)) {
    std::erase_if(shapes, [](const auto& param) { return is_adapter(param.first); });
    for (const auto& of_block : list.params) {
      for (const auto& [name, leaf] : of_block) {
        if (is_adapter(name)) list.not_stored.insert(name);
      }
    }
  }
  std::map<std::string, std::string> ties;
  if (tied) {
    shapes.erase(head);
    ties = {{head, embedding}};
  }
  list.stored = open_weights(folder, shapes, ties, optional_prefix);
}

}  // namespace yoke
