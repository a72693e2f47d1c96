// Label masks, and the descriptions that say whether a file has one. The properties are compared
// with a loop over the tokens of each window.
#include "core/data/label_mask.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "core/data/data_set.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempFolder;

constexpr char kTokenizer[] = "0123456789abcdef";

class Masks : public ::testing::Test {
 protected:
  // Writes a file of ids and returns its path.
  std::string ids(const std::string& name, const std::vector<uint16_t>& values) const {
    return folder_.write(name + ".bin", token_file<uint16_t>(values, 100, values.size()));
  }
  std::string mask(const std::string& name, const std::vector<uint8_t>& bytes) const {
    return folder_.write(name + ".mask", std::string(bytes.begin(), bytes.end()));
  }
  static void describe(const std::string& path,
                       int64_t tokens,
                       bool with_mask,
                       const std::string& tokenizer = kTokenizer,
                       std::optional<int64_t> end = 9) {
    write_token_info(path, {tokens, 1, 100, tokenizer, end, with_mask});
  }
  // Returns the bytes of the mask of a source; an empty list if it has none.
  static std::vector<int> read(const Source& source) {
    if (!source.mask) return {};
    std::vector<uint8_t> bytes(static_cast<size_t>(source.stream->size()));
    source.mask->read(0, source.stream->size(), bytes.data());
    return {bytes.begin(), bytes.end()};
  }
  std::vector<int> mask_of(const std::vector<std::string>& paths,
                           const std::string& use = "auto",
                           const std::string& format = "auto") const {
    return read(open_source("data.path", paths, format, 0, use));
  }
  Error refusal(const std::vector<std::string>& paths, const std::string& use = "auto") const {
    return error_of([&] { mask_of(paths, use); });
  }
  TempFolder folder_;
};

TEST_F(Masks, AreUsedWhereTheyExist) {
  const std::string a = ids("a", {1, 2, 3}), b = ids("b", {4, 5}), c = ids("c", {6});
  EXPECT_THAT(mask_of({a, b}), IsEmpty());
  mask("b", {0, 1});
  EXPECT_THAT(mask_of({a, b, c}), ElementsAre(1, 1, 1, 0, 1, 1)) << "a and c have no mask";
  EXPECT_THAT(mask_of({b, a}), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(mask_of({a, b}, "none"), IsEmpty());
  EXPECT_THAT(open_source("data.path", {a, b}, "auto", 0).mask->files(),
              ElementsAre(folder_ / "b.mask"));
}

TEST_F(Masks, FollowTheDescription) {
  const std::string a = ids("a", {1, 2});
  mask("a", {0, 1});
  describe(a, 2, false);
  EXPECT_THAT(mask_of({a}), IsEmpty()) << "the mask is left from an earlier file";
  EXPECT_THAT(mask_of({a}, "required"), ElementsAre(0, 1));
  describe(a, 2, true);
  EXPECT_THAT(mask_of({a}), ElementsAre(0, 1));
  std::filesystem::remove(folder_ / "a.mask");
  const Error e = refusal({a});
  EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
  EXPECT_THAT(e.what(), HasSubstr(a + "\" lacks its label mask " + folder_ / "a.mask"));
  EXPECT_THAT(e.what(), HasSubstr(folder_ / "a.json" + " describes"));
  EXPECT_THAT(mask_of({a}, "none"), IsEmpty());
}

TEST_F(Masks, CanBeRequired) {
  const std::string a = ids("a", {1, 2}), b = ids("b", {3});
  mask("a", {1, 0});
  EXPECT_THAT(mask_of({a}, "required"), ElementsAre(1, 0));
  const Error e = refusal({a, b}, "required");
  EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
  EXPECT_THAT(e.what(), HasSubstr(b + "\" lacks its label mask " + folder_ / "b.mask"));
  EXPECT_THAT(e.what(), HasSubstr("data.mask = \"required\" asks for"));
}

// Beside a text, X.mask is that of the ids X.bin, which were made of the text.
TEST_F(Masks, OfATextMustBeRequired) {
  const std::string text = folder_.write("a.txt", "abc");
  mask("a", {1, 1, 0, 1});
  EXPECT_THAT(mask_of({text}), IsEmpty());
  mask("a", {1, 1, 0});
  EXPECT_THAT(mask_of({text}, "required"), ElementsAre(1, 1, 0));
}

TEST_F(Masks, MustHaveOneByteForEachToken) {
  const std::string a = ids("a", {1, 2, 3}), b = ids("b", {1, 2});
  for (const size_t size : {0, 2, 4}) {
    mask("a", std::vector<uint8_t>(size, 1));
    const Error e = refusal({b, a});
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), HasSubstr("label mask of data.path = \"" + folder_ / "a.mask"));
    EXPECT_THAT(
        e.what(),
        HasSubstr(" has " + std::to_string(size) + " bytes, but \"" + a + "\" has 3 tokens"));
  }
}

TEST_F(Masks, HaveNoOtherBytes) {
  std::vector<uint8_t> bytes((1 << 16) + 2, 1);
  const std::string a = ids("a", std::vector<uint16_t>(bytes.size(), 7)), b = ids("b", {1});
  bytes[(1 << 16) - 1] = 2;
  mask("a", bytes);
  Error e = error_of([&] { open_source("data.path", {b, a}, "auto", 0); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr(folder_ / "a.mask" + "\": byte 65535 is 2; allowed: 1"));
  // Later bytes are checked when they are read.
  bytes[(1 << 16) - 1] = 1;
  bytes[(1 << 16) + 1] = 48;
  mask("a", bytes);
  const Source source = open_source("data.path", {b, a}, "auto", 0);
  uint8_t out[2];
  source.mask->read(1 << 16, 2, out);
  e = error_of([&] { source.mask->read((1 << 16) + 1, 2, out); });
  EXPECT_THAT(e.what(), HasSubstr("byte 65537 is 48"));
  EXPECT_EQ(error_of([&] { source.mask->read((1 << 16) + 2, 2, out); }).code(),
            YOKE_INVALID_ARGUMENT);
}

TEST_F(Masks, DescriptionsMustFitTheIds) {
  const std::string a = ids("a", {1, 2, 3});
  describe(a, 4, false);
  Error e = refusal({a});
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(
      e.what(),
      HasSubstr(a + "\" has 3 tokens, but its description " + folder_ / "a.json" + " says 4"));
  write_token_info(a, {3, 1, 99, kTokenizer, 9, false});
  EXPECT_THAT(refusal({a}).what(), HasSubstr("has 100 ids in its vocabulary, but its description"));
  const std::string text = folder_.write("a.txt", "abc");
  EXPECT_THAT(mask_of({text}), IsEmpty()) << "a.json describes a.bin";
}

// ---- In data sets ----

TEST_F(Masks, OfTwoTokenizersAreNotTrainedTogether) {
  const std::string a = ids("a", {1, 2, 3}), b = ids("b", {1, 2, 3}), c = ids("c", {1, 2, 3});
  describe(a, 3, false);
  describe(b, 3, false, "fedcba9876543210");
  DataConfig config;
  config.seq_len = 1;
  config.holdout = 0;
  const auto message = [&](const std::vector<std::string>& path,
                           const std::vector<double>& weights,
                           const std::vector<std::string>& eval) -> std::string {
    config.path = path;
    config.weights = weights;
    const Error e = error_of([&] { open_data(config, 1, 1, 0, eval); });
    EXPECT_EQ(e.code(),
              e.what() == std::string("nothing was thrown") ? YOKE_OK : YOKE_INVALID_ARGUMENT);
    return e.what();
  };
  const std::string both = "\"" + a + "\" (tokenizer 0123456789abcdef, vocabulary 100) and \"" + b +
                           "\" (tokenizer fedcba9876543210, vocabulary 100)";
  EXPECT_THAT(message({c, a, b}, {}, {}), HasSubstr("data.path names " + both));
  EXPECT_THAT(message({a, c, b}, {1, 1, 1}, {}), HasSubstr("data.path names " + both));
  EXPECT_THAT(message({c, a}, {}, {b}), HasSubstr("data.path with eval.path names " + both));
  EXPECT_EQ(message({a, c}, {}, {}), "nothing was thrown");
}

// Returns the targets of a window by the definition, one token at a time.
std::vector<int64_t> plain_targets(const std::vector<uint16_t>& ids,
                                   const std::vector<uint8_t>& counts,
                                   const DataConfig& config,
                                   int64_t window) {
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < config.seq_len; ++i) {
    const auto at = static_cast<size_t>(window * config.seq_len + i);
    const bool padding = config.pad_token && ids[at + 1] == *config.pad_token;
    const bool next = config.documents == "separate" && ids[at] == *config.document_end;
    targets.push_back(padding || next || counts[at + 1] == 0 ? kNoTarget : ids[at + 1]);
  }
  return targets;
}

// The position of a token is the number of tokens before it in its document and window.
std::vector<int64_t> plain_positions(const std::vector<uint16_t>& ids,
                                     const DataConfig& config,
                                     int64_t window) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < config.seq_len; ++i) {
    int64_t before = 0;
    for (int64_t j = i - 1; j >= 0; --j, ++before) {
      const bool ends =
          ids[static_cast<size_t>(window * config.seq_len + j)] == config.document_end.value_or(-1);
      if (ends && config.documents == "separate") break;
    }
    positions.push_back(before);
  }
  return positions;
}

struct RandomFile {
  std::vector<uint16_t> ids;
  std::vector<uint8_t> counts;
};

RandomFile random_file(size_t size) {
  RandomFile file;
  for (size_t i = 0; i < size; ++i) {
    file.ids.push_back(*rc::gen::inRange<uint16_t>(0, 6));
    file.counts.push_back(*rc::gen::inRange<uint8_t>(0, 2));
  }
  return file;
}

// A mixture of two sources, the first of them in two files, of which one has no mask. Samples are
// read in micro-batches of random sizes.
TEST_F(Masks, AndDocumentsHideTheTargetsThatALoopHides) {
  EXPECT_TRUE(rc::check([&] {
    DataConfig config;
    config.seq_len = *rc::gen::inRange<int64_t>(1, 9);
    config.holdout = *rc::gen::element(0.0, 0.2);
    config.documents = *rc::gen::element<std::string>("joined", "separate");
    config.document_end = *rc::gen::inRange<int64_t>(0, 6);
    if (*rc::gen::arbitrary<bool>()) config.pad_token = *rc::gen::inRange<int64_t>(0, 6);
    RandomFile a = random_file(40), b = random_file(23), c = random_file(57);
    std::fill(b.counts.begin(), b.counts.end(), 1);
    config.path = {folder_ / "mix/*"};
    ids("mix/a", a.ids), mask("mix/a", a.counts), ids("mix/b", b.ids);
    const std::string other = ids("c", c.ids);
    mask("c", c.counts);
    config.path.push_back(other);
    config.weights = {2, 1};
    const DataSet data = open_data(config, 1, *rc::gen::inRange<uint64_t>(0, 9));

    RandomFile joined = a;
    joined.ids.insert(joined.ids.end(), b.ids.begin(), b.ids.end());
    joined.counts.insert(joined.counts.end(), b.counts.begin(), b.counts.end());
    const auto first = *rc::gen::inRange<int64_t>(0, 40), count = *rc::gen::inRange<int64_t>(1, 5);
    const SampleOrder& part =
        config.holdout > 0 && *rc::gen::arbitrary<bool>() ? data.held_out : data.train;
    const HostMicroBatch batch = read_micro_batch(data, part, first, count);
    std::vector<int64_t> targets, positions;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t window = part.window(first + i);
      const auto range =
          std::find_if(data.ranges.begin(), data.ranges.end(), [&](const WindowRange& r) {
            return window >= r.first && window < r.first + r.count;
          });
      const RandomFile& file = range->source == 0 ? joined : c;
      const int64_t in_stream = range->first_in_stream + window - range->first;
      const auto t = plain_targets(file.ids, file.counts, config, in_stream);
      const auto p = plain_positions(file.ids, config, in_stream);
      targets.insert(targets.end(), t.begin(), t.end());
      positions.insert(positions.end(), p.begin(), p.end());
    }
    RC_ASSERT(batch.targets == targets);
    RC_ASSERT(batch.positions == positions);
    RC_ASSERT(count_targets(data, part, first, count) ==
              count * config.seq_len - std::count(targets.begin(), targets.end(), kNoTarget));
    RC_ASSERT(batch.document_starts.empty() == (config.documents == "joined"));
    for (size_t i = 0; i < batch.document_starts.size(); ++i)
      RC_ASSERT(batch.document_starts[i] ==
                static_cast<int64_t>(i) % config.seq_len - positions[i]);
  }));
}

TEST_F(Masks, AreNamedInANote) {
  const std::string a = ids("a", {1, 2, 3}), b = ids("b", {1, 2, 3});
  mask("a", {1, 1, 1});
  DataConfig config;
  config.path = {a, b};
  config.seq_len = 1;
  config.holdout = 0;
  EXPECT_THAT(open_data(config, 1, 1).notes,
              ElementsAre(HasSubstr("1 of 2 files of tokens have a label mask")));
  config.mask = "none";
  EXPECT_THAT(open_data(config, 1, 1).notes, IsEmpty());
}

TEST_F(Masks, TheEndOfADocumentIsTakenFromTheDescriptions) {
  const std::string a = ids("a", {1, 9, 3}), b = ids("b", {1, 8, 3});
  DataConfig config;
  config.path = {a};
  config.seq_len = 1;
  config.holdout = 0;
  config.documents = "separate";
  const auto refused = [&](const std::string& why) {
    const Error e = error_of([&] { open_data(config, 1, 1); });
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr("data.documents = \"separate\", but " + why));
    EXPECT_THAT(e.what(), HasSubstr("set data.document_end"));
  };
  refused("\"" + a + "\" has no description");
  describe(a, 3, false);
  EXPECT_EQ(open_data(config, 1, 1).document_end, 9);
  EXPECT_THAT(open_data(config, 1, 1).notes, IsEmpty());
  config.document_end = 4;
  const DataSet other = open_data(config, 1, 1);
  EXPECT_EQ(other.document_end, 4);
  EXPECT_THAT(other.notes,
              ElementsAre("data.document_end = 4 is none of the first 3 tokens of " + a +
                          ", so no document ends there"));
  config.document_end.reset();
  describe(b, 3, false, kTokenizer, 8);
  config.path = {a, b};
  refused("the documents of \"" + b + "\" end with the id 8, and those of \"" + a + "\" with 9");
  describe(b, 3, false, kTokenizer, std::nullopt);
  refused("the description of \"" + b + "\" names no id");
  config.documents = "joined";
  EXPECT_EQ(open_data(config, 1, 1).document_end, std::nullopt);
}

}  // namespace
}  // namespace yoke
