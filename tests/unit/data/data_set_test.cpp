#include "core/data/data_set.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <set>

#include "core/data/sample_assignment.hpp"
#include "tests/unit/data/scratch_file.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of(const DataConfig& config, int64_t global_batch) {
  try {
    open_data(config, global_batch, 1);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

DataConfig config_of(const std::string& path,
                     int64_t seq_len,
                     double holdout,
                     const std::string& order = "sequential") {
  DataConfig config;
  config.path = path;
  config.seq_len = seq_len;
  config.holdout = holdout;
  config.order = order;
  return config;
}

TEST(DataSet, CutsWindowsWhoseLastTokenIsOnlyATarget) {
  ScratchFile file("abcdefg");  // windows abcd and defg
  const DataSet data = open_data(config_of(file.path(), 3, 0), 1, 1);
  EXPECT_EQ(data.train.num_windows(), 2);
  EXPECT_EQ(data.held_out.num_windows(), 0);
  const HostMicroBatch batch = read_micro_batch(data, data.train, 0, 2);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.seq_len, 3);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(batch.targets, ElementsAre('b', 'c', 'd', 'e', 'f', 'g'));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(DataSet, LeavesOutATailThatFillsNoWindow) {
  ScratchFile file("abcdef");  // the target of a second window is missing
  EXPECT_EQ(open_data(config_of(file.path(), 3, 0), 1, 1).train.num_windows(), 1);
}

TEST(DataSet, KeepsTheTailForEvaluation) {
  ScratchFile file(std::string(101, 'x'));
  const DataSet data = open_data(config_of(file.path(), 5, 0.1), 18, 1);  // 20 windows
  EXPECT_EQ(data.train.num_windows(), 18);
  EXPECT_EQ(data.held_out.num_windows(), 2);
  EXPECT_EQ(data.held_out.window(0), 18);
  EXPECT_EQ(data.held_out.window(1), 19);
  EXPECT_EQ(data.held_out.window(2), 18);
}

TEST(DataSet, HoldsOutAtLeastOneWindow) {
  ScratchFile file(std::string(101, 'x'));
  EXPECT_EQ(open_data(config_of(file.path(), 5, 0.001), 1, 1).held_out.num_windows(), 1);
}

TEST(DataSet, DoesNotCountTargetsThatArePadding) {
  ScratchFile file("aba_b__a_b");
  DataConfig config = config_of(file.path(), 3, 0);
  config.pad_token = '_';
  const DataSet data = open_data(config, 1, 1);
  const HostMicroBatch batch = read_micro_batch(data, data.train, 0, 3);
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'a', '_', 'b', '_', '_', 'a', '_'));
  EXPECT_THAT(batch.targets,
              ElementsAre('b', 'a', kNoTarget, 'b', kNoTarget, kNoTarget, 'a', kNoTarget, 'b'));
  EXPECT_EQ(count_targets(data, data.train, 0, 3), 5);
  EXPECT_EQ(count_targets(data, data.train, 1, 1), 1);
  config.pad_token.reset();
  EXPECT_EQ(count_targets(open_data(config, 1, 1), data.train, 1, 2), 6);
}

TEST(DataSet, RefusesATextThatIsTooShort) {
  ScratchFile empty(""), file("abcdef");
  EXPECT_THAT(message_of(config_of(empty.path(), 1, 0), 1), HasSubstr("has 0 tokens"));
  const std::string message = message_of(config_of(file.path(), 3, 0.05), 1);
  EXPECT_THAT(message, HasSubstr("has 6 tokens"));
  EXPECT_THAT(message, HasSubstr("at least 7"));
}

TEST(DataSet, RefusesAGlobalBatchLargerThanTheTrainingPart) {
  ScratchFile file(std::string(101, 'x'));
  const std::string message = message_of(config_of(file.path(), 5, 0.1), 19);
  EXPECT_THAT(message, HasSubstr("train.global_batch = 19"));
  EXPECT_THAT(message, HasSubstr("18 training windows"));
  EXPECT_THAT(message, HasSubstr("allowed: 1 to 18"));
}

TEST(DataSet, RefusesSettingsOutOfRange) {
  ScratchFile file("abcdef");
  EXPECT_THAT(message_of(config_of(file.path(), 0, 0), 1), HasSubstr("data.seq_len = 0"));
  EXPECT_THAT(message_of(config_of(file.path(), 1, 1.0), 1), HasSubstr("data.holdout"));
  EXPECT_THAT(message_of(config_of(file.path(), 1, -0.1), 1), HasSubstr("data.holdout"));
  EXPECT_THAT(message_of(config_of(file.path(), 1, 0, "random"), 1),
              HasSubstr("sequential, shuffled"));
}

// Returns text in which windows of a few bytes differ.
std::string varied_text() {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>(1 + (i * i + i / 7) % 251);
  return text;
}

std::vector<int64_t> windows_of(const DataSet& data, const std::vector<int64_t>& samples) {
  std::vector<int64_t> windows;
  for (const int64_t sample : samples) windows.push_back(data.train.window(sample));
  return windows;
}

// A run that is resumed, or repeated with a newer release, must read the same tokens. The numbers
// are those of the release that read one file only.
TEST(DataSet, KeepsTheSamplesOfOneFile) {
  ScratchFile file(varied_text());
  const std::vector<int64_t> samples{0, 1, 2, 3, 100, 541, 542, 543, 544, 1086, 1000000};
  const DataConfig config = config_of(file.path(), 7, 0.05, "shuffled");
  const DataSet one = open_data(config, 24, 1), three = open_data(config, 24, 3);
  EXPECT_EQ(one.train.num_windows(), 542);
  EXPECT_EQ(one.held_out.num_windows(), 29);
  EXPECT_THAT(windows_of(one, samples),
              ElementsAre(302, 79, 225, 522, 339, 170, 418, 265, 390, 323, 104));
  EXPECT_THAT(windows_of(three, samples),
              ElementsAre(154, 213, 145, 430, 191, 275, 118, 195, 16, 79, 150));
  EXPECT_THAT(read_micro_batch(one, one.train, 540, 2).tokens,
              ElementsAre(20, 150, 31, 165, 50, 188, 77, 129, 251, 124, 250, 127, 6, 138));
  EXPECT_THAT(read_micro_batch(one, one.held_out, 1, 1).tokens,
              ElementsAre(83, 156, 231, 57, 136, 217, 49));
}

// Sequences in any order.
using Rows = std::multiset<std::vector<int64_t>>;

// Returns all sequences that the data ranks of a layout read in a step.
Rows rows_of_step(const DataSet& data, int64_t step, SampleAssignment layout) {
  Rows rows;
  for (layout.data_rank = 0; layout.data_rank < layout.data_ranks; ++layout.data_rank) {
    for (int64_t micro = 0; micro < layout.accumulation; ++micro) {
      const int64_t first = layout.first_sample(step * layout.global_batch(), micro);
      const HostMicroBatch batch = read_micro_batch(data, data.train, first, layout.micro_batch);
      for (int64_t i = 0; i < batch.sequences; ++i) {
        rows.emplace(batch.tokens.begin() + i * batch.seq_len,
                     batch.tokens.begin() + (i + 1) * batch.seq_len);
      }
    }
  }
  return rows;
}

TEST(DataSet, GivesEveryLayoutTheSameTokensInAStep) {
  ScratchFile file(varied_text());
  EXPECT_TRUE(rc::check([&] {
    const auto order = *rc::gen::element<std::string>("sequential", "shuffled");
    const auto seq_len = *rc::gen::inRange<int64_t>(1, 40),
               step = *rc::gen::inRange<int64_t>(0, 200);
    const DataSet data = open_data(config_of(file.path(), seq_len, 0.05, order), 24, 3);
    const auto data_ranks = *rc::gen::element<int32_t>(1, 2, 4, 8);
    const auto accumulation = *rc::gen::element<int32_t>(1, 3);  // 8 * 3 = 24
    const SampleAssignment layout{.data_ranks = data_ranks,
                                  .accumulation = accumulation,
                                  .micro_batch = 24 / (data_ranks * accumulation)};
    RC_ASSERT(rows_of_step(data, step, layout) == rows_of_step(data, step, {.micro_batch = 24}));
  }));
}

}  // namespace
}  // namespace yoke
