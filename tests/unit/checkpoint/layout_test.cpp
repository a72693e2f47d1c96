#include "core/checkpoint/layout.hpp"

#include <gtest/gtest.h>

#include "core/base/crc32c.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"

namespace yoke {
namespace {

StoredTensor tensor(const std::string& name,
                    const std::string& kind,
                    std::vector<int64_t> shape,
                    int32_t dtype = YOKE_F32) {
  StoredTensor t;
  t.name = name;
  t.kind = kind;
  t.dtype = dtype;
  t.shape = std::move(shape);
  return t;
}

TEST(LayOut, PutsTensorsOneBehindTheOtherAlignedToTheirItems) {
  std::vector<StoredTensor> tensors = {tensor("b", "param", {3}, YOKE_BF16),
                                       tensor("a", "param", {5}),
                                       tensor("c", "param", {2}, YOKE_F64),
                                       tensor("a", "exp_avg", {5})};
  const std::vector<LaidOutFile> files = lay_out(&tensors, {}, 1000);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].file.name, "model.safetensors");
  EXPECT_EQ(files[1].file.name, "optimizer.safetensors");
  const uint64_t begin = files[0].head.size();
  EXPECT_EQ(begin % 64, 0U);
  EXPECT_EQ(tensors[2].offset, begin);            // 8-byte items first
  EXPECT_EQ(tensors[1].offset, begin + 16);       // then 4
  EXPECT_EQ(tensors[0].offset, begin + 16 + 20);  // then 2
  EXPECT_EQ(files[0].file.bytes, begin + 16 + 20 + 6);
  EXPECT_EQ(files[0].file.head_crc, crc32c(0, files[0].head.data(), files[0].head.size()));
  EXPECT_EQ(tensors[3].file, "optimizer.safetensors");
}

TEST(LayOut, GivesATensorAboveTheLimitAFileOfItsOwn) {
  std::vector<StoredTensor> tensors = {tensor("a", "param", {10}),
                                       tensor("b", "param", {1000}),
                                       tensor("c", "param", {10}),
                                       tensor("d", "param", {10})};
  lay_out(&tensors, {}, 100);
  EXPECT_EQ(tensors[0].file, "model-00001-of-00003.safetensors");
  EXPECT_EQ(tensors[1].file, "model-00002-of-00003.safetensors");
  EXPECT_EQ(tensors[2].file, "model-00003-of-00003.safetensors");
  EXPECT_EQ(tensors[3].file, "model-00003-of-00003.safetensors");
}

}  // namespace
}  // namespace yoke
