#include "core/model/fp8_choice.hpp"

#include <gmock/gmock.h>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<NamedMatrix> kMatrices{{"model.layers.0.self_attn.q_proj", 64, 64},
                                         {"model.layers.0.mlp.down_proj", 64, 256},
                                         {"model.layers.10.mlp.down_proj", 64, 256},
                                         {"lm_head", 250, 64}};

std::string fault(const std::vector<NamedMatrix>& matrices, const std::vector<std::string>& skip) {
  try {
    choose_fp8(matrices, skip);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Fp8Choice, SkipsWhatPartsOfNamesSay) {
  EXPECT_THAT(choose_fp8(kMatrices, {"lm_head"}), ElementsAre(true, true, true, false));
}

TEST(Fp8Choice, ComparesWholeParts) {
  EXPECT_THAT(choose_fp8(kMatrices, {"lm_head", "layers.10"}),
              ElementsAre(true, true, false, false));
  EXPECT_THAT(choose_fp8(kMatrices, {"lm_head", "mlp"}), ElementsAre(true, false, false, false));
  EXPECT_THAT(choose_fp8(kMatrices, {"lm_head", "model.layers.0.mlp.down_proj"}),
              ElementsAre(true, false, true, false));
  EXPECT_THAT(fault(kMatrices, {"lm_head", "layers.1"}), HasSubstr("\"layers.1\" names no matrix"));
}

TEST(Fp8Choice, NamesEntriesWithoutAMatrix) {
  EXPECT_THAT(fault(kMatrices, {"lm_haed", "lm_head"}),
              AllOf(HasSubstr("precision.fp8_skip: \"lm_haed\" names no matrix"),
                    HasSubstr("did you mean 'lm_head'?")));
  EXPECT_THAT(fault(kMatrices, {"", "lm_head"}), HasSubstr("\"\" names no matrix"));
}

TEST(Fp8Choice, NamesMatricesThatAreNoMultiplesOf16) {
  EXPECT_EQ(
      fault(kMatrices, {}),
      "precision.product = \"fp8\": lm_head is [250, 64]; allowed: sides that are multiples of "
      "16 (nearest: [240 or 256, 64]), or the name in precision.fp8_skip");
}

TEST(Fp8Choice, ChecksBothSides) {
  EXPECT_THAT(fault({{"up_proj", 64, 40}}, {}), HasSubstr("(nearest: [64, 32 or 48])"));
  EXPECT_THAT(fault({{"up_proj", 40, 64}}, {}), HasSubstr("(nearest: [32 or 48, 64])"));
}

TEST(Fp8Choice, NamesMatricesOfOneKindOnce) {
  EXPECT_EQ(
      fault({{"model.layers.0.mlp.up_proj", 8, 40}, {"model.layers.1.mlp.up_proj", 8, 40}}, {}),
      "precision.product = \"fp8\": model.layers.0.mlp.up_proj and 1 more like it is [8, 40]; "
      "allowed: sides that are multiples of 16 (nearest: [16, 32 or 48]), or the name in "
      "precision.fp8_skip");
}

}  // namespace
}  // namespace yoke
