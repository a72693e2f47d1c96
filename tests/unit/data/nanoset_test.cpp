// Folders of datatrove and nanotron's order. The expected orders were computed with NumPy from the
// rule that nanotron publishes.
#include <gmock/gmock.h>

#include "core/data/data_files.hpp"
#include "core/data/foreign_order.hpp"
#include "core/data/run_data.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Places = std::vector<std::pair<size_t, int64_t>>;

Places places(const NanosetOrder& order, int64_t samples) {
  Places all;
  for (int64_t i = 0; i < samples; ++i) all.emplace_back(order.at(i).source, order.at(i).index);
  return all;
}

TEST(NanosetOrder, ShufflesABlend) {
  EXPECT_EQ(places({{5, 3}, {1, 1}, 1234}, 8),
            (Places{{0, 1}, {1, 0}, {0, 3}, {0, 0}, {0, 2}, {1, 2}, {1, 1}, {1, 0}}))
      << "the second dataset begins again";
  EXPECT_EQ(places({{5, 3}, {}, 1234}, 8),
            (Places{{0, 1}, {1, 0}, {1, 2}, {0, 0}, {0, 2}, {0, 3}, {1, 1}, {0, 4}}));
  EXPECT_EQ(places({{7}, {}, 5}, 7),
            (Places{{0, 6}, {0, 2}, {0, 4}, {0, 1}, {0, 0}, {0, 5}, {0, 3}}));
}

TEST(NanosetOrder, IsTheSameInEveryEpoch) {
  const NanosetOrder order({5, 3}, {1, 1}, 1234);
  const Places two = places(order, 16);
  EXPECT_TRUE(std::equal(two.begin(), two.begin() + 8, two.begin() + 8));
  EXPECT_EQ(order.count(0, 8), 4);
  EXPECT_EQ(order.count(1, 10), 5);
  EXPECT_EQ(order.share(1), 0.5);
}

class DatatroveFolder : public ::testing::Test {
 protected:
  // Writes a file of consecutive ids.
  template <class Id = uint16_t>
  void write(const std::string& name, int64_t first, int64_t count) const {
    std::vector<Id> ids(static_cast<size_t>(count));
    for (Id& id : ids) id = static_cast<Id>(first++);
    folder_.write(name, raw(ids));
    folder_.write(name + ".metadata", concat("gpt2|", sizeof(Id), "\n", count, "\n1 T"));
    folder_.write(name + ".index", raw<uint64_t>({static_cast<uint64_t>(count)}));
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  RunConfig run() const {
    RunConfig run;
    run.data.path = {path("a")};
    run.data.order = "nanoset";
    run.data.seq_len = 3;
    run.seed = 5;
    return run;
  }
  std::string refusal(const RunConfig& run) const {
    const Error e = error_of([&] { open_run_data(run, 0); });
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  testing::TempFolder folder_;
};

TEST_F(DatatroveFolder, IsReadWithItsIdsOfTwoOrFourBytes) {
  write("a/0.ds", 0, 5);
  write<uint32_t>("b/0.ds", 65'534, 3);
  EXPECT_THAT(expand_path("data.path", path("a")), ElementsAre(path("a/0.ds")));
  const auto a = TokenStream::open(path("a/0.ds"));
  EXPECT_STREQ(a->format(), "datatrove");
  EXPECT_THAT(all_ids(*a), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(all_ids(*TokenStream::open(path("b/0.ds"))), ElementsAre(65'534, 65'535, 65'536));
}

TEST_F(DatatroveFolder, IsRefusedIfItsMetadataAreMissingOrDamaged) {
  const auto refused = [&](const std::string& name) {
    return error_of([&] { TokenStream::open(path(name), "datatrove"); });
  };
  folder_.write("x.ds", raw<uint16_t>({1, 2}));
  EXPECT_EQ(refused("x.ds").code(), YOKE_NOT_FOUND);
  EXPECT_THAT(refused("x.ds").what(), HasSubstr("lacks " + path("x.ds.metadata")));
  for (const char* line : {"", "gpt2", "gpt2|3", "2"}) {
    folder_.write("x.ds.metadata", concat(line, "\n7"));
    EXPECT_EQ(refused("x.ds").code(), YOKE_DATA_LOSS);
    EXPECT_THAT(refused("x.ds").what(), HasSubstr("the bytes per id")) << line;
  }
  folder_.write("y.ds", "abc");
  folder_.write("y.ds.metadata", "gpt2|2");
  EXPECT_THAT(refused("y.ds").what(), HasSubstr("has 3 bytes, which are no whole ids of 2 bytes"));
}

// A window has four tokens of one file: the tails of the files are left out.
TEST_F(DatatroveFolder, HasWindowsThatShareNoToken) {
  write("a/0.ds", 0, 14);
  write("a/1.ds", 100, 3);
  write("a/2.ds", 200, 17);
  const DataSet data = open_run_data(run(), 0);
  ASSERT_EQ(data.train.num_windows(), 7);
  const std::vector<int64_t> begins{0, 4, 8, 200, 204, 208, 212};
  const std::vector<int64_t> order{6, 2, 4, 1, 0, 5, 3};
  for (int64_t i = 0; i < 14; ++i) {
    const HostMicroBatch batch = read_micro_batch(data, data.train, i, 1);
    const int64_t begin = begins[static_cast<size_t>(order[static_cast<size_t>(i % 7)])];
    EXPECT_THAT(batch.tokens, ElementsAre(begin, begin + 1, begin + 2)) << i;
    EXPECT_THAT(batch.targets, ElementsAre(begin + 1, begin + 2, begin + 3)) << i;
  }
  EXPECT_EQ(data.train.epochs(0, 14), 2);
}

TEST_F(DatatroveFolder, BlendsAndEvaluates) {
  write("a/0.ds", 0, 40);
  write("b/0.ds", 100, 40);
  write("c/0.ds", 200, 9);
  RunConfig both = run();
  both.data.path = {path("a"), path("b")};
  both.data.weights = {3, 1};
  both.eval.path = {path("c")};
  both.eval.every = 1;
  const DataSet data = open_run_data(both, 0);
  int64_t of_b = 0;
  for (int64_t i = 0; i < 20; ++i)
    of_b += read_micro_batch(data, data.train, i, 1).tokens[0] >= 100;
  EXPECT_EQ(of_b, 5);
  EXPECT_EQ(data.held_out.num_windows(), 2);
  EXPECT_THAT(read_micro_batch(data, data.held_out, 1, 1).tokens, ElementsAre(204, 205, 206));
}

TEST_F(DatatroveFolder, RefusesWhatItCannotRead) {
  write("a/0.ds", 0, 3);
  EXPECT_THAT(
      refusal(run()),
      HasSubstr("has 3 tokens in 1 files, but a window of one file has data.seq_len + 1 = 4"));
  write("a/0.ds", 0, 40);
  RunConfig evaluated = run();
  evaluated.eval.every = 1;
  EXPECT_THAT(refusal(evaluated), HasSubstr("all data are for training; set eval.path"));
  RunConfig seed = run();
  seed.seed = uint64_t{1} << 32;
  EXPECT_THAT(refusal(seed), HasSubstr("seed = 4294967296; allowed with data.order = \"nanoset\""));
}

}  // namespace
}  // namespace yoke
