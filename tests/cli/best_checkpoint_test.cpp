// checkpoint.best as a user meets it: the checkpoint with the lowest evaluation loss stays, in one
// run and after it was resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Returns the evaluation losses of the run by step.
std::map<int64_t, double> evaluations(const Playground& here) {
  std::map<int64_t, double> losses;
  for (const json& row : metrics_rows(here.folder() / "runs/r"))
    if (row.contains("eval_loss")) losses[row.at("step")] = row.at("eval_loss");
  return losses;
}

int64_t step_of_lowest(const std::map<int64_t, double>& losses) {
  return std::min_element(losses.begin(),
                          losses.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// Returns the checkpoints of the run by step, with their evaluation losses or null.
std::map<int64_t, json> saved(const Playground& here) {
  const SubprocessResult r = here.yoke({"checkpoint", "ls", "runs", "--json"});
  EXPECT_TRUE(r.ending.ok()) << r.err;
  std::map<int64_t, json> found;
  for (const json& row : json::parse(r.out)) found[row.at("step")] = row.at("eval_loss");
  return found;
}

TEST(BestCheckpoint, StaysInTheRunFolder) {
  const Playground here;
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"train", "run.toml", "eval.every=1", "checkpoint.every=3"};
    words.insert(words.end(), {"checkpoint.keep=1", "checkpoint.best=true", "--nproc", "2"});
    words.insert(words.end(), more.begin(), more.end());
    const SubprocessResult r = here.yoke(words);
    EXPECT_TRUE(r.ending.ok()) << r.err;
    return r.out + r.err;
  };
  // Such a learning rate soon makes the model worse.
  const std::string log = train({"train.steps=7", "train.lr=0.1"});
  const auto losses = evaluations(here);
  ASSERT_EQ(losses.size(), 7);
  const int64_t best = step_of_lowest(losses);
  ASSERT_LT(best, 7);
  EXPECT_THAT(log, HasSubstr("the best so far"));
  EXPECT_EQ(saved(here), (std::map<int64_t, json>{{best, losses.at(best)}, {7, losses.at(7)}}));

  // One step with a learning rate of almost 0 cannot become the best.
  train({"train.steps=8", "train.lr=1e-9", "checkpoint.resume=auto"});
  EXPECT_EQ(saved(here).count(best), 1);
  EXPECT_EQ(saved(here).size(), 2);
}

}  // namespace
}  // namespace yoke::testing
