// Kills a save at each of its system calls, and makes each of them fail. A child process saves; the
// parent then checks the files on disk.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <set>

#include "core/checkpoint/retention.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/checkpoint/traced_child.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

const std::set<long> kFileCalls = {
    SYS_open,      SYS_openat,    SYS_close,      SYS_mkdir,      SYS_pwrite64, SYS_write,
    SYS_fallocate, SYS_ftruncate, SYS_fsync,      SYS_fdatasync,  SYS_rename,   SYS_renameat2,
    SYS_unlink,    SYS_unlinkat,  SYS_rmdir,      SYS_statfs,     SYS_fstatfs,  SYS_flock,
    SYS_access,    SYS_stat,      SYS_newfstatat, SYS_getdents64, SYS_pread64,  SYS_fstat};

bool counts(long number) {
  return kFileCalls.contains(number);
}

// Returns the group of a single rank.
SaveGroup alone() {
  SaveGroup group;
  group.gather = [](const std::string& mine) { return std::vector<std::string>{mine}; };
  group.from_rank0 = [](const std::string& mine) { return mine; };
  return group;
}

FakeState state_at(int64_t step) {
  FakeState state = fake_state(1, 2);
  for (FakeTensor& t : state) {
    for (char& c : t.bytes) c = static_cast<char>(c + step);
  }
  return state;
}

// Saves in the child, without threads and without gtest. Returns 0, or 10 + the code of the Error,
// whose text goes to the file `text_path` if that is not empty.
int save_alone(const std::string& folder,
               int64_t step,
               bool prune,
               const std::string& text_path = "") {
  FakeState state = state_at(step);
  const RankPieces pieces = whole_on_rank0(state, 1);
  try {
    save_checkpoint(request_of(folder, step), alone(), walk_of(state, pieces[0]));
    if (prune) prune_checkpoints(folder, {.newest = 1});
    return 0;
  } catch (const Error& e) {
    if (!text_path.empty()) spill(text_path, e.what());
    return 10 + e.code();
  }
}

bool holds(const std::string& folder, int64_t step, int64_t content) {
  const FakeState expected = state_at(content);
  const std::string path = folder + "/" + step_name(step);
  return same_bytes(load(path, expected, whole_on_rank0(expected, 1)), expected);
}

CheckpointInfo newest(const std::string& folder) {
  return newest_checkpoint(folder, [](const std::string& text) { ADD_FAILURE() << text; });
}

#define SKIP_WITHOUT_TRACING() \
  if (!TracedChild::works())   \
  GTEST_SKIP() << "this machine does not let a process trace its children"

// At any moment of a save a complete checkpoint exists, and an incomplete one is never visible. The
// next save works and leaves no temporary files.
TEST(SaveCheckpoint, MayBeKilledAtEverySystemCall) {
  SKIP_WITHOUT_TRACING();
  bool seen_old = false, seen_new = false;
  int k = 1;
  for (;; ++k) {
    const TempDir dir;
    ASSERT_EQ(save_alone(dir.path(), 1, false), 0);
    const auto result =
        TracedChild::kill_at(k, counts, [&] { return save_alone(dir.path(), 2, true); });
    const int64_t step = newest(dir.path()).step;
    ASSERT_TRUE(holds(dir.path(), step, step)) << "killed at call " << k;
    for (const int64_t other : steps_in(dir.path()))
      ASSERT_TRUE(holds(dir.path(), other, other)) << k;
    (step == 1 ? seen_old : seen_new) = true;
    ASSERT_EQ(save_alone(dir.path(), 3, true), 0) << "after a kill at call " << k;
    ASSERT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << "killed at call " << k;
    ASSERT_TRUE(holds(dir.path(), 3, 3));
    if (result.exit_code == 0) break;
  }
  EXPECT_GT(k, 40);
  EXPECT_TRUE(seen_old && seen_new);
}

// A kill does not affect the page cache, so it cannot reveal a missing sync. This test therefore
// checks the order of the calls: before the rename everything in the new folder must be synced, and
// after it the parent folder, which contains the new name.
TEST(SaveCheckpoint, SyncsEverythingBeforeTheCommitAndTheCommitItself) {
  SKIP_WITHOUT_TRACING();
  const TempDir dir;
  const std::string folder = dir / "run/checkpoints";
  std::set<std::string> dirty;
  int renames = 0, writes = 0;
  const auto parent = [](const std::string& path) { return fs::path(path).parent_path().string(); };
  const auto show = [&](long number, const std::string& path) {
    if (path.rfind(dir.path(), 0) != 0 || path.ends_with("/.lock")) return;
    if (number == SYS_pwrite64 || number == SYS_fallocate) dirty.insert(path);
    if (number == SYS_openat && !fs::exists(path)) dirty.insert(parent(path));
    if (number == SYS_mkdir) dirty.insert(parent(path));
    if (number == SYS_fsync || number == SYS_fdatasync) dirty.erase(path);
    writes += number == SYS_pwrite64 ? 1 : 0;
    if (number != SYS_rename) return;
    ++renames;
    dirty.erase(folder);  // only the temporary name was added, which need not be durable
    EXPECT_TRUE(dirty.empty()) << "not synced before the commit: " << *dirty.begin();
    dirty = {folder};
  };
  EXPECT_EQ(TracedChild::watch(show, [&] { return save_alone(folder, 1, false); }).exit_code, 0);
  EXPECT_TRUE(dirty.empty()) << "not synced after the commit";
  EXPECT_EQ(renames, 1);
  EXPECT_GT(writes, 8);
}

// The same holds while a step that was saved before is replaced.
TEST(SaveCheckpoint, MayBeKilledAtEverySystemCallOfAReplacement) {
  SKIP_WITHOUT_TRACING();
  bool seen_old = false, seen_new = false;
  for (int k = 1;; ++k) {
    const TempDir dir;
    ASSERT_EQ(save_alone(dir.path(), 1, false), 0);
    FakeState changed = state_at(5);
    const auto result = TracedChild::kill_at(k, counts, [&] {
      save_checkpoint(
          request_of(dir.path(), 1), alone(), walk_of(changed, whole_on_rank0(changed, 1)[0]));
      return 0;
    });
    ASSERT_EQ(newest(dir.path()).step, 1);
    const bool is_new = holds(dir.path(), 1, 5);
    ASSERT_TRUE(is_new || holds(dir.path(), 1, 1)) << "killed at call " << k;
    (is_new ? seen_new : seen_old) = true;
    if (result.exit_code == 0) break;
  }
  EXPECT_TRUE(seen_old && seen_new);
}

// Any call may fail with any of these errors. The save reports it with the path, and the older
// checkpoint stays.
TEST(SaveCheckpoint, ReportsAFailureOfEverySystemCall) {
  SKIP_WITHOUT_TRACING();
  for (const int error : {ENOSPC, EIO, EACCES}) {
    int failures = 0;
    for (int k = 1;; ++k) {
      const TempDir dir, words;
      ASSERT_EQ(save_alone(dir.path(), 1, false), 0);
      const auto result = TracedChild::fail_at(
          k, error, counts, [&] { return save_alone(dir.path(), 2, false, words / "text"); });
      if (result.failed_call < 0) break;
      const std::string at = "call " + std::to_string(k) + " (number " +
                             std::to_string(result.failed_call) + ") with " + std::strerror(error);
      // After a failed call either the old or the new checkpoint is the newest one. If the save
      // reports success, it must be the new one.
      const int64_t step = newest(dir.path()).step;
      ASSERT_TRUE(holds(dir.path(), step, step)) << at;
      if (result.exit_code == 0) {
        ASSERT_EQ(step, 2) << at;
        continue;
      }
      ++failures;
      const std::string text = slurp(words / "text");
      ASSERT_NE(text.find(dir.path()), std::string::npos) << at << ": " << text;
      ASSERT_NE(text.find(std::strerror(error)), std::string::npos) << at << ": " << text;
      if (error == ENOSPC && text.find("it needs") != std::string::npos) {
        ASSERT_NE(text.find("are free in"), std::string::npos) << text;
      }
      ASSERT_EQ(result.exit_code,
                10 + (error == ENOSPC ? YOKE_RESOURCE_EXHAUSTED
                      : error == EIO  ? YOKE_DATA_LOSS
                                      : YOKE_FAILED_PRECONDITION))
          << at << ": " << text;
      ASSERT_EQ(save_alone(dir.path(), 3, true), 0) << at;
      ASSERT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << at;
    }
    EXPECT_GT(failures, 30) << std::strerror(error);
  }
}

// Simulates a file system without fallocate and RENAME_EXCHANGE.
TEST(SaveCheckpoint, WorksOrRefusesOnPoorerFileSystems) {
  SKIP_WITHOUT_TRACING();
  const auto only = [](long wanted) { return [wanted](long number) { return number == wanted; }; };
  const TempDir dir;
  ASSERT_EQ(
      TracedChild::fail_at(
          1, EOPNOTSUPP, only(SYS_fallocate), [&] { return save_alone(dir.path(), 1, false); })
          .exit_code,
      0);
  EXPECT_TRUE(holds(dir.path(), 1, 1));
  const auto replaced = TracedChild::fail_at(
      1, EINVAL, only(SYS_renameat2), [&] { return save_alone(dir.path(), 1, false); });
  EXPECT_EQ(replaced.exit_code, 10 + YOKE_FAILED_PRECONDITION);
  EXPECT_TRUE(holds(dir.path(), 1, 1));
}

// A run that passes by a damaged checkpoint saves its step again.
TEST(SaveCheckpoint, ReplacesADamagedOneOnPoorerFileSystems) {
  SKIP_WITHOUT_TRACING();
  const auto no_exchange = [](long number) { return number == SYS_renameat2; };
  const TempDir dir;
  for (const char* file : {"model.safetensors", "manifest.json"}) {
    ASSERT_EQ(save_alone(dir.path(), 1, false), 0);
    const std::string path = dir / (step_name(1) + "/" + file);
    std::string bytes = slurp(path);
    bytes[bytes.size() - 5] ^= 1;
    spill(path, bytes);
    const auto replaced = TracedChild::fail_at(
        1, EINVAL, no_exchange, [&] { return save_alone(dir.path(), 1, false); });
    EXPECT_EQ(replaced.failed_call, SYS_renameat2);
    EXPECT_EQ(replaced.exit_code, 0) << file;
    EXPECT_TRUE(holds(dir.path(), 1, 1)) << file;
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << "the lock and the step";
  }
}

// On NFS, a folder cannot be removed while another process reads its files.
TEST(SaveCheckpoint, LeavesATemporaryFolderThatCannotBeRemoved) {
  SKIP_WITHOUT_TRACING();
  const auto removals = [](long number) {
    return number == SYS_unlink || number == SYS_unlinkat || number == SYS_rmdir;
  };
  const TempDir dir;
  const std::string left = dir / ("." + step_name(1) + ".tmp-left");
  fs::create_directory(left);
  spill(left + "/.nfs0001", "read by another process");
  const auto saved =
      TracedChild::fail_at(1, EBUSY, removals, [&] { return save_alone(dir.path(), 2, false); });
  EXPECT_GE(saved.failed_call, 0);
  EXPECT_EQ(saved.exit_code, 0);
  EXPECT_TRUE(holds(dir.path(), 2, 2));
  ASSERT_EQ(save_alone(dir.path(), 3, false), 0);
  EXPECT_FALSE(fs::exists(left)) << "the next save tries again";
}

// Several ranks save, here as threads of one child, and the whole child is killed at a random
// moment.
TEST(SaveCheckpoint, MayBeKilledAtAnyMomentWithSeveralRanks) {
  constexpr int64_t kRounds = 40;
  std::mt19937_64 random(9);
  const TempDir dir;
  ASSERT_EQ(save_alone(dir.path(), 1, false), 0);
  // On a busy machine a child may be killed before it has saved anything. Therefore the rounds
  // continue, and become longer, until one child has saved.
  for (int64_t round = 1; round <= kRounds || newest(dir.path()).step == 1; ++round) {
    ASSERT_LE(round, 1000) << "no child ever saved";
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = round * 1000;; ++step) {
        FakeState state = state_at(step);
        std::mt19937_64 cuts(step);
        save(request_of(dir.path(), step), state, random_partition(state, 3, cuts));
        prune_checkpoints(dir.path(), {.newest = 2});
      }
    }
    const uint64_t longest = 15000 * (1 + static_cast<uint64_t>(round / kRounds));
    ::usleep(static_cast<useconds_t>(2000 + random() % longest));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int64_t step = newest(dir.path()).step;
    ASSERT_TRUE(holds(dir.path(), step, step));
  }
}

}  // namespace
}  // namespace yoke
