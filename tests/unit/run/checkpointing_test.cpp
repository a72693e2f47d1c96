// How pieces of state get from an emulated device to visitors that need host memory, and back.
#include "core/run/checkpointing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/emulated_cuda.hpp"
#include "tests/support/operator_counter.hpp"
#include "tests/unit/run/fake_model.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;

class VisitOnHostTest : public ::testing::Test {
 protected:
  // Returns "name kind" of the pieces that are visited. visit: called with each of them.
  std::vector<std::string> visit(int32_t op, const PieceVisitor& visit) {
    std::vector<std::string> visited;
    WrappedModel model = testing::fake_model(pieces);
    visit_on_host(model, op, [&](const YokePiece& piece) {
      visited.push_back(concat(view(piece.name), " ", view(piece.kind)));
      visit(piece);
    });
    return visited;
  }

  std::vector<testing::StatePiece> pieces = {{"a", "param", at::ones({3})},
                                             {"b", "param", at::ones({4}), 0, /*replica=*/1},
                                             {"a", "exp_avg", at::ones({3})}};
  testing::EmulatedCuda cuda{/*everywhere=*/true};
  testing::OperatorCounter counter;
};

TEST_F(VisitOnHostTest, SaveCopiesOnlyWhatIsWritten) {
  const auto visited = visit(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
    EXPECT_TRUE(at::equal(borrow(*piece.view), at::ones({3})));
  });
  EXPECT_THAT(visited, ElementsAre("a param", "a exp_avg"));
  EXPECT_EQ(counter.calls("aten::copy_"), 2);
}

TEST_F(VisitOnHostTest, LoadCopiesBackWhatTheVisitorHasWritten) {
  const auto visited =
      visit(YOKE_CHECKPOINT_LOAD, [](const YokePiece& piece) { borrow(*piece.view).fill_(7); });
  EXPECT_THAT(visited, ElementsAre("a param", "b param", "a exp_avg"));
  EXPECT_EQ(counter.calls("aten::copy_"), 3);
  for (const testing::StatePiece& piece : pieces)
    EXPECT_TRUE(at::equal(piece.values, at::full_like(piece.values, 7))) << piece.name;
}

TEST_F(VisitOnHostTest, DescribeCopiesNothing) {
  const auto visited = visit(YOKE_CHECKPOINT_DESCRIBE,
                             [](const YokePiece& piece) { EXPECT_EQ(piece.view, nullptr); });
  EXPECT_THAT(visited, ElementsAre("a param", "b param", "a exp_avg"));
  EXPECT_EQ(counter.calls("aten::copy_"), 0);
}

}  // namespace
}  // namespace yoke
