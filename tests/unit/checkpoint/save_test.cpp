#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

std::vector<Outcome> save_once(const std::string& folder, int64_t step, uint64_t seed, int ranks) {
  FakeState state = fake_state(seed, 3);
  std::mt19937_64 random(seed);
  return save(request_of(folder, step), state, random_partition(state, ranks, random));
}

// Expects that all ranks report the same failure, that no new files are left, and that the older
// checkpoint is intact.
void expect_abandoned(const std::vector<Outcome>& outcomes,
                      const TempDir& dir,
                      int32_t code,
                      int32_t rank) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, code) << outcome.text;
    EXPECT_EQ(outcome.rank, rank);
    EXPECT_EQ(outcome.text, outcomes[0].text);
  }
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000001", ".lock"));
  CheckpointReader(dir / "step-00000001").verify();
}

TEST(SaveCheckpoint, ComesBackBitForBitAtAnyOtherPartition) {
  std::mt19937_64 random(7);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const TempDir dir;
    FakeState state = fake_state(seed, 1 + static_cast<int>(seed % 5));
    SaveRequest request = request_of(dir.path(), 100);
    if (seed % 3 == 0) request.max_file_bytes = 600;  // many files
    const int ranks = 1 + static_cast<int>(random() % 4);
    for (const Outcome& outcome : save(request, state, random_partition(state, ranks, random))) {
      ASSERT_EQ(outcome.code, YOKE_OK) << outcome.text;
      ASSERT_EQ(outcome.path, dir / "step-00000100");
    }
    for (int other = 1; other <= 4; ++other) {
      const FakeState loaded =
          load(dir / "step-00000100", state, random_partition(state, other, random));
      ASSERT_TRUE(same_bytes(loaded, state)) << "seed " << seed << ", " << ranks << " -> " << other;
    }
    CheckpointReader(dir / "step-00000100").verify();
  }
}

TEST(SaveCheckpoint, KeepsPiecesOfManyChunks) {
  const TempDir dir;
  std::mt19937_64 random(5);
  // 13 MB are several chunks of 4 MiB, the last one short, in pieces that do not start at a chunk.
  FakeState state = {fake_tensor("w", "param", {3250001}, random)};
  const RankPieces pieces = {{{0, 0, 1100000, 0}}, {{0, 1100000, 2150001, 0}}};
  ASSERT_EQ(save(request_of(dir.path(), 1), state, pieces)[0].code, YOKE_OK);
  const RankPieces other = {{{0, 1048575, 3, 0}}, {{0, 0, 1048575, 0}}, {{0, 1048578, 2201423, 0}}};
  EXPECT_TRUE(same_bytes(load(dir / "step-00000001", state, other), state));
}

// Each rank has columns of a matrix of 13 MB, so chunks of 4 MiB end in the middle of a span.
TEST(SaveCheckpoint, KeepsColumnsOfManyChunks) {
  const TempDir dir;
  std::mt19937_64 random(5);
  FakeState state = {fake_tensor("w", "param", {1300, 2500}, random),
                     fake_tensor("optimizer", "step", {}, random, YOKE_I64)};
  const RankPieces pieces = {{{0, 0, 1300 * 999, 0, 999, 2500}, {1, 0, 1}},
                             {{0, 999, 1300 * 1501, 0, 1501, 2500}}};
  ASSERT_EQ(save(request_of(dir.path(), 1), state, pieces)[0].code, YOKE_OK);
  CheckpointReader(dir / "step-00000001").verify();
  const RankPieces whole = {{{0, 0, 3250000, 0}, {1, 0, 1}}};
  EXPECT_TRUE(same_bytes(load(dir / "step-00000001", state, whole), state));
  const RankPieces other = {{{0, 0, 1300 * 1250, 0, 1250, 2500}},
                            {{0, 1250, 1300 * 1250, 0, 1250, 2500}, {1, 0, 1}}};
  EXPECT_TRUE(same_bytes(load(dir / "step-00000001", state, other), state));
  const std::string path = save_whole(dir.path(), 2, state);
  EXPECT_TRUE(same_bytes(load(path, state, other), state));
  EXPECT_EQ(slurp(path + "/model.safetensors"), slurp(dir / "step-00000001/model.safetensors"));
}

TEST(SaveCheckpoint, NamesColumnsThatOverlap) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {3, 4}, random)};
  const auto outcomes =
      save(request_of(dir.path(), 2), state, {{{0, 0, 6, 0, 2, 4}}, {{0, 1, 9, 0, 3, 4}}});
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
  EXPECT_THAT(outcomes[0].text,
              HasSubstr("elements [1, 2) are in two pieces: [0, 10) in runs of 2 at stride 4 (from "
                        "rank 0)"));
}

TEST(SaveCheckpoint, RestoresStepAndCursor) {
  const TempDir dir;
  FakeState state = fake_state(1, 1);
  SaveRequest request = request_of(dir.path(), 123);
  request.info.finished = true;
  save(request, state, whole_on_rank0(state, 1));
  const CheckpointReader reader(dir / "step-00000123");
  const CheckpointInfo& info = reader.info();
  EXPECT_EQ(info.path, dir / "step-00000123");
  EXPECT_EQ(info.step, 123);
  EXPECT_EQ(info.next_sample, 123 * 16);
  EXPECT_EQ(info.config_digest, "digest-1");
  EXPECT_TRUE(info.finished);
}

TEST(SaveCheckpoint, WritesWholeTensorsUnderHuggingFaceNames) {
  const TempDir dir;
  std::mt19937_64 random(1);
  FakeState state = fake_state(4, 3);
  save(request_of(dir.path(), 5), state, random_partition(state, 3, random));
  const std::string path = dir / "step-00000005";
  EXPECT_THAT(names_in(path),
              UnorderedElementsAre(
                  "model.safetensors", "optimizer.safetensors", "config.json", "manifest.json"));
  EXPECT_EQ(slurp(path + "/config.json"), "{\"model_type\": \"llama\"}\n");
  const std::string text = slurp(path + "/model.safetensors");
  const SafetensorsHeader header =
      read_safetensors_header(File::open_for_reading(path + "/model.safetensors"));
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_begin % 64, 0U);
  ASSERT_EQ(header.tensors.size(), 3U);
  for (const SafetensorsTensor& tensor : header.tensors) {
    const auto same = std::find_if(state.begin(), state.end(), [&](const FakeTensor& t) {
      return t.name == tensor.name && t.kind == "param";
    });
    ASSERT_NE(same, state.end()) << tensor.name;
    EXPECT_EQ(tensor.dtype, YOKE_F32);
    EXPECT_EQ(tensor.shape, same->shape);
    EXPECT_EQ(text.substr(tensor.begin, tensor.end - tensor.begin),
              std::string(same->bytes.begin(), same->bytes.end()));
  }
  const std::string optimizer = slurp(path + "/optimizer.safetensors");
  EXPECT_THAT(
      optimizer,
      AllOf(HasSubstr("\"model.layers.0.weight.exp_avg\""), HasSubstr("\"optimizer.step\"")));
}

TEST(SaveCheckpoint, WritesTheSameFilesWhateverTheLayout) {
  const TempDir dir;
  std::mt19937_64 random(2);
  FakeState state = fake_state(6, 4);
  save(request_of(dir / "a", 1), state, whole_on_rank0(state, 1));
  save(request_of(dir / "b", 1), state, random_partition(state, 4, random));
  for (const char* file :
       {"/step-00000001/model.safetensors", "/step-00000001/optimizer.safetensors"}) {
    EXPECT_EQ(slurp(dir / "a" + file), slurp(dir / "b" + file));
  }
}

TEST(SaveCheckpoint, SplitsAboveTheSizeLimitWithAnIndex) {
  const TempDir dir;
  std::mt19937_64 random(3);
  FakeState state;
  for (const char* name : {"a", "b", "c"})
    state.push_back(fake_tensor(name, "param", {100}, random));
  SaveRequest request = request_of(dir.path(), 1);
  request.max_file_bytes = 800;  // two tensors of 400 bytes fit
  save(request, state, random_partition(state, 2, random));
  const std::string path = dir / "step-00000001";
  EXPECT_THAT(names_in(path),
              UnorderedElementsAre("model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json",
                                   "config.json",
                                   "manifest.json"));
  const auto index = nlohmann::json::parse(slurp(path + "/model.safetensors.index.json"));
  EXPECT_EQ(index, nlohmann::json::parse(R"({"metadata": {"total_size": 1200}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
      "c": "model-00002-of-00002.safetensors"}})"));
}

TEST(SaveCheckpoint, KeepsFp64Masters) {
  const TempDir dir;
  std::mt19937_64 random(3);
  FakeState state = {fake_tensor("w", "param", {3, 5}, random, YOKE_F64)};
  save_whole(dir.path(), 1, state);
  EXPECT_TRUE(same_bytes(load(dir / "step-00000001", state, whole_on_rank0(state, 1)), state));
  EXPECT_THAT(slurp(dir / "step-00000001/model.safetensors"), HasSubstr("\"dtype\":\"F64\""));
}

TEST(SaveCheckpoint, ReplacesAStepThatWasSavedBefore) {
  const TempDir dir;
  FakeState first = fake_state(1, 2), second = first;
  for (FakeTensor& t : second) std::reverse(t.bytes.begin(), t.bytes.end());
  save_whole(dir.path(), 1, first);
  save_whole(dir.path(), 1, second);
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000001", ".lock"));
  EXPECT_TRUE(same_bytes(load(dir / "step-00000001", first, whole_on_rank0(first, 1)), second));
}

// ---- Failures: one rank fails, and all report it ----

TEST(SaveCheckpoint, NamesAHole) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {10}, random)};
  const auto outcomes =
      save(request_of(dir.path(), 2), state, {{{0, 0, 4, 0}}, {{0, 6, 4, 0}, {0, 4, 2, 1}}});
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
  EXPECT_THAT(outcomes[0].text, HasSubstr("tensor 'w' (param): elements [4, 6) are in no piece"));
}

TEST(SaveCheckpoint, NamesAnOverlapAndItsRanks) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {10}, random)};
  const auto outcomes =
      save(request_of(dir.path(), 2), state, {{}, {{0, 0, 6, 0}}, {{0, 5, 5, 0}}});
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
  EXPECT_THAT(outcomes[0].text,
              HasSubstr("elements [5, 6) are in two pieces: [0, 6) (from rank 1) and [5, 10) (from "
                        "rank 2)"));
}

TEST(SaveCheckpoint, NamesTwoShapesOfOneTensor) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState one = {fake_tensor("w", "param", {2, 5}, random)};
  FakeState other = {fake_tensor("w", "param", {5, 2}, random)};
  const RankPieces pieces = {{{0, 0, 5, 0}}, {{0, 5, 5, 0}}};
  const auto outcomes = save_with(request_of(dir.path(), 2), 2, [&](int r) {
    return walk_of(r == 0 ? one : other, pieces[r]);
  });
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
  EXPECT_THAT(outcomes[0].text, HasSubstr("its pieces disagree: fp32 [2, 5] and fp32 [5, 2]"));
}

TEST(SaveCheckpoint, RefusesAStateWithoutParameters) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  const auto outcomes = save_with(
      request_of(dir.path(), 2), 2, [](int) { return [](int32_t, const PieceVisitor&) {}; });
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
}

TEST(SaveCheckpoint, PassesOnWhatABackendThrowsInEitherPass) {
  for (const int32_t failing_op : {YOKE_CHECKPOINT_DESCRIBE, YOKE_CHECKPOINT_SAVE}) {
    for (int failing_rank = 0; failing_rank < 3; ++failing_rank) {
      const TempDir dir;
      save_once(dir.path(), 1, 1, 1);
      std::mt19937_64 random(1);
      FakeState state = fake_state(2, 3);
      const RankPieces pieces = random_partition(state, 3, random);
      const auto outcomes = save_with(request_of(dir.path(), 2), 3, [&](int r) {
        const PieceWalk walk = walk_of(state, pieces[r]);
        return [=](int32_t op, const PieceVisitor& visit) {
          if (r == failing_rank && op == failing_op)
            throw Error(YOKE_UNAVAILABLE, "a peer is lost");
          walk(op, visit);
        };
      });
      expect_abandoned(outcomes, dir, YOKE_UNAVAILABLE, failing_rank);
      EXPECT_EQ(outcomes[0].text, "a peer is lost");
    }
  }
}

TEST(SaveCheckpoint, NoticesABackendThatSavesOtherThanItDescribed) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {10}, random),
                     fake_tensor("v", "param", {10}, random)};
  const std::vector<FakePiece> described = {{0, 0, 10, 0}, {1, 0, 10, 0}};
  const std::vector<std::vector<FakePiece>> saved = {
      {{0, 0, 10, 0}},                              // a missing piece
      {{0, 0, 10, 0}, {1, 0, 9, 0}},                // a shorter piece
      {{0, 0, 10, 0}, {1, 0, 10, 0}, {1, 0, 1, 0}}  // an extra piece
  };
  for (const auto& pieces : saved) {
    const auto outcomes = save_with(request_of(dir.path(), 2), 1, [&](int) {
      return [&](int32_t op, const PieceVisitor& visit) {
        walk_of(state, op == YOKE_CHECKPOINT_DESCRIBE ? described : pieces)(op, visit);
      };
    });
    expect_abandoned(outcomes, dir, YOKE_INTERNAL, 0);
    EXPECT_THAT(outcomes[0].text, HasSubstr("the backend saved other pieces than it described"));
  }
}

TEST(SaveCheckpoint, WalksToTheEndAlthoughWritingFailed) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = fake_state(2, 3);
  const RankPieces pieces = random_partition(state, 2, random);
  bool ended = false;
  const auto outcomes = save_with(request_of(dir.path(), 2), 2, [&](int r) -> PieceWalk {
    return [&, r](int32_t op, const PieceVisitor& visit) {
      // In SAVE, rank 1 first visits a tensor that was never described.
      FakeState unknown = {fake_tensor("unknown", "param", {1}, random)};
      if (r == 1 && op == YOKE_CHECKPOINT_SAVE) {
        visit_fake(unknown[0], {0, 0, 1, 0}, unknown[0].bytes.data(), visit);
      }
      walk_of(state, pieces[r])(op, visit);
      if (r == 1 && op == YOKE_CHECKPOINT_SAVE) ended = true;
    };
  });
  expect_abandoned(outcomes, dir, YOKE_INTERNAL, 1);
  EXPECT_TRUE(ended);
}

TEST(SaveCheckpoint, RefusesWhileAnotherProcessSavesIntoTheFolder) {
  const TempDir dir;
  save_once(dir.path(), 1, 1, 1);
  const FolderLock lock(dir.path());
  const auto outcomes = save_once(dir.path(), 2, 1, 2);
  expect_abandoned(outcomes, dir, YOKE_FAILED_PRECONDITION, 0);
  EXPECT_THAT(outcomes[0].text, HasSubstr("another process is saving into " + dir.path()));
}

TEST(SaveCheckpoint, NamesAFolderThatCannotBeMade) {
  const TempDir dir;
  spill(dir / "file", "");
  const auto outcomes = save_once(dir / "file/checkpoints", 1, 1, 2);
  EXPECT_EQ(outcomes[1].text.find("cannot create the folder " + (dir / "file/checkpoints")), 0U)
      << outcomes[1].text;
  EXPECT_NE(outcomes[1].code, YOKE_OK);
}

TEST(SaveCheckpoint, NamesAFolderThatMayNotBeWritten) {
  if (::geteuid() == 0)
    GTEST_SKIP() << "root may write everywhere; save_crash_test injects EACCES instead";
  const TempDir dir;
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
  const auto outcomes = save_once(dir.path(), 1, 1, 2);
  EXPECT_EQ(outcomes[1].code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(outcomes[1].text, AllOf(HasSubstr(dir.path()), HasSubstr("Permission denied")));
}

TEST(SaveCheckpoint, SaysWhatAFullDiskLacks) {
  const TempDir dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "a small tmpfs cannot be mounted here: " << std::strerror(errno);
  }
  save_once(dir.path(), 1, 1, 1);
  std::mt19937_64 random(1);
  FakeState state = {fake_tensor("w", "param", {100000}, random)};
  const auto outcomes =
      save(request_of(dir.path(), 2), state, {{{0, 0, 50000, 0}}, {{0, 50000, 50000, 0}}});
  expect_abandoned(outcomes, dir, YOKE_RESOURCE_EXHAUSTED, 0);
  EXPECT_THAT(outcomes[0].text,
              AllOf(HasSubstr("it needs 400"),
                    HasSubstr("are free in " + dir.path()),
                    HasSubstr("checkpoint.keep")));
  ::umount(dir.path().c_str());
}

}  // namespace
}  // namespace yoke
