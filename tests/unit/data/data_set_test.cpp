#include "core/data/data_set.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "core/data/sample_assignment.hpp"
#include "tests/unit/data/scratch_file.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string message_of(const DataConfig& config,
                       int64_t global_batch,
                       const std::vector<std::string>& eval_path = {}) {
  try {
    open_data(config, global_batch, 1, 0, eval_path);
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
  config.path = {path};
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

// ---- Several files ----

// Returns a text of which every byte is c.
std::string text_of(char c, size_t size) {
  return std::string(size, c);
}

DataConfig config_of_files(const std::vector<const ScratchFile*>& files,
                           int64_t seq_len,
                           double holdout,
                           const std::vector<double>& weights = {}) {
  DataConfig config = config_of("", seq_len, holdout, "shuffled");
  config.path.clear();
  for (const ScratchFile* file : files) config.path.push_back(file->path());
  config.weights = weights;
  return config;
}

// The oracle is one file with the contents of both.
TEST(DataSet, ReadsSeveralFilesAsOneFile) {
  const std::string text = varied_text();
  const ScratchFile whole(text), begin(text.substr(0, 1234)), end(text.substr(1234));
  const DataSet one = open_data(config_of_files({&whole}, 7, 0.05), 24, 1);
  const DataSet two = open_data(config_of_files({&begin, &end}, 7, 0.05), 24, 1);
  ASSERT_EQ(two.train.num_windows(), one.train.num_windows());
  const int64_t windows = one.train.num_windows();
  EXPECT_EQ(read_micro_batch(two, two.train, 3, 2 * windows).targets,
            read_micro_batch(one, one.train, 3, 2 * windows).targets);
  EXPECT_EQ(read_micro_batch(two, two.held_out, 0, 29).tokens,
            read_micro_batch(one, one.held_out, 0, 29).tokens);
}

TEST(DataSet, MixesItsSourcesByTheirWeights) {
  const ScratchFile a(text_of('a', 301)), b(text_of('b', 201)), c(text_of('c', 101));
  const DataSet data = open_data(config_of_files({&a, &b, &c}, 10, 0.1, {0.5, 0.3, 0.2}), 20, 1);
  EXPECT_EQ(data.train.num_windows(), 27 + 18 + 9);
  EXPECT_EQ(data.held_out.num_windows(), 3 + 2 + 1);
  // Every part of ten samples has 5, 3 and 2 of them.
  for (int64_t first = 0; first < 1000; first += 10) {
    std::map<int64_t, int> count;
    const HostMicroBatch batch = read_micro_batch(data, data.train, first, 10);
    for (size_t i = 0; i < batch.tokens.size(); i += 10) ++count[batch.tokens[i]];
    EXPECT_THAT(count, ElementsAre(Pair('a', 5), Pair('b', 3), Pair('c', 2)));
  }
  EXPECT_THAT(read_micro_batch(data, data.held_out, 2, 3).tokens,
              ::testing::Contains('b').Times(20));
}

// Returns the windows of one source, in the order in which the first `samples` samples read them.
std::vector<int64_t> windows_of_source(const DataSet& data, size_t source, int64_t samples) {
  const WindowRange& range = data.ranges[source];
  std::vector<int64_t> windows;
  for (int64_t n = 0; n < samples; ++n) {
    const int64_t window = data.train.window(n) - range.first;
    if (window >= 0 && window < range.count) windows.push_back(window);
  }
  return windows;
}

TEST(DataSet, ReadsEveryWindowOfASourceOnceInEachOfItsEpochs) {
  const ScratchFile a(text_of('a', 171)), b(text_of('b', 231));
  const DataSet data = open_data(config_of_files({&a, &b}, 10, 0, {2, 1}), 4, 5);
  for (const size_t source : {0, 1}) {
    const int64_t count = data.train.num_windows(source);
    const std::vector<int64_t> windows = windows_of_source(data, source, 300);
    std::set<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto first = windows.begin() + epoch * count;
      orders.insert({first, first + count});
      EXPECT_EQ(std::set<int64_t>(first, first + count).size(), static_cast<size_t>(count));
    }
    EXPECT_EQ(orders.size(), 3u);
  }
}

TEST(DataSet, ReadsSourcesOfEqualSizeInDifferentOrders) {
  const ScratchFile a(text_of('a', 401)), b(text_of('b', 401));
  const DataSet data = open_data(config_of_files({&a, &b}, 10, 0, {1, 1}), 4, 5);
  EXPECT_NE(windows_of_source(data, 0, 80), windows_of_source(data, 1, 80));
}

TEST(DataSet, WithOneSourceOfAMixtureReadsWhatAStreamReads) {
  const ScratchFile file(varied_text());
  const DataSet stream = open_data(config_of_files({&file}, 7, 0.05), 24, 3);
  const DataSet mixture = open_data(config_of_files({&file}, 7, 0.05, {2}), 24, 3);
  for (int64_t n = 0; n < 2000; ++n) EXPECT_EQ(mixture.train.window(n), stream.train.window(n));
}

TEST(DataSet, GivesEveryLayoutTheSameTokensOfAMixture) {
  const std::string text = varied_text();
  const ScratchFile a(text.substr(0, 1500)), b(text.substr(1500));
  EXPECT_TRUE(rc::check([&] {
    const std::vector<double> weights{*rc::gen::element(0.25, 1.0, 7.0), 1};
    const DataSet data = open_data(config_of_files({&a, &b}, 11, 0.05, weights), 24, 3);
    const auto step = *rc::gen::inRange<int64_t>(0, 200);
    const auto data_ranks = *rc::gen::element<int32_t>(1, 2, 4, 8);
    const SampleAssignment layout{
        .data_ranks = data_ranks, .accumulation = 3, .micro_batch = 8 / data_ranks};
    RC_ASSERT(rows_of_step(data, step, layout) == rows_of_step(data, step, {.micro_batch = 24}));
  }));
}

TEST(DataSet, CountsTheEpochsOfEachSource) {
  const ScratchFile a(text_of('a', 101)), b(text_of('b', 401));
  const DataSet mixture = open_data(config_of_files({&a, &b}, 10, 0, {1, 1}), 4, 1);
  EXPECT_EQ(mixture.train.epochs(0, 50), 2.5);
  EXPECT_EQ(mixture.train.epochs(1, 50), 0.625);
  EXPECT_EQ(open_data(config_of_files({&b}, 10, 0), 4, 1).train.epochs(0, 50), 1.25);
}

TEST(DataSet, EvaluatesOnAFileOfItsOwn) {
  const ScratchFile train(text_of('a', 101)), eval(text_of('e', 35));
  const DataConfig config = config_of_files({&train}, 10, 0);
  const DataSet data = open_data(config, 4, 1, 0, {eval.path()});
  EXPECT_EQ(data.train.num_windows(), 10);
  EXPECT_EQ(data.held_out.num_windows(), 3);
  EXPECT_EQ(data.evaluation()->name, eval.path());
  EXPECT_THAT(read_micro_batch(data, data.held_out, 0, 3).tokens, ::testing::Each('e'));
  EXPECT_TRUE(data.notes.empty());
  EXPECT_EQ(open_data(config, 4, 1).evaluation(), nullptr);
  EXPECT_THAT(open_data(config, 4, 1, 0, {train.path()}).notes,
              ElementsAre(HasSubstr("which data.path trains on, too")));
}

TEST(DataSet, RefusesSourcesThatDoNotFit) {
  const ScratchFile a(text_of('a', 101)), tiny("abc"),
      ids(std::string(kTokenFileMagic) + std::string("\2\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0", 16));
  const auto message = [&](const ScratchFile& other, const std::vector<double>& weights) {
    return message_of(config_of_files({&a, &other}, 10, 0, weights), 10);
  };
  EXPECT_THAT(message(ids, {}), HasSubstr("into one stream"));
  EXPECT_THAT(message(ids, {1, 1}), HasSubstr("whose tokens are not the same"));
  EXPECT_THAT(message(tiny, {1, 1}), HasSubstr(tiny.path() + "\" has 3 tokens, but data.seq_len"));
  EXPECT_THAT(message(a, {1, 1}), HasSubstr("in two sources of a mixture"));
  EXPECT_THAT(message(a, {}), HasSubstr("twice"));
  const ScratchFile few(text_of('b', 21));
  EXPECT_THAT(message(few, {7, 3}), HasSubstr("of which 3 come from this source"));
  EXPECT_THAT(message(few, {7, 3}), HasSubstr("which make 2 training windows of 10"));
  EXPECT_THAT(message(few, {7, 3}), HasSubstr("allowed: 1 to 6"));
  EXPECT_EQ(message(few, {8, 2}), "nothing was thrown");
  const DataConfig one = config_of_files({&a}, 10, 0);
  EXPECT_THAT(message_of(one, 1, {tiny.path()}), HasSubstr("eval.path = \"" + tiny.path()));
  EXPECT_THAT(message_of(one, 1, {ids.path()}), HasSubstr("data.path with eval.path names"));
}

}  // namespace
}  // namespace yoke
