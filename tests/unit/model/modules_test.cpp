#include "core/model/modules.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "core/kernels/fp8.hpp"
#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"

namespace yoke {
namespace {

using Uses = std::map<std::string, Fp8Use>;

ModelConfig config(bool tied, bool half_blocks) {
  ModelConfig c;
  c.dim = 32;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 1;
  c.ffn_dim = 48;
  c.vocab = 64;
  c.tied = tied;
  if (half_blocks) c.blocks = "half";
  return c;
}

TorchModelHost host(const ModelConfig& config, const PrecisionConfig& precision) {
  return TorchModelHost(
      llama_family(config, precision).make_blocks({.param_dtype = YOKE_BF16}), YOKE_BF16, 1, false);
}

PrecisionConfig fp8(const std::string& recipe, const std::vector<std::string>& skip) {
  PrecisionConfig precision;
  precision.product = "fp8";
  precision.fp8_recipe = recipe;
  precision.fp8_skip = skip;
  return precision;
}

// Returns the uses that the summary of the model announces.
Uses announced(const TorchModelHost& model) {
  const Fp8Params* const fp8 = fp8_params(model.summary());
  Uses uses;
  for (uint64_t p = 0; fp8 != nullptr && p < model.summary().num_params; ++p)
    uses[std::string(view(model.summary().params[p]->name))] = fp8->uses[p];
  return uses;
}

TEST(Fp8Uses, AreThoseOfTheMatricesThatAreNotSkipped) {
  const std::vector<std::pair<std::string, Fp8Use>> recipes{{"tensorwise", Fp8Use::kOneScale},
                                                            {"rowwise", Fp8Use::kManyScales},
                                                            {"rowwise_gw_hp", Fp8Use::kManyScales}};
  for (const auto& [recipe, use] : recipes) {
    for (const bool half_blocks : {false, true}) {
      SCOPED_TRACE(recipe);
      const Uses uses =
          announced(host(config(false, half_blocks), fp8(recipe, {"layers.1.mlp", "lm_head"})));
      ASSERT_EQ(uses.size(), 2u + 2 * 9 + 1);
      for (const auto& [name, got] : uses) {
        const bool matrix = name.ends_with("proj.weight");
        const bool skipped = name.find("layers.1.mlp") != std::string::npos;
        EXPECT_EQ(got, matrix && !skipped ? use : Fp8Use::kNone) << name;
      }
    }
  }
}

// The embedding reads the rows of a tied head as they are.
TEST(Fp8Uses, OfAHeadAreNoneIfItIsTied) {
  const PrecisionConfig all = fp8("tensorwise", {});
  EXPECT_EQ(announced(host(config(false, false), all)).at("lm_head.weight"), Fp8Use::kOneScale);
  EXPECT_EQ(announced(host(config(true, false), all)).at("model.embed_tokens.weight"),
            Fp8Use::kNone);
}

TEST(Fp8Uses, AreNotAnnouncedWithoutFp8) {
  EXPECT_EQ(fp8_params(host(config(false, false), {}).summary()), nullptr);
}

TEST(Fp8Uses, ComeWithTheFunctionsOfTheProducts) {
  const TorchModelHost model = host(config(false, false), fp8("tensorwise", {}));
  const Fp8Params& functions = *fp8_params(model.summary());
  const at::Tensor x = at::randn({16, 16}).to(at::kBFloat16);
  const at::Tensor scale = functions.scale(x.abs().max().to(at::kFloat));
  const at::Tensor numbers = functions.cast(x, scale);
  EXPECT_EQ(numbers.scalar_type(), at::kFloat8_e4m3fn);
  const ops::fp8::Rounding rounding{ops::fp8::Scaling::kTensor, at::kFloat8_e4m3fn};
  EXPECT_TRUE(at::equal(numbers.to(at::kFloat).div(scale), ops::fp8::rounded(x, rounding)));
}

}  // namespace
}  // namespace yoke
