#include "core/checkpoint/hf_weights.hpp"

#include <gmock/gmock.h>

#include "core/checkpoint/convert.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/checkpoint/hf_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using testing::counting;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HfTensor;
using testing::safetensors_file;
using testing::TempFolder;
using testing::write_shards;

std::vector<float> read(const ReadWeights& weights,
                        const std::string& name,
                        int64_t begin,
                        int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  weights(name, begin, count, out.data());
  return out;
}

Outcome open_error(const TempFolder& folder,
                   const Shapes& model = {{"a", {2, 3}}, {"b", {2}}},
                   const std::map<std::string, std::string>& ties = {}) {
  return error_of([&] { open_weights(folder.path().string(), model, ties); });
}

TEST(HfWeights, ReadsAnyRangeOfOneFile) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file({counting("a", {2, 3}), counting("b", {2}, 10)}));
  const ReadWeights weights = open_weights(folder.path().string(), {{"a", {2, 3}}, {"b", {2}}}, {});
  EXPECT_THAT(read(weights, "a", 0, 6), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(read(weights, "a", 2, 3), ElementsAre(2, 3, 4));
  EXPECT_THAT(read(weights, "b", 1, 1), ElementsAre(11));
}

TEST(HfWeights, ReadsShardsThatAnIndexNames) {
  const TempFolder folder;
  write_shards(folder, {{"1", {counting("a", {2, 3})}}, {"2", {counting("b", {2}, 7)}}});
  const ReadWeights weights = open_weights(folder.path().string(), {{"a", {2, 3}}, {"b", {2}}}, {});
  EXPECT_THAT(read(weights, "a", 5, 1), ElementsAre(5));
  EXPECT_THAT(read(weights, "b", 0, 2), ElementsAre(7, 8));
}

TEST(HfWeights, ConvertsEveryFloatingDtypeToFp32) {
  // This is more than one chunk of the conversion.
  constexpr int64_t kCount = 300'000;
  std::vector<float> values(kCount);
  for (int64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 256);
  for (const int32_t dtype : {YOKE_F64, YOKE_BF16}) {
    HfTensor t{"a", dtype, {kCount}, std::string(kCount * item_size(dtype), '\0')};
    convert(values.data(), YOKE_F32, t.bytes.data(), dtype, kCount);
    const TempFolder folder;
    folder.write("model.safetensors", safetensors_file({t}));
    const ReadWeights weights = open_weights(folder.path().string(), {{"a", {kCount}}}, {});
    EXPECT_EQ(read(weights, "a", 1, kCount - 1),
              std::vector<float>(values.begin() + 1, values.end()));
  }
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file({{"a", YOKE_F16, {2}, std::string("\x00\x3c\x00\xc0", 4)}}));
  EXPECT_THAT(read(open_weights(folder.path().string(), {{"a", {2}}}, {}), "a", 0, 2),
              ElementsAre(1, -2));
}

TEST(HfWeights, ReadsACheckpointOfYokeWithItsChecksums) {
  const TempFolder folder;
  FakeState state = fake_state(1, 1);
  const std::string path = save_whole(folder.path().string(), 3, state);
  const Shapes model = {{state[0].name, state[0].shape}};
  const std::vector<float> values =
      read(open_weights(path, model, {}), state[0].name, 0, state[0].numel());
  EXPECT_EQ(std::memcmp(values.data(), state[0].bytes.data(), state[0].bytes.size()), 0);
  std::string bytes = testing::read_file(path + "/model.safetensors");
  bytes.back() ^= 1;
  folder.write("step-00000003/model.safetensors", bytes);
  const Outcome error =
      error_of([&] { read(open_weights(path, model, {}), state[0].name, 0, state[0].numel()); });
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text, HasSubstr("CRC32C"));
}

TEST(HfWeights, ReadsShortRangesOfACheckpointInAnyOrder) {
  const TempFolder folder;
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("a", "param", {3, 200'000}, random),
                     fake_tensor("b", "param", {300}, random)};
  for (FakeTensor& t : state)  // avoids NaN, which compares unequal to itself
    for (size_t i = 3; i < t.bytes.size(); i += 4) t.bytes[i] = 0;
  const ReadWeights weights = open_weights(
      save_whole(folder.path().string(), 3, state), {{"a", {3, 200'000}}, {"b", {300}}}, {});
  for (int n = 0; n < 2000; ++n) {
    const FakeTensor& t = state[random() % 2];
    const int64_t end = std::min<int64_t>(t.numel(), n % 2 == 0 ? 300 : t.numel());
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(end));
    const int64_t count =
        std::min<int64_t>(t.numel() - begin, 1 + static_cast<int64_t>(random() % 99));
    const std::vector<float> values = read(weights, t.name, begin, count);
    ASSERT_EQ(std::memcmp(values.data(), &t.bytes[begin * 4], values.size() * 4), 0) << begin;
  }
}

TEST(HfWeights, PassesOverTablesThatFollowFromTheConfig) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file({counting("a", {2, 3}),
                                 counting("b", {2}),
                                 counting("model.layers.0.self_attn.rotary_emb.inv_freq", {4})}));
  EXPECT_EQ(open_error(folder).code, YOKE_OK);
}

// ---- Tied parameters ----

// GPT-2's published files hold a part of the model that transformers calls "transformer".
TEST(HfWeights, MayLackAPrefixThatTheModelHas) {
  const Shapes model{{"t.a", {2}}};
  const TempFolder without, with;
  without.write("model.safetensors",
                safetensors_file({counting("a", {2}, 3), counting("h.0.attn.bias", {4})}));
  with.write("model.safetensors", safetensors_file({counting("t.a", {2}, 3)}));
  for (const TempFolder* folder : {&without, &with})
    EXPECT_THAT(read(open_weights(folder->path().string(), model, {}, "t."), "t.a", 0, 2),
                ElementsAre(3, 4));
  EXPECT_EQ(open_error(without, model).code, YOKE_FAILED_PRECONDITION);
}

// The head is outside of that part, whether it is tied or not.
TEST(HfWeights, ThatLackAPrefixMayHaveAHead) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file({counting("a", {2}, 3), counting("head", {2}, 3)}));
  const std::string path = folder.path().string();
  EXPECT_THAT(read(open_weights(path, {{"t.a", {2}}, {"head", {2}}}, {}, "t."), "head", 0, 2),
              ElementsAre(3, 4));
  EXPECT_THAT(read(open_weights(path, {{"t.a", {2}}}, {{"head", "t.a"}}, "t."), "t.a", 0, 2),
              ElementsAre(3, 4));
}

TEST(HfWeights, ATiedNameMayBeAbsentOrHoldTheSameValues) {
  const TempFolder absent, same;
  absent.write("model.safetensors", safetensors_file({counting("a", {2, 3})}));
  same.write("model.safetensors",
             safetensors_file({counting("a", {2, 3}), counting("head", {2, 3})}));
  for (const TempFolder* folder : {&absent, &same})
    EXPECT_EQ(open_error(*folder, {{"a", {2, 3}}}, {{"head", "a"}}).text, "");
}

TEST(HfWeights, ATiedNameWithOtherValuesOrAnotherShapeIsRefused) {
  const TempFolder other, reshaped;
  other.write("model.safetensors",
              safetensors_file({counting("a", {2, 3}), counting("head", {2, 3}, 1)}));
  reshaped.write("model.safetensors",
                 safetensors_file({counting("a", {2, 3}), counting("head", {3, 2})}));
  EXPECT_THAT(open_error(other, {{"a", {2, 3}}}, {{"head", "a"}}).text,
              AllOf(HasSubstr("ties 'head' to 'a'"), HasSubstr("tie_word_embeddings = false")));
  EXPECT_THAT(open_error(reshaped, {{"a", {2, 3}}}, {{"head", "a"}}).text,
              HasSubstr("'head' [3, 2] is not in the model"));
}

// ---- Errors ----

TEST(HfWeights, ListsTheDifferencesToTheModel) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file({counting("a", {3, 2}), counting("extra", {1})}));
  const Outcome error = open_error(folder);
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text,
              AllOf(HasSubstr(folder.path().string()),
                    HasSubstr("'a' is [2, 3] in the model, [3, 2] in the files"),
                    HasSubstr("'b' [2] is not in the files"),
                    HasSubstr("'extra' [1] is not in the model")));
}

TEST(HfWeights, SaysWhatAFolderLacks) {
  const TempFolder folder;
  EXPECT_EQ(open_error(folder).code, YOKE_NOT_FOUND);
  EXPECT_THAT(open_error(folder).text, HasSubstr("model.safetensors.index.json"));
  folder.write("pytorch_model.bin", "x");
  EXPECT_THAT(open_error(folder).text, AllOf(HasSubstr("pickle"), HasSubstr("save_pretrained")));
}

TEST(HfWeights, RefusesWeightsThatAreIntegers) {
  const TempFolder folder;
  folder.write("model.safetensors", safetensors_file({{"a", YOKE_I32, {1}, "abcd"}}));
  EXPECT_THAT(open_error(folder).text, AllOf(HasSubstr("'a' is int32"), HasSubstr("bf16")));
}

TEST(HfWeights, NamesAMissingOrCutShard) {
  const TempFolder folder;
  write_shards(folder, {{"1", {counting("a", {2, 3})}}, {"2", {counting("b", {2})}}});
  const std::string shard = testing::read_file(folder / "model-2.safetensors");
  folder.write("model-2.safetensors", shard.substr(0, shard.size() - 1));
  Outcome error = open_error(folder);
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text, AllOf(HasSubstr("model-2.safetensors"), HasSubstr("'b'")));
  std::filesystem::remove(folder / "model-2.safetensors");
  error = open_error(folder);
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text,
              AllOf(HasSubstr("index.json"), HasSubstr("model-2.safetensors, which is not")));
}

struct BadIndex {
  const char* text;
  const char* fragment;
};

TEST(HfWeights, RefusesAnIndexThatIsNotTrue) {
  const BadIndex rows[] = {
      {"{", "is not JSON"},
      {"[]", "is not a JSON object"},
      {"{}", "no weight_map"},
      {R"({"weight_map": {}})", "no weight_map"},
      {R"({"weight_map": {"a": 1}})", "the file of 'a' is not a string"},
      {R"({"weight_map": {"a": "../model-1.safetensors"}})", "not a plain file name"},
      {R"({"weight_map": {"a": ".hidden"}})", "not a plain file name"},
      {R"({"weight_map": {"a": "model-1.safetensors", "a": "model-1.safetensors"}})", "twice"},
      {R"({"weight_map": {"b": "model-1.safetensors"}})", "places 'b' in model-1.safetensors"},
      {R"({"weight_map": {"b": "model-2.safetensors"}, "x": {"y": [[{}]]}})",
       "'a' [2, 3] is not in"},
      {R"({"weight_map": {"a": "model-3.safetensors"}})", "'c' is not in"},
      {R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors",
           "c": "model-3.safetensors"}})",
       "'a' is also in"},
  };
  const TempFolder folder;
  folder.write("model-1.safetensors", safetensors_file({counting("a", {2, 3})}));
  folder.write("model-2.safetensors", safetensors_file({counting("b", {2})}));
  folder.write("model-3.safetensors",
               safetensors_file({counting("a", {2, 3}), counting("c", {2})}));
  for (const BadIndex& row : rows) {
    folder.write("model.safetensors.index.json", row.text);
    EXPECT_THAT(open_error(folder).text, HasSubstr(row.fragment)) << row.text;
  }
}

}  // namespace
}  // namespace yoke
