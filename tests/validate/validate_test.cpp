// Tests the parts of plugins/validate: its page, the coverage of tensors by pieces, and hashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "plugins/validate/pieces.hpp"
#include "plugins/validate/rules.hpp"
#include "plugins/validate/tensors.hpp"
#include "plugins/validate/trace.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

using ::testing::HasSubstr;
using testing::read_file;

// ---- The page ----

TEST(Rules, AreTheTableOfTheReadme) {
  std::string table = "| rule | fault of | what must hold | how to fix |\n|---|---|---|---|\n";
  for (const RuleRow& row : rule_table())
    table += "| " + id_of(row.rule) + " | " + (row.of_host ? "host" : "backend") + " | " +
             row.text + " | " + row.fix + " |\n";
  EXPECT_THAT(read_file(YOKE_VALIDATE_README), HasSubstr(table));
}

TEST(Rules, AreNumberedInTheirOrder) {
  ASSERT_EQ(rule_table().size(), static_cast<size_t>(Rule::kEnd) - 1);
  for (size_t i = 0; i < rule_table().size(); ++i)
    EXPECT_EQ(static_cast<size_t>(rule_table()[i].rule), i + 1);
}

// ---- Pieces ----

// A model of one parameter that is not trained, so that a state consists of it and of the step.
struct OneTensor {
  explicit OneTensor(std::vector<int64_t> sizes) : shape(std::move(sizes)) {
    param.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    param.name = view("w");
    param.shape = shape.data();
    param.ndim = static_cast<int32_t>(shape.size());
    param.dtype = YOKE_F32;
    summary.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
    summary.params = &pointer;
    summary.num_params = 1;
    step.name = "optimizer";
    step.kind = "step";
    step.dtype = YOKE_I64;
    step.count = step.run = 1;
  }
  Expected expected() const { return {&summary, {}, {}, false}; }
  PieceKey piece(int64_t begin, int64_t count, int64_t run, int64_t stride, int64_t replica = 0) {
    PieceKey p;
    p.name = "w";
    p.kind = "param";
    p.shape = shape;
    p.dtype = YOKE_F32;
    p.begin = begin;
    p.count = count;
    p.run = run;
    p.stride = stride;
    p.replica = replica;
    return p;
  }
  std::vector<int64_t> shape;
  YokeParameter param{};
  const YokeParameter* pointer = &param;
  YokeModelSummary summary{};
  PieceKey step;
};

std::string fault_of(OneTensor& tensor,
                     std::vector<std::vector<PieceKey>> ranks,
                     std::vector<Copies>* copies) {
  ranks[0].push_back(tensor.step);
  return coverage_fault(ranks, tensor.expected(), copies);
}

// The plain version: how often each element is in a piece with replica 0.
std::vector<int> counts(const OneTensor& tensor, const std::vector<std::vector<PieceKey>>& ranks) {
  std::vector<int> counts(
      static_cast<size_t>(numel(tensor.shape.data(), static_cast<int32_t>(tensor.shape.size()))));
  for (const auto& pieces : ranks) {
    for (const PieceKey& p : pieces) {
      for (int64_t i = 0; i < p.count && p.replica == 0; ++i)
        ++counts[static_cast<size_t>(p.begin + i / p.run * p.stride + i % p.run)];
    }
  }
  return counts;
}

TEST(Coverage, FindsWhatCountingFinds) {
  std::mt19937 random(7);
  const auto pick = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  int good = 0, bad = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t rows = 1 + pick(5), columns = 2 + pick(6), ranks = 1 + pick(3);
    OneTensor tensor({rows, columns});
    std::vector<std::vector<PieceKey>> shown(static_cast<size_t>(ranks));
    const bool by_columns = pick(2) == 0;
    int64_t at = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t whole = by_columns ? columns : rows * columns;
      const int64_t width = rank + 1 == ranks ? whole - at : pick(static_cast<int>(whole - at + 1));
      if (width > 0)
        shown[static_cast<size_t>(rank)].push_back(
            by_columns && width < columns ? tensor.piece(at, width * rows, width, columns)
            : by_columns                  ? tensor.piece(0, rows * columns, rows * columns, 0)
                                          : tensor.piece(at, width, width, 0));
      at += width;
    }
    // Half of the states get a fault: a piece is moved, cut, left out or shown twice.
    auto& pieces = shown[static_cast<size_t>(pick(static_cast<int>(ranks)))];
    if (pick(2) == 0 && !pieces.empty()) {
      PieceKey& p = pieces[0];
      const int64_t kind = pick(3);
      if (kind == 0 && p.count > p.run) p.count -= p.run;
      if (kind == 0 && p.count == p.run && p.count > 1) p.count = p.run = p.count - 1;
      if (kind == 1) pieces.push_back(p);
      if (kind == 2) pieces.clear();
    }
    const std::vector<int> plain = counts(tensor, shown);
    const bool tiles = std::all_of(plain.begin(), plain.end(), [](int n) { return n == 1; });
    std::vector<Copies> copies;
    EXPECT_EQ(fault_of(tensor, shown, &copies).empty(), tiles) << "round " << round;
    ++(tiles ? good : bad);
  }
  EXPECT_GT(good, 300);
  EXPECT_GT(bad, 300);
}

TEST(Coverage, PairsCopiesWithWhatIsSaved) {
  OneTensor tensor({4, 6});
  std::vector<Copies> copies;
  // Two ranks save halves. Each has a copy of the half of the other, and rank 1 one of the whole.
  const auto first = tensor.piece(0, 12, 12, 0), second = tensor.piece(12, 12, 12, 0);
  EXPECT_EQ(
      fault_of(tensor,
               {{first, tensor.piece(12, 12, 12, 0, 1)}, {second, tensor.piece(0, 24, 24, 0, 2)}},
               &copies),
      "");
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].saved.size(), 1u);
  EXPECT_EQ(copies[0].saved[0].rank, 1);
  EXPECT_EQ(copies[1].saved.size(), 2u) << "the whole tensor";
  // Copies that are cut by columns are compared as one tensor.
  copies.clear();
  EXPECT_EQ(
      fault_of(tensor,
               {{first, tensor.piece(0, 12, 3, 6, 1)}, {second, tensor.piece(3, 12, 3, 6, 1)}},
               &copies),
      "");
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].saved.size(), 2u);
  EXPECT_EQ(copies[0].copies.size(), 2u);
}

TEST(Coverage, SurvivesBytes) {
  OneTensor tensor({4, 6});
  const std::vector<PieceKey> pieces{tensor.piece(3, 12, 3, 6, 1), tensor.step};
  EXPECT_EQ(pieces_from_bytes(to_bytes(pieces)), pieces);
}

TEST(Hashes, OfPiecesAddUp) {
  OneTensor tensor({4, 6});
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i);
  const auto hash = [&](int64_t begin, int64_t count, int64_t run, int64_t stride) {
    std::vector<float> part;
    for (int64_t i = 0; i < count; ++i)
      part.push_back(values[static_cast<size_t>(begin + i / run * stride + i % run)]);
    const FlatView view(part.data(), count, YOKE_F32);
    YokePiece piece{};
    piece.dtype = YOKE_F32;
    piece.begin = begin;
    piece.count = count;
    piece.run = run;
    piece.stride = stride;
    piece.view = view.get();
    return hash_of_piece(piece);
  };
  const uint64_t whole = hash(0, 24, 24, 0);
  EXPECT_EQ(hash(0, 7, 7, 0) + hash(7, 17, 17, 0), whole);
  EXPECT_EQ(hash(0, 8, 2, 6) + hash(2, 16, 4, 6), whole);
  std::swap(values[3], values[4]);
  EXPECT_NE(hash(0, 24, 24, 0), whole) << "two elements have changed places";
}

TEST(Tensors, WithInfinitiesAreFoundInEveryDtype) {
  const uint16_t half_inf = 0x7c00, half_max = 0x7bff, brain_nan = 0x7fc0, brain_max = 0x7f7f;
  const auto found = [](const void* value, int32_t dtype) {
    const FlatView view(const_cast<void*>(value), 1, dtype);
    return has_nonfinite(*view.get());
  };
  const float inf = std::numeric_limits<float>::infinity(), max = 1e38f;
  EXPECT_TRUE(found(&inf, YOKE_F32));
  EXPECT_FALSE(found(&max, YOKE_F32));
  EXPECT_TRUE(found(&half_inf, YOKE_F16));
  EXPECT_FALSE(found(&half_max, YOKE_F16));
  EXPECT_TRUE(found(&brain_nan, YOKE_BF16));
  EXPECT_FALSE(found(&brain_max, YOKE_BF16));
}

TEST(Trace, NamesOneFileForEachRank) {
  EXPECT_EQ(trace_file_of("abi.jsonl", 1), "abi_001.jsonl");
  EXPECT_EQ(trace_file_of("a.b/abi", 12), "a.b/abi_012");
  EXPECT_EQ(trace_file_of(".abi", 0), ".abi_000");
}

TEST(Trace, QuotesWhatABackendWrites) {
  EXPECT_EQ(Fields().add("text", "a\"b\\\n").text(), ",\"text\":\"a\\\"b\\\\\\u000a\"");
  EXPECT_EQ(Fields().add("x", std::numeric_limits<double>::quiet_NaN()).text(), ",\"x\":null");
}

}  // namespace
}  // namespace yoke::validate
