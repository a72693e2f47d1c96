// checkpoint.resume as a user meets it, if something has changed since the checkpoint was saved.
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
      AllOf(HasSubstr("runs/r was made with another configuration (contents of data.path ="),
            HasSubstr(" bytes, sample "),
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
  EXPECT_THAT(same.err, HasSubstr("config.json: rope_theta = 500000.0 (10000.0 before)"));
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

}  // namespace
}  // namespace yoke::testing
