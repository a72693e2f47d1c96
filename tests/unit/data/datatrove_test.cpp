// Folders of datatrove and nanotron's order.
#include <gmock/gmock.h>

#include "core/data/data_files.hpp"
#include "core/data/run_data.hpp"
#include "core/data/source.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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
    run.data.order = "nanotron";
    run.data.seq_len = 3;
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
  folder_.write("x.ds.metadata", "");
  EXPECT_THAT(refused("x.ds").what(), HasSubstr("or that file is empty"));
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
  for (int64_t i = 0; i < 14; ++i) {
    const HostMicroBatch batch = read_micro_batch(data, data.train, i, 1);
    const int64_t begin = begins[static_cast<size_t>(i % 7)];
    EXPECT_THAT(batch.tokens, ElementsAre(begin, begin + 1, begin + 2)) << i;
    EXPECT_THAT(batch.targets, ElementsAre(begin + 1, begin + 2, begin + 3)) << i;
  }
  EXPECT_EQ(data.train.epochs(0, 14), 2);
}

// The targets that do not count are in X.ds.loss, which such a run cannot use.
TEST_F(DatatroveFolder, MayHaveALossMask) {
  write("a/0.ds", 0, 8);
  folder_.write("a/0.ds.loss", std::string("\0\1\1\1\1\1\1\1", 8));
  const Source source = open_source("data.path", {path("a")}, "auto", 0);
  ASSERT_NE(source.mask, nullptr);
  EXPECT_THAT(source.mask->files(), ElementsAre(path("a/0.ds.loss")));
  EXPECT_THAT(refusal(run()), HasSubstr("has a label mask, which data.order = \"nanotron\""));
  RunConfig ignoring = run();
  ignoring.data.mask = "none";
  EXPECT_EQ(open_run_data(ignoring, 0).train.num_windows(), 2);
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
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < 8; ++i)
    begins.push_back(read_micro_batch(data, data.train, i, 1).tokens[0]);
  EXPECT_THAT(begins, ElementsAre(0, 100, 4, 8, 12, 104, 16, 20));
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
  RunConfig other = run();
  folder_.write("text.txt", "a text that is long enough");
  other.data.path = {path("text.txt")};
  EXPECT_THAT(refusal(other), HasSubstr("has the format text; data.order = \"nanotron\" needs"));
  other.data.path = {};
  EXPECT_EQ(error_of([&] { open_run_data(other, 0); }).code(), YOKE_NOT_FOUND);
}

}  // namespace
}  // namespace yoke
