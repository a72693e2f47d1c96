#include "core/compare/run_facts.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;

constexpr char kRun[] =
    R"({"run": {"backend": "ox", "version": "1", "dtype": "fp32", "product": "param", "update": "own", "degrees": {"dp_degree": 2, "tp_degree": 1},)"
    R"( "data_ranks": 2, "accumulation": 1, "blocks": 3, "parameters": 10, "params": ["a"], "clip": 1.0,)"
    R"( "exp_avg_decay": 0.9, "other_decays": {"a": 0.95}, "costs": {"param": 1, "grad": 2, "optimizer": 3, "unsharded": 4,)"
    R"( "activation": -1, "axes": {"dp_replicate": 40}}}})"
    "\n"
    R"({"step": 0, "hashes": [18446744073709551615], "violation": null, "ranks": []})"
    "\n"
    R"({"step": 1, "loss": 6.5, "grad_norm": null, "weight": 8, "hashes": [5], "violation": null,)"
    R"( "traffic": [["dp", "all_reduce", "fp32", 2, 80, 0.5]], "ranks": [{"losses": [[1.0, 2.0, null]]}]})"
    "\n"
    R"({"step": 2, "loss": 6.25, "grad_norm": 3, "weight": 8, "hashes": [6], "traffic":)"
    R"( [["dp", "all_reduce", "fp32", 3, 120, 0.75]], "ranks": [],)"
    R"( "violation": {"kind": "replicas", "rank": 1, "tensor": "a", "text": "t"}})"
    "\n";

std::string thrown_by_external(const std::string& text, int64_t steps) {
  const testing::TempFolder folder;
  if (!text.empty()) folder.write("steps.jsonl", text);
  try {
    read_external((folder.path() / "steps.jsonl").string(), steps);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(RunFacts, AreReadFromARunFolder) {
  const testing::TempFolder folder;
  folder.write("facts.jsonl", kRun);
  folder.write(
      "metrics.jsonl",
      "{\"step\": 2, \"step_seconds\": 0.25, \"memory\": 77}\n{\"step\": 2, \"eval_loss\": 1}\n");
  const RunFacts run = read_run(folder.path().string());
  EXPECT_EQ(run.exp_avg_decay, 0.9);
  EXPECT_EQ(run.other_decays, (std::map<std::string, double>{{"a", 0.95}}));
  EXPECT_EQ(run.layout(), "dp_degree 2");
  EXPECT_EQ(run.world(), 2);
  EXPECT_EQ(run.start.hashes.at(0), UINT64_MAX);
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(std::isnan(run.steps[0].grad_norm));
  EXPECT_TRUE(std::isnan(run.steps[0].losses[0][0].scale));
  EXPECT_EQ(run.steps[1].violation->tensor, "a");
  EXPECT_EQ(run.steps[1].seconds, 0.25);
  EXPECT_EQ(run.steps[1].memory, 77);
  // The file contains totals since the start of the run.
  EXPECT_EQ(run.steps[1].traffic.at(0).bytes, 40);
  EXPECT_EQ(run.steps[1].traffic.at(0).calls, 1);
}

TEST(RunFacts, AddUpTheProductsOfAllSteps) {
  const testing::TempFolder folder;
  folder.write("facts.jsonl", kRun);
  folder.write(
      "metrics.jsonl",
      R"({"step": 1, "step_seconds": 1, "memory": 7, "tps": 1, "products":)"
      R"( {"percent": 50, "rounding_percent": 20, "rounded": 100, "largest": 1, "zeroed": 2}})"
      "\n"
      R"({"step": 2, "step_seconds": 3, "memory": 7, "tps": 1, "products":)"
      R"( {"percent": 10, "rounding_percent": 0, "rounded": 10, "largest": 3, "zeroed": 4}})"
      "\n");
  const Products products = read_run(folder.path().string()).products.value();
  EXPECT_DOUBLE_EQ(products.seconds, 0.8);
  EXPECT_DOUBLE_EQ(products.rounding_seconds, 0.2);
  EXPECT_EQ(products.all_seconds, 4);
  EXPECT_EQ(products.rounded, 110);
  EXPECT_EQ(products.largest, 4);
  EXPECT_EQ(products.zeroed, 6);
}

TEST(RunFacts, NameTheLineThatIsBroken) {
  const testing::TempFolder folder;
  folder.write("facts.jsonl", std::string(kRun) + "{\"step\": 3, \"lo\n");
  try {
    read_run(folder.path().string());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("facts.jsonl:5: not a JSON object: {\"step\": 3, \"lo"));
  }
}

TEST(ExternalFacts, NeedAStepAndALoss) {
  EXPECT_EQ(thrown_by_external(
                "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 1.5, \"memory\": 5}\n", 2),
            "");
}

TEST(ExternalFacts, SayWhatIsWrongAndAllowed) {
  const std::pair<const char*, const char*> kBad[] = {
      {"", "it wrote nothing to $YOKE_COMPARE_OUT"},
      {"hello\n", "steps.jsonl:1: not a JSON object: hello"},
      {"{\"step\": 1}\n", "expected step 1 with a loss, got {\"step\":1}"},
      {"{\"step\": 2, \"loss\": 1}\n", "expected step 1 with a loss"},
      {"{\"step\": \"one\", \"loss\": 1}\n", "steps.jsonl:1: "},
      {"{\"step\": 1, \"loss\": 2}\n", "has 1 of 2 steps"},
  };
  for (const auto& [text, message] : kBad)
    EXPECT_THAT(thrown_by_external(text, 2), HasSubstr(message));
}

}  // namespace
}  // namespace yoke::compare
