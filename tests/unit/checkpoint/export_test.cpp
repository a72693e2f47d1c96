#include "core/checkpoint/export.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/checkpoint/convert.hpp"
#include "core/checkpoint/hf_weights.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

struct Exporting : ::testing::Test {
  testing::TempFolder folder;
  FakeState state = fake_state(5, 3);
  std::string checkpoint = save_whole(folder / "checkpoints", 7, state);
  std::string out = folder / "out";

  void expect_values(int32_t dtype) const {
    const HfWeights weights(out);
    for (const FakeTensor& t : state) {
      if (t.kind != "param") continue;
      std::vector<float> expected(static_cast<size_t>(t.numel())), read(expected.size());
      std::vector<char> stored(expected.size() * static_cast<size_t>(item_size(dtype)));
      convert(t.bytes.data(), YOKE_F32, stored.data(), dtype, t.numel());
      convert(stored.data(), dtype, expected.data(), YOKE_F32, t.numel());
      weights.read(t.name, 0, t.numel(), read.data());
      EXPECT_EQ(std::memcmp(read.data(), expected.data(), expected.size() * 4), 0) << t.name;
    }
  }
};

TEST_F(Exporting, WritesTheWeightsAndTheConfigAndNothingElse) {
  const Exported done = export_hf({checkpoint, out});
  EXPECT_EQ(done.step, 7);
  EXPECT_EQ(done.tensors, 3u);
  EXPECT_EQ(done.files, 1u);
  EXPECT_THAT(names_in(out), UnorderedElementsAre("config.json", "model.safetensors"));
  expect_values(YOKE_F32);
  const auto config = nlohmann::json::parse(testing::read_file(out + "/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["model_type"], "llama");
}

TEST_F(Exporting, WritesTheTokenizerThatTheCheckpointHas) {
  SaveRequest request = request_of(folder / "with", 7);
  request.texts["tokenizer.json"] = "{\"model\": {}}";
  request.texts["generation_config.json"] = "{}";
  const std::string path = save(request, state, whole_on_rank0(state, 1))[0].path;
  export_hf({path, out});
  EXPECT_EQ(testing::read_file(out + "/tokenizer.json"), "{\"model\": {}}");
  EXPECT_EQ(testing::read_file(out + "/generation_config.json"), "{}");
  EXPECT_EQ(read_companions(out), read_companions(path));
  folder.write("with/step-00000007/tokenizer.json", "{\"model\": []}");
  EXPECT_THROW(read_companions(path), Error) << "the checksum differs";
}

TEST_F(Exporting, RoundsToBf16) {
  export_hf({checkpoint, out, YOKE_BF16});
  expect_values(YOKE_BF16);
  const auto config = nlohmann::json::parse(testing::read_file(out + "/config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_LT(fs::file_size(out + "/model.safetensors"),
            fs::file_size(checkpoint + "/model.safetensors"));
}

TEST_F(Exporting, SplitsAboveTheSizeLimit) {
  EXPECT_EQ(export_hf({checkpoint, out, YOKE_F32, 1}).files, 3u);
  EXPECT_TRUE(fs::exists(out + "/model-00003-of-00003.safetensors"));
  expect_values(YOKE_F32);
}

TEST_F(Exporting, NeverTouchesAFolderThatExists) {
  fs::create_directory(out);
  const Outcome error = error_of([&] { export_hf({checkpoint, out}); });
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text, AllOf(HasSubstr(out), HasSubstr("exists already")));
}

TEST_F(Exporting, LeavesNothingOfADamagedCheckpoint) {
  std::string bytes = testing::read_file(checkpoint + "/model.safetensors");
  bytes.back() ^= 1;
  folder.write("checkpoints/step-00000007/model.safetensors", bytes);
  const Outcome error = error_of([&] { export_hf({checkpoint, out}); });
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text, HasSubstr("model.safetensors"));
  EXPECT_THAT(names_in(folder.path().string()), UnorderedElementsAre("checkpoints"));
}

TEST_F(Exporting, RefusesAFamilyWithoutAConfig) {
  SaveRequest request = request_of(folder / "plain", 1);
  request.texts.clear();
  const std::string plain = save(request, state, whole_on_rank0(state, 1))[0].path;
  const Outcome error = error_of([&] { export_hf({plain, out}); });
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text, HasSubstr("has no config.json"));
}

}  // namespace
}  // namespace yoke
