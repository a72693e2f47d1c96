#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/checkpoint/convert.hpp"
#include "core/checkpoint/manifest.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Saved {
  TempDir dir;
  FakeState state;
  std::string path;

  explicit Saved(FakeState s) : state(std::move(s)) { path = save_whole(dir.path(), 7, state); }
};

Outcome open_and_verify(const std::string& path) {
  return error_of([&] { CheckpointReader(path).verify(); });
}

Outcome load_error(const std::string& path, FakeTensor t, FakePiece piece, int32_t view_dtype = 0) {
  return error_of([&] {
    const CheckpointReader reader(path);
    std::vector<char> out(static_cast<size_t>(t.numel() + 1) * 8);
    visit_fake(
        t, piece, out.data(), [&](const YokePiece& p) { reader.visit(p); }, view_dtype);
  });
}

// ---- Requests and their errors ----

TEST(CheckpointReader, SaysWhatIsNoCheckpoint) {
  const TempDir dir;
  for (const auto& [path, what] : {std::pair{dir.path(), " is not a checkpoint"},
                                   std::pair{dir / "none", " does not exist"}}) {
    const Outcome error = open_and_verify(path);
    EXPECT_EQ(error.code, YOKE_NOT_FOUND);
    EXPECT_THAT(error.text, AllOf(HasSubstr(path + what), HasSubstr("step-00001000")));
  }
}

TEST(CheckpointReader, NamesTheCheckpointThatMayBeMeant) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "run/checkpoints");
  FakeTensor t{"w", "param", YOKE_F32, {2}, {}};
  t.bytes.assign(8, '\0');
  FakeState state = {t};
  save_whole(dir / "run/checkpoints", 8, state);
  for (const char* path : {"run", "run/checkpoints", "run/checkpoints/step-00000007"}) {
    EXPECT_THAT(
        open_and_verify(dir / path).text,
        HasSubstr("the newest checkpoint there is " + (dir / "run/checkpoints/step-00000008")))
        << path;
  }
}

TEST(CheckpointReader, FillsAnyRangeInAnotherDtype) {
  const TempDir dir;
  FakeTensor t{"w", "param", YOKE_F32, {1000}, {}};
  std::vector<float> values(1000);
  for (int i = 0; i < 1000; ++i) values[i] = static_cast<float>(i) / 7;
  t.bytes.assign(reinterpret_cast<char*>(values.data()),
                 reinterpret_cast<char*>(values.data() + 1000));
  FakeState state = {t};
  const CheckpointReader reader(save_whole(dir.path(), 8, state));
  std::vector<double> wide(100);
  visit_fake(
      t, {0, 450, 100, 0}, wide.data(), [&](const YokePiece& p) { reader.visit(p); }, YOKE_F64);
  std::vector<uint16_t> narrow(100), expected(100);
  visit_fake(
      t, {0, 450, 100, 0}, narrow.data(), [&](const YokePiece& p) { reader.visit(p); }, YOKE_BF16);
  convert(values.data() + 450, YOKE_F32, expected.data(), YOKE_BF16, 100);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(wide[i], static_cast<double>(values[450 + i]));
  EXPECT_EQ(narrow, expected);
}

TEST(CheckpointReader, RefusesWhatIsNotInIt) {
  const Saved saved(fake_state(1, 2));
  FakeTensor t = saved.state[0];
  t.name = "model.unknown";
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 1, 0}).code, YOKE_NOT_FOUND);
  t = saved.state[0];
  t.kind = "momentum";
  const Outcome error = load_error(saved.path, t, {0, 0, 1, 0});
  EXPECT_EQ(error.code, YOKE_NOT_FOUND);
  EXPECT_THAT(error.text,
              AllOf(HasSubstr("no 'momentum' of 'model.layers.0.weight'"),
                    HasSubstr("it has 'exp_avg', 'exp_avg_sq', 'param'"),
                    HasSubstr("train.optimizer")));
}

TEST(CheckpointReader, RefusesAnotherShapeOrDtype) {
  const Saved saved(fake_state(1, 2));
  FakeTensor t = saved.state[0];
  t.shape.push_back(1);
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 1, 0}).code, YOKE_FAILED_PRECONDITION);
  const Outcome error = load_error(saved.path, saved.state[0], {0, 0, 1, 0}, YOKE_I32);
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text, AllOf(HasSubstr("fp32"), HasSubstr("int32"), HasSubstr(saved.path)));
}

TEST(CheckpointReader, RefusesImpossiblePieces) {
  const Saved saved(fake_state(1, 2));
  const FakeTensor& t = saved.state[0];
  EXPECT_EQ(load_error(saved.path, t, {0, 0, t.numel() + 1, 0}).code, YOKE_INTERNAL);
  EXPECT_EQ(load_error(saved.path, t, {0, -1, 1, 0}).code, YOKE_INTERNAL);
  EXPECT_EQ(load_error(saved.path, t, {0, 1, INT64_MAX, 0}).code, YOKE_INTERNAL);
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 1, 0}).code, YOKE_OK);
  EXPECT_EQ(load_error(saved.path, t, {0, t.numel(), 0, 0}).code, YOKE_OK);
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 2, 0, 0, 1}).code, YOKE_INTERNAL);
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 2, 0, 1, t.numel() + 1}).code, YOKE_INTERNAL);
}

TEST(CheckpointReader, ListsTheDifferencesToAnotherModel) {
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("same", "param", {2, 3}, random),
                     fake_tensor("reshaped", "param", {2, 3}, random),
                     fake_tensor("gone", "param", {4}, random)};
  const Saved saved(state);
  const CheckpointReader reader(saved.path);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> params = {
      {"same", {2, 3}}, {"reshaped", {3, 2}}, {"added", {5}}};
  std::vector<YokeParameter> storage(params.size());
  std::vector<const YokeParameter*> pointers;
  for (size_t i = 0; i < params.size(); ++i) {
    storage[i].header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    storage[i].name = view(params[i].first);
    storage[i].shape = params[i].second.data();
    storage[i].ndim = static_cast<int32_t>(params[i].second.size());
    pointers.push_back(&storage[i]);
  }
  YokeModelSummary summary{};
  summary.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  summary.params = pointers.data();
  summary.num_params = 3;
  const Outcome error = error_of([&] { reader.check_model(summary); });
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text,
              AllOf(HasSubstr("'reshaped' is [3, 2] in the model, [2, 3] in the checkpoint"),
                    HasSubstr("'added' [5] is not in the checkpoint"),
                    HasSubstr("'gone' [4] is not in the model")));
  EXPECT_THAT(error.text, ::testing::Not(HasSubstr("'same'")));
  summary.num_params = 0;
  EXPECT_THAT(error_of([&] { reader.check_model(summary); }).text,
              HasSubstr("'same' [2, 3] is not in the model"));
}

TEST(CheckpointReader, StopsListingDifferencesAtTwenty) {
  const Saved saved(fake_state(1, 25));
  YokeModelSummary summary{};
  const Outcome error = error_of([&] { CheckpointReader(saved.path).check_model(summary); });
  EXPECT_EQ(std::count(error.text.begin(), error.text.end(), '\n'), 21);
  EXPECT_THAT(error.text, HasSubstr("and 5 more"));
}

// ---- Damage ----

TEST(CheckpointReader, NoticesAFlippedBitAnywhereAndNamesTheFile) {
  const Saved saved(fake_state(1, 2, 5));
  for (const auto& file : fs::directory_iterator(saved.path)) {
    const std::string path = file.path().string();
    const std::string good = slurp(path);
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      spill(path, bad);
      const Outcome error = open_and_verify(saved.path);
      ASSERT_EQ(error.code, YOKE_DATA_LOSS) << path << " byte " << i << ": " << error.text;
      ASSERT_THAT(error.text, HasSubstr(path)) << i;
    }
    spill(path, good);
  }
  EXPECT_EQ(open_and_verify(saved.path).code, YOKE_OK);
}

TEST(CheckpointReader, NoticesEveryTruncationAndExtension) {
  const Saved saved(fake_state(1, 1, 4));
  for (const auto& file : fs::directory_iterator(saved.path)) {
    const std::string path = file.path().string();
    const std::string good = slurp(path);
    for (size_t size = 0; size <= good.size() + 1; ++size) {
      if (size == good.size()) continue;
      spill(path, size < good.size() ? good.substr(0, size) : good + " ");
      const Outcome error = open_and_verify(saved.path);
      ASSERT_EQ(error.code, YOKE_DATA_LOSS) << path << " of " << size;
      ASSERT_THAT(error.text, HasSubstr(path));
    }
    spill(path, good);
  }
}

TEST(CheckpointReader, NoticesAMissingFile) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    const Saved saved(fake_state(1, 1));
    fs::remove(saved.path + "/" + name);
    const Outcome error = open_and_verify(saved.path);
    EXPECT_EQ(error.code, YOKE_DATA_LOSS);
    EXPECT_EQ(error.text, saved.path + "/" + name + ": the file is missing");
  }
}

TEST(CheckpointReader, NoticesFilesOfAnotherCheckpoint) {
  const Saved one(fake_state(1, 2)), other(fake_state(1, 2)), larger(fake_state(2, 3));
  FakeState changed = other.state;
  changed[1].bytes[0] ^= 1;
  save_whole(other.dir.path(), 7, changed);
  for (const char* name : {"optimizer.safetensors", "manifest.json"}) {
    for (const Saved* from : {&other, &larger}) {
      const Saved target(fake_state(1, 2));
      fs::copy_file(
          from->path + "/" + name, target.path + "/" + name, fs::copy_options::overwrite_existing);
      EXPECT_EQ(open_and_verify(target.path).code, YOKE_DATA_LOSS) << name;
    }
  }
}

TEST(CheckpointReader, NamesFileTensorAndElementsOfTheDamage) {
  const Saved saved(fake_state(1, 2));
  const std::string path = saved.path + "/optimizer.safetensors";
  std::string text = slurp(path);
  text.back() = static_cast<char>(text.back() ^ 1);
  spill(path, text);
  const Outcome error = open_and_verify(saved.path);
  EXPECT_THAT(
      error.text,
      AllOf(HasSubstr(path + ": tensor 'model.layers.1.weight' (exp_avg_sq), elements [0, "),
            HasSubstr("are not what was saved (CRC32C ")));
}

TEST(CheckpointReader, ChecksWhatItLoadsWithoutBeingAsked) {
  std::mt19937_64 random(1);
  // Two chunks of 4 MiB; the second one is damaged.
  const Saved saved({fake_tensor("w", "param", {2, 1048576}, random)});
  const std::string path = saved.path + "/model.safetensors";
  std::string text = slurp(path);
  text.back() = static_cast<char>(text.back() ^ 1);
  spill(path, text);
  const FakeTensor& t = saved.state[0];
  EXPECT_EQ(load_error(saved.path, t, {0, 0, 1048576, 0}).code, YOKE_OK);
  const Outcome error = load_error(saved.path, t, {0, 1048570, 7, 0});
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text, HasSubstr("tensor 'w' (param), elements [1048576, 2097152)"));
  // Without a view, a piece is only verified.
  const auto verify = [&](const FakePiece& piece) {
    const CheckpointReader reader(saved.path);
    visit_fake(t, piece, nullptr, [&](const YokePiece& p) { reader.visit(p); });
  };
  EXPECT_EQ(error_of([&] { verify({0, 0, 1048576, 0}); }).code, YOKE_OK);
  EXPECT_EQ(error_of([&] { verify({0, 1048570, 7, 0}); }).code, YOKE_DATA_LOSS);
}

TEST(CheckpointReader, ReadsJustTheColumnsThatItIsAskedFor) {
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {100, 8}, random)};
  const TempDir dir;
  const RankPieces halves = {{{0, 0, 400, 0, 4, 8}}, {{0, 4, 400, 0, 4, 8}}};
  const std::string path = save(request_of(dir.path(), 1), state, halves)[0].path;
  std::string text = slurp(path + "/model.safetensors");
  text.back() = static_cast<char>(text.back() ^ 1);  // a bit in a column of the second piece
  spill(path + "/model.safetensors", text);
  EXPECT_EQ(load_error(path, state[0], {0, 2, 200, 0, 2, 8}).code, YOKE_OK);
  const Outcome error = load_error(path, state[0], {0, 3, 200, 0, 2, 8});
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text,
              HasSubstr("tensor 'w' (param), elements [4, 800) of the piece [4, 800) in runs of 4 "
                        "at stride 8 are not what was saved"));
}

TEST(CheckpointReader, NoticesAManifestThatLiesAboutTensors) {
  const Saved saved(fake_state(1, 2));
  const std::string path = saved.path + "/manifest.json";
  const Manifest good = parse_manifest(slurp(path));
  // The first seven are detected when the checkpoint is opened, the others when its bytes are read.
  const std::vector<std::function<void(Manifest*)>> lies = {
      [](Manifest* m) { m->tensors[0].offset += 4; },
      [](Manifest* m) { m->tensors[0].name += "x"; },
      [](Manifest* m) { m->tensors[0].file = "nowhere.safetensors"; },
      [](Manifest* m) { m->tensors[0].dtype = YOKE_I32; },
      [](Manifest* m) { m->tensors.pop_back(); },
      [](Manifest* m) { m->files[0].bytes += 1; },
      [](Manifest* m) { m->files[0].head_bytes -= 1; },
      [](Manifest* m) { m->files[0].head_crc ^= 1; },
      [](Manifest* m) { m->tensors[0].pieces[0].crc[0] ^= 1; },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    Manifest lie = good;
    lies[i](&lie);
    spill(path, to_text(lie));
    EXPECT_EQ(open_and_verify(saved.path).code, YOKE_DATA_LOSS) << i;
    EXPECT_EQ(error_of([&] { CheckpointReader reader(saved.path); }).code,
              i < 7 ? YOKE_DATA_LOSS : YOKE_OK)
        << i;
  }
  spill(path, to_text(good));
  EXPECT_EQ(open_and_verify(saved.path).code, YOKE_OK);
}

}  // namespace
}  // namespace yoke
