// checkpoint.resume as a user meets it, if something has changed since the checkpoint was saved,
// and if the run is stopped before it has made a step of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class Resume : public ::testing::Test {
 protected:
  SubprocessResult train(std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", "run.toml"});
    return here_.yoke(more);
  }
  // Replaces a part of a file.
  void edit(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_file(here_.folder() / file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    here_.folder().write(file, text.replace(at, from.size(), to));
  }

  static constexpr const char* kSaved = "runs/r/checkpoints/step-00000004";
  const std::string from_saved_ = std::string("checkpoint.resume=") + kSaved;
  Playground here_;
};

// With more data, the remaining samples come in another order, and some of them again.
TEST_F(Resume, NoticesThatTheDataHaveGrown) {
  ASSERT_TRUE(train({}).ending.ok());
  here_.folder().write("text.txt", read_file(here_.folder() / "text.txt") + "and the ox stood; ");
  const SubprocessResult same = train({"train.steps=6", "checkpoint.resume=auto"});
  EXPECT_EQ(same.ending.exit_code, 2) << same.err;
  EXPECT_THAT(
      same.err,
      AllOf(HasSubstr("files that runs/r uses have changed (contents of data.path ="),
            HasSubstr(" bytes, sample "),
            HasSubstr(" before)); restore them, or start a new run from the checkpoint with "),
            HasSubstr(from_saved_),
            Not(HasSubstr("configuration"))));
  const SubprocessResult both = train({"train.lr=1e-3", "train.clip=2", "checkpoint.resume=auto"});
  EXPECT_EQ(both.ending.exit_code, 2) << both.err;
  EXPECT_THAT(both.err,
              AllOf(HasSubstr("runs/r was made with another configuration (train.clip = 2.0"),
                    HasSubstr("contents of data.path ="),
                    HasSubstr(" before)); use that configuration")));
  const SubprocessResult other = train({"train.steps=6", "run.dir=runs/s", from_saved_});
  EXPECT_TRUE(other.ending.ok()) << other.err;
  EXPECT_THAT(other.err,
              HasSubstr("step-00000004 was saved with other settings: contents of data.path = "));
}

// Such constants change no shape of a parameter.
TEST_F(Resume, NoticesAnotherConstantOfTheModel) {
  ASSERT_TRUE(train({"run.dir=runs/first"}).ending.ok());
  const std::string first = here_.folder() / "runs/first/checkpoints/step-00000004/";
  fs::create_directory(here_.folder() / "hf");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(first + name, here_.folder() / (std::string("hf/") + name));
  edit("run.toml",
       "model.family = \"llama\"\nmodel.preset = \"tiny\"\nmodel.layers = 1",
       "model.from = \"hf\"");
  ASSERT_TRUE(train({}).ending.ok());

  edit("hf/config.json", "{", "{\"made_by\": \"me\",");
  const SubprocessResult harmless = train({"train.steps=5", "checkpoint.resume=auto"});
  EXPECT_TRUE(harmless.ending.ok()) << harmless.err;

  edit("hf/config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 500000.0");
  const SubprocessResult same = train({"train.steps=6", "checkpoint.resume=auto"});
  EXPECT_EQ(same.ending.exit_code, 2) << same.err;
  EXPECT_THAT(
      same.err,
      AllOf(HasSubstr("have changed (config.json: rope_theta = 500000.0 (10000.0 before));"),
            Not(HasSubstr("made_by"))));
  const SubprocessResult other = train({"train.steps=6", "run.dir=runs/s", from_saved_});
  EXPECT_TRUE(other.ending.ok()) << other.err;
  EXPECT_THAT(other.err, HasSubstr("config.json: rope_theta = 500000.0 (10000.0 before)"));
}

TEST_F(Resume, FromAPathListsWhatHasChanged) {
  ASSERT_TRUE(train({}).ending.ok());
  const SubprocessResult changed = train(
      {"train.steps=6", "train.lr=1e-3", "train.clip=2", "run.dir=runs/s", from_saved_ + "/"});
  EXPECT_TRUE(changed.ending.ok()) << changed.err;
  EXPECT_THAT(changed.err,
              AllOf(HasSubstr("was saved with other settings: "),
                    HasSubstr("train.lr = 0.001 (3e-4 before)"),
                    HasSubstr("train.clip = 2.0 (1.0 before)"),
                    HasSubstr("train.steps = 6 (4 before)")));
  const SubprocessResult equal =
      train({"run.dir=runs/t", "checkpoint.resume=runs/r/checkpoints/step-00000002"});
  EXPECT_TRUE(equal.ending.ok()) << equal.err;
  EXPECT_THAT(equal.err, Not(HasSubstr("other settings")));
}

// The signal comes while the checkpoint is loaded. The exit code says that the run was saved, so it
// must have a checkpoint in its own folder.
TEST_F(Resume, FromAPathIsSavedIfItIsStoppedAtOnce) {
  ASSERT_TRUE(train({}).ending.ok());
  const SubprocessResult r = run_subprocess(
      {"/bin/bash",
       "-c",
       "cd " + here_.folder().path().string() + "; LD_PRELOAD=" YOKE_SLOW_FILES +
           " YOKE_SLOW_CALL=pread YOKE_SLOW_SECONDS=5 " + Playground::program() +
           " train run.toml train.steps=2000 run.dir=runs/s " + from_saved_ +
           " > out 2> err & run=$!; until grep -q 'pread is slow' err || ! kill -0 $run; do "
           "sleep 0.05; done; kill -TERM $run; wait $run"});
  const std::string log = read_file(here_.folder() / "out") + read_file(here_.folder() / "err");
  EXPECT_EQ(r.ending.exit_code, 75) << log;
  EXPECT_THAT(log, HasSubstr("stopped after step 4; to continue, run the same command with "));
  EXPECT_TRUE(fs::exists(here_.folder() / "runs/s/checkpoints/step-00000004")) << log;
  const SubprocessResult more =
      train({"train.steps=6", "run.dir=runs/s", "checkpoint.resume=auto"});
  EXPECT_TRUE(more.ending.ok()) << more.err;
  EXPECT_THAT(more.out, HasSubstr("resumed from runs/s/checkpoints/step-00000004"));
}

}  // namespace
}  // namespace yoke::testing
