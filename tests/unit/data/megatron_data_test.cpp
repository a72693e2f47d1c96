// Indexed datasets and Megatron's order. The expected samples are those of Megatron Core;
// tests/oracle/megatron_data_oracle.py compares more of them.
#include <gmock/gmock.h>

#include <limits>
#include <map>

#include "core/data/data_files.hpp"
#include "core/data/foreign_order.hpp"
#include "core/data/indexed_stream.hpp"
#include "core/data/run_data.hpp"
#include "core/data/source.hpp"
#include "tests/support/indexed_dataset.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::index_header;
using ::testing::IsEmpty;
using Ids = std::vector<int64_t>;

class IndexedDatasets : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& bytes) const {
    folder_.write(name, bytes);
  }
  template <class Id = uint16_t>
  void write_dataset(const std::string& name,
                     const std::vector<int32_t>& lengths,
                     int type = 8,
                     int64_t first = 0) const {
    const testing::IndexedDataset dataset = testing::indexed_dataset<Id>(lengths, type, first);
    write(name + ".bin", dataset.bin);
    write(name + ".idx", dataset.idx);
  }
  std::string message(const std::string& name, int32_t code, int64_t vocab = 0) const {
    const Error e = error_of([&] { TokenStream::open(path(name), "megatron", vocab); });
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }

  testing::TempFolder folder_;
};

const std::vector<int32_t> kLengths{5, 3, 7, 4, 6, 2, 8, 1};  // 36 tokens

TEST_F(IndexedDatasets, AreReadAsOneStreamInEveryType) {
  write_dataset<uint8_t>("u8", kLengths, 1);
  write_dataset<int8_t>("i8", kLengths, 2);
  write_dataset<int16_t>("i16", kLengths, 3);
  write_dataset<int32_t>("i32", kLengths, 4);
  write_dataset<int64_t>("i64", kLengths, 5);
  write_dataset<uint16_t>("u16", kLengths, 8);
  Ids expected(36);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int64_t>(i);
  write_dataset<uint8_t>("large_u8", {2}, 1, 254);
  EXPECT_THAT(all_ids(*TokenStream::open(path("large_u8.bin"))), ElementsAre(254, 255));
  write_dataset<uint16_t>("large_u16", {2}, 8, 65'534);
  EXPECT_THAT(all_ids(*TokenStream::open(path("large_u16.bin"))), ElementsAre(65'534, 65'535));
  for (const char* name : {"u8", "i8", "i16", "i32", "i64", "u16"}) {
    const auto stream = TokenStream::open(path(name) + ".bin");
    EXPECT_STREQ(stream->format(), "megatron");
    EXPECT_EQ(stream->vocab(), 0);
    EXPECT_EQ(all_ids(*stream), expected) << name;
    Ids part(5);
    stream->read(14, 5, part.data());
    EXPECT_THAT(part, ElementsAre(14, 15, 16, 17, 18)) << "over the end of a sequence";
  }
}

// The sequences need not lie in X.bin in their order, or side by side.
TEST_F(IndexedDatasets, FollowTheirOffsets) {
  write("x.bin", raw<uint16_t>({7, 8, 99, 1, 2, 3}));
  write("x.idx",
        index_header(8, 2, 2) + raw<int32_t>({3, 2}) + raw<int64_t>({6, 0}) + raw<int64_t>({0, 2}));
  const auto stream = TokenStream::open(path("x.bin"));
  EXPECT_THAT(all_ids(*stream), ElementsAre(1, 2, 3, 7, 8));
  const auto& indexed = dynamic_cast<const IndexedStream&>(*stream);
  EXPECT_EQ(indexed.num_sequences(), 2);
  EXPECT_EQ(indexed.num_documents(), 1);
}

TEST_F(IndexedDatasets, MayHaveModesAndNoSequence) {
  write("x.bin", raw<uint16_t>({7}));
  write(
      "x.idx",
      index_header(8, 1, 2) + raw<int32_t>({1}) + raw<int64_t>({0}) + raw<int64_t>({0, 1}) + "\1");
  EXPECT_THAT(all_ids(*TokenStream::open(path("x.bin"))), ElementsAre(7));
  write("y.bin", "");
  write("y.idx", index_header(8, 0, 1) + raw<int64_t>({0}));
  EXPECT_EQ(TokenStream::open(path("y.bin"))->size(), 0);
}

TEST_F(IndexedDatasets, HaveTheNameWithoutTheEndingToo) {
  write_dataset("x", kLengths);
  write_dataset("y", kLengths);
  EXPECT_THAT(expand_path("data.path", path("x")), ElementsAre(path("x.bin")));
  EXPECT_THAT(expand_path("data.path", folder_.path().string()),
              ElementsAre(path("x.bin"), path("y.bin")));
  const Source source = open_source("data.path", {path("x")}, "auto", 0);
  EXPECT_THAT(source.indices, ElementsAre(path("x.idx")));
}

TEST_F(IndexedDatasets, AreRefusedIfTheirFilesAreDamaged) {
  write("x.bin", raw<uint16_t>({1, 2, 3}));
  EXPECT_THAT(message("x.bin", YOKE_NOT_FOUND), HasSubstr("lacks its index " + path("x.idx")));
  const std::string lengths = raw<int32_t>({3}), offsets = raw<int64_t>({0}),
                    ends = raw<int64_t>({0, 1});
  const auto with = [&](const std::string& index) { write("x.idx", index); };
  with("MMIDIDX");
  EXPECT_THAT(message("x.bin", YOKE_INVALID_ARGUMENT), HasSubstr("is not the index of a Megatron"));
  with(index_header(8, 1, 2, 2) + lengths + offsets + ends);
  EXPECT_THAT(message("x.bin", YOKE_INVALID_ARGUMENT), HasSubstr("has version 2; supported: 1"));
  for (const int type : {0, 6, 7, 9}) {
    with(index_header(type, 1, 2) + lengths + offsets + ends);
    EXPECT_THAT(message("x.bin", YOKE_INVALID_ARGUMENT), HasSubstr(concat("of type ", type)));
  }
  with(index_header(8, 1, 2) + lengths + offsets + ends + "ab");
  EXPECT_THAT(message("x.bin", YOKE_DATA_LOSS), HasSubstr("has 64 bytes, which do not fit 1 seq"));
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  for (const auto& [sequences, documents] : {std::pair{huge, uint64_t{2}},
                                             {uint64_t{62}, uint64_t{2}},
                                             {uint64_t{1}, huge},
                                             {uint64_t{1}, uint64_t{0}}}) {
    with(index_header(8, sequences, documents) + lengths + offsets + ends);
    EXPECT_THAT(message("x.bin", YOKE_DATA_LOSS), HasSubstr("do not fit"));
  }
  with(index_header(8, 1, 2) + lengths + offsets + raw<int64_t>({0, 2}));
  EXPECT_THAT(message("x.bin", YOKE_DATA_LOSS), HasSubstr("end with sequence 2, but there are 1"));
  for (const auto& [length, offset] : {std::pair{4, 0}, {3, 2}, {2, 1}, {-1, 0}, {1, -2}}) {
    with(index_header(8, 1, 2) + raw<int32_t>({length}) + raw<int64_t>({offset}) + ends);
    EXPECT_THAT(message("x.bin", YOKE_DATA_LOSS),
                HasSubstr(concat("sequence 0 has ", length, " tokens from byte ", offset)));
  }
}

TEST_F(IndexedDatasets, RefuseIdsOutsideTheVocabulary) {
  write_dataset("x", kLengths);
  EXPECT_THAT(message("x.bin", YOKE_DATA_LOSS, 30),
              HasSubstr("token 30 is 30, but model.vocab = 30 allows ids below 30"));
  write_dataset<int32_t>("y", {3}, 4, -1);
  EXPECT_THAT(message("y.bin", YOKE_DATA_LOSS), HasSubstr("token 0 is -1; allowed: 0 or more"));
}

// ---- The order ----

TEST(SplitRange, RoundsTheEdges) {
  const auto part = [](const std::vector<double>& split, size_t which, int64_t sequences) {
    const SequenceRange range = split_range(split, which, sequences);
    return std::pair(range.begin, range.end);
  };
  EXPECT_EQ(part({900, 80, 20}, 0, 8), std::pair(int64_t{0}, int64_t{7}));
  EXPECT_EQ(part({900, 80, 20}, 1, 8), std::pair(int64_t{7}, int64_t{8}));
  EXPECT_EQ(part({969, 30, 1}, 0, 400), std::pair(int64_t{0}, int64_t{388}));
  EXPECT_EQ(part({969, 30, 1}, 1, 400), std::pair(int64_t{388}, int64_t{400}));
  EXPECT_EQ(part({1}, 1, 400), std::pair(int64_t{400}, int64_t{400}));
  EXPECT_EQ(part({1, 3}, 0, 2), std::pair(int64_t{0}, int64_t{0})) << "halves go to even numbers";
}

class MegatronOrderTest : public IndexedDatasets {
 protected:
  void SetUp() override {
    write_dataset("x", kLengths);
    stream_ = TokenStream::open(path("x.bin"));
  }
  const std::vector<int64_t>& starts() const {
    return dynamic_cast<const IndexedStream&>(*stream_).starts();
  }
  // Returns the first samples of an order.
  std::vector<Ids> samples(SequenceRange part, int64_t wanted, int64_t seq_len, uint32_t seed) {
    MegatronOrder order = megatron_order(starts(), part, wanted, seq_len, seed);
    const auto stream =
        reorder(stream_, std::make_shared<const Ids>(starts()), std::move(order.sequences));
    std::vector<Ids> all;
    for (int64_t i = 0; i < wanted; ++i) {
      Ids ids(static_cast<size_t>(seq_len) + 1);
      stream->read(order.samples[static_cast<size_t>(i)] * seq_len, seq_len + 1, ids.data());
      all.push_back(ids);
    }
    return all;
  }
  std::shared_ptr<const TokenStream> stream_;
};

TEST_F(MegatronOrderTest, OfPartOfAnEpoch) {
  EXPECT_THAT(samples({0, 8}, 3, 4, 1234),
              ElementsAre(Ids{2, 3, 4, 19, 20}, Ids{8, 9, 10, 11, 12}, Ids{29, 30, 31, 32, 33}));
  EXPECT_THAT(
      samples({2, 5}, 3, 4, 7),
      ElementsAre(Ids{10, 11, 12, 13, 14}, Ids{23, 24, 15, 16, 17}, Ids{19, 20, 21, 22, 23}));
  EXPECT_EQ(megatron_order(starts(), {0, 8}, 3, 4, 1234).samples.size(), 8u);
  EXPECT_EQ(megatron_order(starts(), {0, 8}, 3, 4, 1234).per_epoch, 8);
}

// Ten samples need little of the second epoch, which is shuffled apart; fourteen need most of it.
TEST_F(MegatronOrderTest, OfSeveralEpochs) {
  const std::vector<Ids> ten = samples({0, 8}, 10, 4, 1234);
  EXPECT_EQ(ten[0], (Ids{2, 3, 4, 19, 20}));
  EXPECT_EQ(ten[8], (Ids{24, 8, 9, 10, 11}));
  EXPECT_EQ(ten[9], (Ids{27, 28, 29, 30, 31}));
  const std::vector<Ids> fourteen = samples({0, 8}, 14, 4, 1234);
  EXPECT_EQ(fourteen[0], (Ids{8, 9, 10, 11, 12}));
  EXPECT_EQ(fourteen[7], (Ids{5, 6, 7, 5, 6}));
  EXPECT_EQ(fourteen[13], (Ids{25, 26, 15, 16, 17}));
  EXPECT_EQ(samples({0, 8}, 25, 4, 1234)[24], (Ids{29, 30, 31, 32, 33}));
  // Five of the eight windows of an epoch are less than four fifths, which are rounded down to six.
  EXPECT_EQ(samples({0, 8}, 13, 4, 1234)[12], (Ids{31, 32, 33, 34, 5}));
}

TEST_F(MegatronOrderTest, RefusesAPartWithoutAWindow) {
  for (const auto& [begin, tokens] : {std::pair{int64_t{7}, 1}, {int64_t{8}, 0}}) {
    const Error e = error_of([&, first = begin] { megatron_order(starts(), {first, 8}, 1, 4, 1); });
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr(concat(tokens, " tokens, which make no window of 4")));
  }
  const Error e = error_of([&] { megatron_order(starts(), {3, 4}, 1, 4, 1); });
  EXPECT_THAT(e.what(), HasSubstr("4 tokens, which make no window of 4"));
}

TEST(Blend, TakesFromTheDatasetThatIsFurthestBehind) {
  const Blend blend(normalized({5, 3, 2}), 10);
  std::vector<std::pair<size_t, int64_t>> places;
  for (int64_t i = 0; i < 10; ++i) places.emplace_back(blend.at(i).source, blend.at(i).index);
  EXPECT_THAT(places,
              ElementsAre(std::pair(0, 0),
                          std::pair(1, 0),
                          std::pair(2, 0),
                          std::pair(0, 1),
                          std::pair(1, 1),
                          std::pair(0, 2),
                          std::pair(2, 1),
                          std::pair(0, 3),
                          std::pair(1, 2),
                          std::pair(0, 4)));
  EXPECT_EQ(blend.count(0, 10), 5);
  EXPECT_EQ(blend.count(2, 6), 1);
  EXPECT_EQ(blend.count(1, 1), 0);
  EXPECT_EQ(wanted_of_blend(0.5, 10), 6) << "half a percent more than 5";
  EXPECT_EQ(blend.share(1), 0.3);
}

// A run with skipped steps reads more samples than its order has.
TEST(Blend, BeginsAgainAfterItsLastSample) {
  const Blend blend(normalized({5, 3, 2}), 10);
  for (const int64_t i : {10, 16, 29}) {
    EXPECT_EQ(blend.at(i).source, blend.at(i % 10).source);
    EXPECT_EQ(blend.at(i).index, blend.at(i % 10).index);
  }
  EXPECT_EQ(blend.count(2, 16), 2 + 1);
  EXPECT_EQ(blend.count(0, 20), 10);
  EXPECT_EQ(blend.count(1, 0), 0);
  const Blend none(normalized({1, 2}), 0);  // a run of no steps
  EXPECT_EQ(none.count(1, 0), 0);
  EXPECT_EQ(none.at(0).source, 1U);
  const Sampler sampler(
      100, 4, std::make_shared<const std::vector<uint32_t>>(std::vector<uint32_t>{2, 0, 1}));
  EXPECT_EQ(sampler.window(3), 102);
  EXPECT_EQ(sampler.window(7), 100);
}

// ---- The data of a run ----

class MegatronRun : public IndexedDatasets {
 protected:
  MegatronRun() {
    run_.data.path = {path("x.bin")};
    run_.data.order = "megatron";
    run_.data.seq_len = 4;
    run_.seed = 1234;
    run_.train.steps = 5;
    run_.train.global_batch = 2;
    write_dataset("x", kLengths);
  }
  std::string refusal(int32_t code = YOKE_INVALID_ARGUMENT) const {
    const Error e = error_of([&] { open_run_data(run_, 0); });
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  static Ids sample(const DataSet& data, const SampleOrder& part, int64_t i) {
    const HostMicroBatch batch = read_micro_batch(data, part, i, 1);
    return batch.tokens;
  }
  RunConfig run_;
};

TEST_F(MegatronRun, ReadsThePartsOfItsSplit) {
  run_.data.split = {6, 2};
  run_.eval.every = 5;
  const DataSet data = open_run_data(run_, 0);
  // Six sequences have 27 tokens, the last two have 9.
  EXPECT_EQ(data.train.num_windows(), 6);
  EXPECT_EQ(data.held_out.num_windows(), 2);
  EXPECT_NEAR(data.train.epochs(0, 10), 10.0 / 6, 1e-12);
  for (int64_t i = 0; i < 10; ++i) {
    for (const int64_t id : sample(data, data.train, i)) EXPECT_LT(id, 27);
  }
  for (int64_t i = 0; i < 2; ++i) {
    for (const int64_t id : sample(data, data.held_out, i)) EXPECT_GE(id, 27);
  }
  EXPECT_THAT(data.notes, IsEmpty());
}

TEST_F(MegatronRun, TrainsOnEverythingWithAnEvaluationPath) {
  write_dataset("y", {3, 9}, 8, 100);
  run_.eval.path = {path("y")};
  run_.eval.every = 1;
  const DataSet data = open_run_data(run_, 0);
  EXPECT_EQ(data.train.num_windows(), 8);
  EXPECT_EQ(data.held_out.num_windows(), 2);
  EXPECT_EQ(sample(data, data.train, 0), (Ids{2, 3, 4, 19}));
  EXPECT_GE(sample(data, data.held_out, 0)[0], 100);
  EXPECT_EQ(data.evaluation()->files, std::vector<std::string>{path("y.bin")});
}

TEST_F(MegatronRun, BlendsDatasets) {
  write_dataset("y", kLengths, 8, 100);
  run_.data.path = {path("x"), path("y")};
  run_.data.weights = {1, 1};
  run_.data.split = {1};
  const DataSet data = open_run_data(run_, 0);
  std::map<bool, int> of_y;
  for (int64_t i = 0; i < 10; ++i) ++of_y[sample(data, data.train, i)[0] >= 100];
  EXPECT_EQ(of_y[true], 5);
  EXPECT_EQ(of_y[false], 5);
  EXPECT_EQ(data.train.num_sources(), 2u);
}

TEST_F(MegatronRun, RefusesWhatItCannotRead) {
  run_.data.path = {path("x"), path("y")};
  EXPECT_THAT(refusal(), HasSubstr("several datasets are a blend; set data.weights"));
  run_.data.path = {folder_.path().string()};
  write_dataset("y", kLengths);
  EXPECT_THAT(refusal(), HasSubstr("names 2 files; data.order = \"megatron\" needs one indexed"));
  write("text.txt", "a text");
  run_.data.path = {path("text.txt")};
  EXPECT_THAT(refusal(), HasSubstr("has the format text; data.order = \"megatron\" needs one"));
  run_.data.path = {path("x"), path("y")};
  run_.data.weights = {1, 1};
  run_.eval.every = 1;
  EXPECT_THAT(refusal(), HasSubstr("a blend has no end; set eval.batches"));
  run_.data.path = {path("x")};
  run_.data.weights = {1};
  EXPECT_THAT(refusal(), HasSubstr("a blend has no end"))
      << "one dataset with a weight is one, too";
  run_.data.weights = {};
  run_.data.split = {1};
  EXPECT_THAT(refusal(), HasSubstr("evaluation: the part has 0 sequences with 0 tokens"));
  run_.eval.path = {path("x"), path("y")};
  EXPECT_THAT(refusal(), HasSubstr("eval.path names 2 datasets"));
  run_.eval.path = {};
  run_.seed = uint64_t{1} << 32;
  EXPECT_THAT(refusal(), HasSubstr("seed = 4294967296; allowed"));
}

}  // namespace
}  // namespace yoke
