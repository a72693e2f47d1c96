// The hashes of an emulated device are compared with those of the CPU.
#include "core/run/piece_hashes.hpp"

#include <gtest/gtest.h>

#include "core/verify/state_hash.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/operator_counter.hpp"
#include "tests/unit/run/fake_model.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using testing::StatePiece;
using testing::with_piece;

constexpr int64_t kSlice = StateHash<uint8_t>::kSlice;  // the same for all types

uint64_t on_cpu(const StatePiece& state) {
  return with_piece(state, true, [](const YokePiece& piece) { return state_hash(piece); });
}

std::vector<uint64_t> on_cpu(const std::vector<StatePiece>& pieces) {
  std::vector<uint64_t> hashes;
  for (const StatePiece& piece : pieces) hashes.push_back(on_cpu(piece));
  return hashes;
}

std::vector<uint64_t> on_device(const std::vector<StatePiece>& pieces) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  PieceHashes hashes;
  for (const StatePiece& piece : pieces)
    with_piece(piece, true, [&](const YokePiece& shown) { hashes.add(shown); });
  return hashes.values();
}

// Elements with random bits.
class PieceHashesTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static at::Tensor elements(int64_t count) {
    const auto size = static_cast<int64_t>(at::elementSize(GetParam()));
    return at::randint(256, {count * size}, at::kByte).view(GetParam());
  }
};

TEST_P(PieceHashesTest, OfContiguousPiecesAreThoseOfTheCpu) {
  std::vector<StatePiece> pieces;
  for (const int64_t count : {int64_t{0},
                              int64_t{1},
                              int64_t{15},
                              int64_t{64},
                              kSlice - 1,
                              kSlice,
                              kSlice + 1,
                              3 * kSlice + 77}) {
    pieces.push_back({"w", "param", elements(count)});
    pieces.push_back({"w", "param", elements(count), (int64_t{1} << 33) + 5});
  }
  EXPECT_EQ(on_device(pieces), on_cpu(pieces));
}

// Runs that are whole packs, and runs that are not; the last run may be short.
TEST_P(PieceHashesTest, OfStridedPiecesAreThoseOfTheCpu) {
  std::vector<StatePiece> pieces;
  for (const int64_t run : {1, 3, 16, 48, 100}) {
    for (const int64_t count : {int64_t{1}, 7 * run, 7 * run + 1, 2 * kSlice + 13}) {
      StatePiece piece{"w", "param", elements(count), /*begin=*/11};
      piece.run = run;
      piece.stride = run + 37;
      pieces.push_back(piece);
    }
  }
  EXPECT_EQ(on_device(pieces), on_cpu(pieces));
}

// A shard may begin at any element of a buffer.
TEST_P(PieceHashesTest, OfMemoryThatIsNotAlignedAreThoseOfTheCpu) {
  const at::Tensor buffer = elements(2000);
  std::vector<StatePiece> pieces;
  for (const int64_t offset : {1, 2, 5, 8})
    pieces.push_back({"w", "param", buffer.slice(0, offset, 1800)});
  EXPECT_EQ(on_device(pieces), on_cpu(pieces));
}

INSTANTIATE_TEST_SUITE_P(AllSizes,
                         PieceHashesTest,
                         ::testing::Values(at::kByte, at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& suite) { return std::string(at::toString(suite.param)); });

TEST(PieceHashes, OfManyPiecesAreReadAtOnce) {
  std::vector<StatePiece> pieces;
  for (int i = 0; i < 2100; ++i) pieces.push_back({"w", "param", at::randn({1 + i % 7}), i});
  const std::vector<uint64_t> expected = on_cpu(pieces);
  const testing::OperatorCounter counter;
  EXPECT_EQ(on_device(pieces), expected);
  EXPECT_EQ(counter.calls("aten::to"), 1) << "copies to the host";
  EXPECT_EQ(counter.calls("aten::copy_"), 0);
  EXPECT_EQ(counter.calls("aten::_local_scalar_dense"), 0) << "numbers that the host reads";
}

// A CPU reads packs at any address, but a device does not.
TEST(PieceHashes, OfMemoryThatIsNotAlignedAreComputedWithoutPacks) {
  alignas(kAccessBytes) const uint32_t numbers[8] = {};
  const auto takes_packs = [](const uint32_t* from) {
    return StateHash<uint32_t>{from, nullptr, 4, 0, {4, 4}}.takes_packs();
  };
  EXPECT_TRUE(takes_packs(numbers));
  EXPECT_FALSE(takes_packs(numbers + 1));
}

TEST(PieceHashes, OfNoPiecesAreNone) {
  EXPECT_EQ(PieceHashes().values(), std::vector<uint64_t>());
}

TEST(PieceHashes, InHostMemoryNeedNoDevice) {
  const std::vector<StatePiece> pieces = {{"w", "param", at::randn({5})}};
  PieceHashes hashes;
  with_piece(pieces[0], true, [&](const YokePiece& piece) { hashes.add(piece); });
  EXPECT_EQ(hashes.values(), on_cpu(pieces));
}

}  // namespace
}  // namespace yoke
