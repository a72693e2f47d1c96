#include "core/verify/state_hash.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

// The layout of a piece that is not contiguous in the tensor, as in YokePiece.
struct Spans {
  int64_t run, stride;
};

uint64_t hash(std::vector<float> values, int64_t begin, std::optional<Spans> spans = {}) {
  const FlatView view(values.data(), static_cast<int64_t>(values.size()), YOKE_F32);
  YokePiece piece{};
  piece.begin = begin;
  piece.count = static_cast<int64_t>(values.size());
  piece.run = spans ? spans->run : piece.count;
  piece.stride = spans ? spans->stride : 0;
  piece.view = view.get();
  return state_hash(piece);
}

TEST(StateHash, OfPiecesAddsUpToTheHashOfTheTensor) {
  const uint64_t whole = hash({1, 2, 3, 4, 5}, 0);
  EXPECT_EQ(hash({1, 2}, 0) + hash({3, 4, 5}, 2), whole);
  EXPECT_EQ(hash({4, 5}, 3) + hash({1}, 0) + hash({2, 3}, 1), whole);
}

TEST(StateHash, OfColumnsAddsUpToTheHashOfTheMatrix) {
  const uint64_t whole = hash({1, 2, 3, 4, 5, 6}, 0);  // [2, 3]
  EXPECT_EQ(hash({1, 4}, 0, Spans{1, 3}) + hash({2, 3, 5, 6}, 1, Spans{2, 3}), whole);
}

TEST(StateHash, DependsOnValuesPositionsAndTheSignOfZero) {
  const uint64_t whole = hash({1, 2, 3}, 0);
  EXPECT_NE(hash({1, 3, 2}, 0), whole);
  EXPECT_NE(hash({1, 2, 3}, 1), whole);
  EXPECT_NE(hash({1, 2, 3.0000002f}, 0), whole);
  EXPECT_NE(hash({0.0f}, 0), hash({-0.0f}, 0));
}

TEST(StateHash, RefusesElementsOfOddWidth) {
  float value = 0;
  FlatView view(&value, 1, YOKE_F32);
  YokeTensor odd = *view.get();
  odd.dtype.bits = 24;
  YokePiece piece{};
  piece.count = piece.run = 1;
  piece.view = &odd;
  EXPECT_THROW(state_hash(piece), Error);
}

}  // namespace
}  // namespace yoke
