#include "core/checkpoint/save_messages.hpp"

#include <gmock/gmock.h>

#include "tests/unit/checkpoint/fake_state.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {
namespace {

using ::testing::ElementsAre;

TEST(SaveMessages, KeepTensorsAndTheirPieces) {
  StoredTensor sent;
  sent.name = "w";
  sent.kind = "exp_avg";
  sent.dtype = YOKE_F64;
  sent.shape = {4, 6};
  sent.pieces = {{StridedSpan{2, 16, 4, 6}, {7, 0xffffffff}, 3}, {StridedSpan::flat(0, 2), {}, 3}};
  const std::vector<StoredTensor> read = rank_tensors_from(to_text(RankTensors{{sent}})).tensors;
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].describe(), "tensor 'w' (exp_avg)");
  EXPECT_EQ(read[0].dtype, YOKE_F64);
  EXPECT_THAT(read[0].shape, ElementsAre(4, 6));
  ASSERT_EQ(read[0].pieces.size(), 2U);
  EXPECT_EQ(read[0].pieces[0].at.text(), "[2, 24) in runs of 4 at stride 6");
  EXPECT_THAT(read[0].pieces[0].crc, ElementsAre(7, 0xffffffff));
  EXPECT_EQ(read[0].pieces[1].at.text(), "[0, 2)");
  EXPECT_TRUE(read[0].pieces[1].crc.empty());
}

TEST(SaveMessages, KeepThePlacesOfTensors) {
  const FilePlan read = file_plan_from(
      to_text(FilePlan{"/runs/a/.tmp", {{"w", "param", "model.safetensors", uint64_t{1} << 40}}}));
  EXPECT_EQ(read.folder, "/runs/a/.tmp");
  ASSERT_EQ(read.tensors.size(), 1U);
  EXPECT_EQ(read.tensors[0].name + "." + read.tensors[0].kind, "w.param");
  EXPECT_EQ(read.tensors[0].file, "model.safetensors");
  EXPECT_EQ(read.tensors[0].offset, uint64_t{1} << 40);
  EXPECT_EQ(committed_from(to_text(Committed{"/runs/a/step-00000001"})).path,
            "/runs/a/step-00000001");
}

TEST(SaveMessages, AFailureIsThrownByWhoeverReadsIt) {
  const std::string text = failure_text(YOKE_UNAVAILABLE, "a peer is lost", 2);
  for (const Outcome& error : {error_of([&] { rank_tensors_from(text); }),
                               error_of([&] { file_plan_from(text); }),
                               error_of([&] { committed_from(text); })}) {
    EXPECT_EQ(error.code, YOKE_UNAVAILABLE);
    EXPECT_EQ(error.text, "a peer is lost");
    EXPECT_EQ(error.rank, 2);
  }
}

TEST(SaveMessages, EncodeBytesThatAreNotUtf8) {
  EXPECT_NE(committed_from(to_text(Committed{"/runs/\xff"})).path.find("/runs/"),
            std::string::npos);
  EXPECT_EQ(error_of([] { committed_from(failure_text(YOKE_INTERNAL, "bad \xff", 0)); }).code,
            YOKE_INTERNAL);
}

}  // namespace
}  // namespace yoke
