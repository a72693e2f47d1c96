#include "core/checkpoint/retention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "core/base/files.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

struct Folder {
  TempDir dir;
  FakeState state = fake_state(1, 1);

  explicit Folder(const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) save_whole(dir.path(), step, state);
  }
  std::string file(int64_t step, const std::string& name) const {
    return dir / (step_name(step) + "/" + name);
  }
  // flip() causes damage that is detected only when the bytes are read; cut() causes damage that is
  // detected when the checkpoint is opened.
  void flip(int64_t step) const {
    std::string text = slurp(file(step, "model.safetensors"));
    text.back() = static_cast<char>(text.back() ^ 1);
    spill(file(step, "model.safetensors"), text);
  }
  void cut(int64_t step) const { fs::resize_file(file(step, "model.safetensors"), 100); }
  std::vector<int64_t> steps() const { return steps_in(dir.path()); }
};

CheckpointInfo newest(const Folder& folder, std::vector<std::string>* warnings) {
  return newest_checkpoint(folder.dir.path(),
                           [&](const std::string& text) { warnings->push_back(text); });
}

// Saves steps with evaluation losses.
struct Evaluated : Folder {
  explicit Evaluated(const std::map<int64_t, std::optional<double>>& losses) : Folder({}) {
    for (const auto& [step, loss] : losses) {
      SaveRequest request = request_of(dir.path(), step);
      request.info.eval_loss = loss;
      EXPECT_EQ(save(request, state, whole_on_rank0(state, 1))[0].code, YOKE_OK);
    }
  }
  std::optional<int64_t> best() const {
    const auto found = best_checkpoint(dir.path());
    return found ? std::optional(found->step) : std::nullopt;
  }
};

TEST(BestCheckpoint, HasTheLowestLoss) {
  EXPECT_EQ(Evaluated({{1, 3.0}, {2, 2.5}, {3, 2.75}, {4, std::nullopt}}).best(), 2);
  EXPECT_EQ(Evaluated({{1, 3.0}, {2, 2.5}, {3, 2.5}}).best(), 2);  // the oldest one of equals
  EXPECT_EQ(Evaluated({{1, std::nullopt}}).best(), std::nullopt);
  EXPECT_EQ(Evaluated({}).best(), std::nullopt);
}

TEST(BestCheckpoint, IsNotADamagedOne) {
  const Evaluated folder({{1, 3.0}, {2, 2.5}});
  folder.cut(2);
  EXPECT_EQ(folder.best(), 1);
  folder.flip(1);
  EXPECT_EQ(folder.best(), std::nullopt);
}

TEST(PruneCheckpoints, KeepsTheBest) {
  const Evaluated folder({{1, 3.0}, {2, 2.5}, {3, 2.75}, {4, 2.9}, {5, std::nullopt}});
  prune_checkpoints(folder.dir.path(), {.newest = 1, .best = true});
  EXPECT_THAT(folder.steps(), ElementsAre(5, 2));
  prune_checkpoints(folder.dir.path(), {.newest = 1, .best = false});
  EXPECT_THAT(folder.steps(), ElementsAre(5));
}

TEST(PruneCheckpoints, KeepsTheNextBestInPlaceOfADamagedOne) {
  const Evaluated folder({{1, 3.0}, {2, 2.5}, {3, 2.75}, {4, 2.9}, {5, std::nullopt}});
  folder.flip(2);
  prune_checkpoints(folder.dir.path(), {.newest = 1, .best = true});
  EXPECT_THAT(folder.steps(), ElementsAre(5, 3));
}

TEST(StepsIn, SeesOnlyWhatASaveCommits) {
  const Folder folder({1, 100, 20});
  for (const char* name :
       {"step-1", "step-00000007x", "xstep-00000007", ".step-00000300.tmp-1", "step--0000007"}) {
    fs::create_directory(folder.dir / name);
  }
  EXPECT_THAT(folder.steps(), ElementsAre(100, 20, 1));
  EXPECT_THAT(steps_in(folder.dir / "none"), IsEmpty());
  EXPECT_EQ(step_name(123456789), "step-123456789");
}

TEST(NewestCheckpoint, IsTheNewestOne) {
  const Folder folder({20, 100, 3});
  std::vector<std::string> warnings;
  EXPECT_EQ(newest(folder, &warnings).step, 100);
  EXPECT_EQ(newest(folder, &warnings).path, folder.dir / "step-00000100");
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(NewestCheckpoint, PassesByDamagedOnesLoudly) {
  const Folder folder({10, 20, 30, 40});
  folder.flip(40);
  folder.cut(30);
  std::vector<std::string> warnings;
  EXPECT_EQ(newest(folder, &warnings).step, 20);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_THAT(warnings[0], HasSubstr(folder.file(40, "model.safetensors") + ": tensor"));
  EXPECT_THAT(warnings[1], HasSubstr(folder.file(30, "model.safetensors")));
}

TEST(NewestCheckpoint, PassesByARenamedOne) {
  const Folder folder({10, 20});
  fs::rename(folder.dir / "step-00000020", folder.dir / "step-00000030");
  std::vector<std::string> warnings;
  EXPECT_EQ(newest(folder, &warnings).step, 10);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("it holds step 20, not the one in its name"));
}

TEST(VerifyOfACheckpoint, LeavesOtherNamesAlone) {
  const Folder folder({10});
  fs::rename(folder.dir / "step-00000010", folder.dir / "the-best-one");
  EXPECT_NO_THROW(CheckpointReader(folder.dir / "the-best-one/").verify());
}

TEST(NewestCheckpoint, SaysWhenThereIsNone) {
  const Folder folder({});
  std::vector<std::string> warnings;
  const Outcome error = error_of([&] { newest(folder, &warnings); });
  EXPECT_EQ(error.code, YOKE_NOT_FOUND);
  EXPECT_THAT(error.text, HasSubstr(folder.dir.path()));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(NewestCheckpoint, SaysWhenAllAreDamaged) {
  const Folder folder({10, 20});
  folder.cut(10);
  folder.flip(20);
  std::vector<std::string> warnings;
  const Outcome error = error_of([&] { newest(folder, &warnings); });
  EXPECT_EQ(error.code, YOKE_DATA_LOSS);
  EXPECT_THAT(error.text, HasSubstr("none of the checkpoints in " + folder.dir.path()));
  EXPECT_EQ(warnings.size(), 2U);
}

TEST(PruneCheckpoints, KeepsTheNewest) {
  const Folder folder({1, 2, 3, 4});
  prune_checkpoints(folder.dir.path(), {.newest = 2});
  EXPECT_THAT(folder.steps(), ElementsAre(4, 3));
  prune_checkpoints(folder.dir.path(), {.newest = 5});
  EXPECT_THAT(folder.steps(), ElementsAre(4, 3));
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_THAT(folder.steps(), ElementsAre(4));
}

TEST(PruneCheckpoints, DoesNotCountDamagedOnes) {
  const Folder folder({1, 2, 3, 4});
  folder.cut(4);
  folder.cut(2);
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_THAT(folder.steps(), ElementsAre(4, 3));
}

TEST(PruneCheckpoints, NeverRemovesTheNewestThatVerifies) {
  const Folder folder({1, 2, 3, 4});
  folder.flip(4);  // can be opened, but fails verification
  folder.flip(3);
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_THAT(folder.steps(), ElementsAre(4, 3, 2));  // 1 is older than a good one
  std::vector<std::string> warnings;
  EXPECT_EQ(newest(folder, &warnings).step, 2);
}

TEST(PruneCheckpoints, RemovesNothingIfNothingVerifies) {
  const Folder folder({1, 2, 3});
  for (const int64_t step : {1, 2, 3}) folder.flip(step);
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_THAT(folder.steps(), ElementsAre(3, 2, 1));
}

TEST(PruneCheckpoints, SweepsWhatDeadSavesLeft) {
  const Folder folder({1});
  fs::create_directories(folder.dir / ".step-00000002.tmp-123-abc/x");
  fs::create_directories(folder.dir / ".step-00000002.tmp-removed");
  fs::create_directories(folder.dir / ".mine.tmp-1");
  fs::create_directories(folder.dir / "other");
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_FALSE(fs::exists(folder.dir / ".step-00000002.tmp-123-abc"));
  EXPECT_FALSE(fs::exists(folder.dir / ".step-00000002.tmp-removed"));
  EXPECT_TRUE(fs::exists(folder.dir / ".mine.tmp-1"));
  EXPECT_TRUE(fs::exists(folder.dir / "other"));
}

TEST(PruneCheckpoints, LeavesASaveThatIsAlive) {
  const Folder folder({1, 2});
  fs::create_directories(folder.dir / ".step-00000003.tmp-1-1");
  const FolderLock lock(folder.dir.path());
  prune_checkpoints(folder.dir.path(), {.newest = 1});
  EXPECT_TRUE(fs::exists(folder.dir / ".step-00000003.tmp-1-1"));
  EXPECT_THAT(folder.steps(), ElementsAre(2, 1));
}

TEST(PruneCheckpoints, RefusesToKeepNone) {
  const Folder folder({1});
  EXPECT_EQ(error_of([&] { prune_checkpoints(folder.dir.path(), {.newest = 0}); }).code,
            YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(folder.steps(), ElementsAre(1));
}

}  // namespace
}  // namespace yoke
