#include "sdk/compat/flat_description.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "yoke/torch.hpp"

namespace yoke::compat {
namespace {

using ::testing::ElementsAre;

TEST(FlatDescription, NamesWhatTheEngineOfFlatBuffersCanDo) {
  YokeOptionInfo option{};
  const std::vector<const YokeOptionInfo*> options{&option};
  const YokeDescription d = flat_description("name", "1.2.3", "one line", options);
  EXPECT_EQ(view(d.name), "name");
  EXPECT_EQ(view(d.version), "1.2.3");
  EXPECT_EQ(view(d.summary), "one line");
  EXPECT_EQ(view(d.torch_tag), kTorchTag);
  EXPECT_THAT(std::vector<int32_t>(d.param_dtypes, d.param_dtypes + d.num_param_dtypes),
              ElementsAre(YOKE_F32, YOKE_F64, YOKE_BF16));
  for (const int axis : {YOKE_PP, YOKE_DP_REPLICATE, YOKE_DP_SHARD, YOKE_CP, YOKE_TP})
    EXPECT_NE(d.axes & YOKE_AXIS_BIT(axis), 0u) << axis;
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_EQ((d.zero_stages & 1u << stage) != 0, stage <= 1) << stage;
  EXPECT_EQ(d.devices, 1u << YOKE_DEVICE_CPU | 1u << YOKE_DEVICE_CUDA);
  ASSERT_EQ(d.num_options, 1u);
  EXPECT_EQ(d.options[0], &option);
}

}  // namespace
}  // namespace yoke::compat
