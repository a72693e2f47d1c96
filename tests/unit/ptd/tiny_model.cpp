#include "tests/unit/ptd/tiny_model.hpp"

#include <ATen/ATen.h>

#include "core/model/init.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr double kStd = 0.3;

struct Param {
  std::string name;
  std::vector<int64_t> shape;
  bool trainable = true;
};

// Returns the parameters of each block. A tied head uses embed.weight and has no `out`.
std::vector<std::vector<Param>> list_params(const TinyModel& m) {
  constexpr int64_t v = TinyModel::kVocab, d = TinyModel::kDim, h = TinyModel::kHidden;
  std::vector<std::vector<Param>> blocks{{{"embed.weight", {v, d}, !m.frozen_embedding}}};
  for (int i = 0; i < m.layers; ++i) {
    const std::string mlp = "mlp" + std::to_string(i) + ".";
    blocks.push_back({{mlp + "scale", {d}, false},
                      {mlp + "up", {h, d}},
                      {mlp + "bias", {h}},
                      {mlp + "down", {d, h}}});
  }
  blocks.push_back({{"head.gain", {}}, {"head.unused", {9}}});
  if (!m.tied) blocks.back().push_back({"head.out", {v, d}});
  return blocks;
}

at::Tensor sum_of_losses(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.element_size() == 2 ? logits.to(at::kFloat) : logits;
  return at::cross_entropy_loss(wide.view({-1, TinyModel::kVocab}),
                                targets.reshape({-1}),
                                {},
                                at::Reduction::Sum,
                                /*ignore_index=*/-1);
}

}  // namespace

BlockList TinyModel::blocks() const {
  BlockList list;
  std::map<std::string, at::Tensor> leaf;
  for (const auto& block : list_params(*this)) {
    auto& named = list.params.emplace_back();
    for (const Param& p : block) {
      leaf[p.name] = at::zeros(p.shape, dtype).set_requires_grad(p.trainable);
      named.emplace_back(p.name, leaf[p.name]);
    }
  }
  if (tied) list.params.back().emplace_back("embed.weight", leaf["embed.weight"]);

  const auto add = [&](const std::string& name, auto forward) {
    list.blocks.push_back({name, nullptr, forward});
  };
  add("embed", [w = leaf["embed.weight"]](const at::Tensor&, const TorchInputs& in) {
    return at::embedding(w, input(in, "tokens"));
  });
  for (int i = 0; i < layers; ++i) {
    const std::string mlp = "mlp" + std::to_string(i) + ".";
    add(mlp,
        [s = leaf[mlp + "scale"],
         up = leaf[mlp + "up"],
         bias = leaf[mlp + "bias"],
         down = leaf[mlp + "down"]](const at::Tensor& x, const TorchInputs&) {
          return x + at::linear(at::tanh(at::linear(x * s, up, bias)), down);
        });
  }
  add("head",
      [gain = leaf["head.gain"], out = tied ? leaf["embed.weight"] : leaf["head.out"]](
          const at::Tensor& x, const TorchInputs& in) {
        return sum_of_losses(gain * at::linear(x, out), input(in, "targets"));
      });
  list.init = [](const std::string&) { return ParamInit{ParamInit::kUniform, kStd}; };
  list.loss_weight = [](const TorchInputs& in) { return count_targets(input(in, "targets")); };
  return list;
}

TinyModel::Params TinyModel::plain_params() const {
  Params params;
  for (const auto& block : list_params(*this)) {
    for (const Param& p : block) {
      at::Tensor value = at::empty(p.shape, at::kFloat);
      init_uniform(p.name, kSeed, kStd, 0, value.numel(), value.data_ptr<float>());
      params[p.name] = value.to(dtype).set_requires_grad(p.trainable);
    }
  }
  return params;
}

at::Tensor TinyModel::plain_loss(const Params& params,
                                 const at::Tensor& tokens,
                                 const at::Tensor& targets) const {
  at::Tensor x = params.at("embed.weight").index_select(0, tokens.reshape({-1}));
  for (int i = 0; i < layers; ++i) {
    const auto p = [&](const char* name) {
      return params.at("mlp" + std::to_string(i) + "." + name);
    };
    x = x + (x * p("scale")).matmul(p("up").t()).add(p("bias")).tanh().matmul(p("down").t());
  }
  const at::Tensor out = params.at(tied ? "embed.weight" : "head.out");
  return sum_of_losses(x.matmul(out.t()) * params.at("head.gain"), targets);
}

TinySamples::TinySamples(int64_t first, int64_t count) {
  tokens = at::empty({count, TinyModel::kSeqLen}, at::kLong);
  targets = at::empty_like(tokens);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    const int64_t at = first * TinyModel::kSeqLen + i;
    const int64_t token = (at * at * 7 + at * 3 + 1) % TinyModel::kVocab;
    tokens.data_ptr<int64_t>()[i] = token;
    targets.data_ptr<int64_t>()[i] = at % 5 == 3 ? -1 : (token * 5 + 2) % TinyModel::kVocab;
  }
}

double count_targets(const at::Tensor& targets) {
  return targets.ge(0).sum().item<double>();
}

}  // namespace yoke::ptd::testing
