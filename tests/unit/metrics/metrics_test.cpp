#include "core/metrics/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/metrics/log_lines.hpp"
#include "tests/unit/metrics/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics example() {
  StepMetrics m;
  m.step = 10;
  m.loss = 5.12341;
  m.grad_norm = 1.234;
  m.lr = 3e-4;
  m.tokens = 40960;
  m.epoch = 1.25;
  m.step_seconds = 0.25;
  m.tps = 12345.4;
  m.tflops = 0.123;
  m.memory_bytes = int64_t{1} << 30;
  m.memory_total_bytes = int64_t{200} << 30;
  m.comm_percent = 12.34;
  m.comm["dp_shard"] = {30, 123456789012, 0.03};
  return m;
}

TEST(LogLine, LooksLikeTorchtitans) {
  EXPECT_EQ(log_line(example(), false),
            "step: 10  loss:  5.1234  grad_norm:   1.23  lr: 3.0e-04  memory:  1.00GiB(0.5%)  "
            "tps: 12,345  tflops: 0.12  comm: 12.3%");
}

// A time in the zone of the test.
std::chrono::system_clock::time_point at_noon() {
  std::tm day{};
  day.tm_year = 126;
  day.tm_mon = 10;
  day.tm_mday = 27;
  day.tm_hour = 12;
  day.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&day)) +
         std::chrono::microseconds(1234);
}
constexpr LoggedRun kRun = {1000, 8, 512, 4};

TEST(LogLines, LookLikeMegatrons) {
  const LogLines lines("megatron", kRun, true);
  StepMetrics m = example();
  EXPECT_EQ(
      lines.of(m, at_noon()),
      " [2026-11-27 12:00:00.001234] iteration       10/    1000 | consumed samples:         "
      "  80 | elapsed time per iteration (ms): 250.0 | throughput per GPU (TFLOP/s/GPU): 0.1 "
      "| learning rate: 3.000000E-04 | global batch size:     8 | lm loss: 5.123410E+00 | "
      "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan "
      "iterations:   0 |");
  m.loss_scale = 65536;
  m.skipped = 5;
  m.newly_skipped = 2;
  m.tflops = 0;
  m.grad_norm = NAN;
  const std::string second = lines.of(m, at_noon());
  EXPECT_THAT(second, HasSubstr("| loss scale: 65536.0 | number of skipped iterations:   2 |"));
  EXPECT_THAT(second, Not(HasSubstr("throughput")));
  EXPECT_EQ(lines.of(EvalMetrics{10, 2, 512, 1}),
            " validation loss at iteration 10 | lm loss value: "
            "2.000000E+00 | lm loss PPL: 7.389056E+00 | ");
}

TEST(LogLines, LookLikeNanotrons) {
  const LogLines lines("nanotron", kRun, true);
  StepMetrics m = example();
  EXPECT_EQ(lines.of(m, at_noon()),
            "iteration: 10 / 1000 | consumed_tokens: 41K | elapsed_time_per_iteration_ms: 250 | "
            "tokens_per_sec: 12.3K | tokens_per_sec_per_gpu: 3.09K | global_batch_size: 8 | "
            "lm_loss: 5.12 | lr: 0.0003 | model_tflops_per_gpu: 0.123 | grad_norm: 1.23");
  m.tokens = 999'950'000;
  EXPECT_THAT(lines.of(m, at_noon()), HasSubstr("consumed_tokens: 1G |"));
  EXPECT_EQ(lines.of(EvalMetrics{10, 2, 512, 1}), log_line(EvalMetrics{10, 2, 512, 1}, true));
  EXPECT_EQ(LogLines("torchtitan", kRun, false).of(m, at_noon()), log_line(m, false));
}

TEST(LogLine, ShowsMfuOnlyWhereThePeakIsKnown) {
  StepMetrics m = example();
  EXPECT_THAT(log_line(m, false), Not(HasSubstr("mfu")));
  m.mfu_percent = 41.26;
  EXPECT_THAT(log_line(m, false), HasSubstr("  mfu: 41.3%  comm:"));
}

TEST(LogLine, ShowsTheLossScaleOfAnFp16RunAndSkippedSteps) {
  StepMetrics m = example();
  EXPECT_THAT(log_line(m, false), Not(HasSubstr("skipped")));
  EXPECT_FALSE(nlohmann::json::parse(json_line(m)).contains("skipped"));
  m.skipped = 2;
  EXPECT_THAT(log_line(m, false), HasSubstr("  skipped: 2  memory:"));
  m.loss_scale = 65536;
  EXPECT_THAT(log_line(m, false), HasSubstr("  loss_scale: 65536  skipped: 2  memory:"));
  EXPECT_EQ(nlohmann::json::parse(json_line(m))["loss_scale"], 65536);
  EXPECT_EQ(nlohmann::json::parse(json_line(m))["skipped"], 2);
}

TEST(LogLine, ShowsTheBubbleOfAPipelineOnly) {
  StepMetrics m = example();
  EXPECT_THAT(log_line(m, false), Not(HasSubstr("bubble")));
  EXPECT_FALSE(nlohmann::json::parse(json_line(m)).contains("bubble_percent"));
  m.bubble_percent = 20.06;
  EXPECT_THAT(log_line(m, false), HasSubstr("  comm: 12.3%  bubble: 20.1%"));
  EXPECT_EQ(nlohmann::json::parse(json_line(m))["bubble_percent"], 20.06);
}

TEST(LogLine, ShowsProductsAndWhatFp8DoesToTheirOperands) {
  StepMetrics m = example();
  EXPECT_FALSE(nlohmann::json::parse(json_line(m)).contains("products"));
  m.products = ProductUse{.percent = 41.26, .rounding_percent = 12.34};  // those of a run with tp
  EXPECT_TRUE(log_line(m, false).ends_with("  comm: 12.3%  products: 41.3%  fp8_rounding: 12.3%"));
  EXPECT_EQ(nlohmann::json::parse(json_line(m))["products"],
            nlohmann::json({{"percent", 41.26}, {"rounding_percent", 12.34}}));
  m.products = ProductUse{41.26, 12.34, 40'000, 3, 1234};
  EXPECT_TRUE(log_line(m, false).ends_with(
      "  products: 41.3%  fp8_rounding: 12.3%  fp8_max: 0.0075%  fp8_zero: 3.1%"));
  const auto json = nlohmann::json::parse(json_line(m))["products"];
  EXPECT_EQ(json["rounded"], 40'000);
  EXPECT_EQ(json["largest"], 3);
  EXPECT_EQ(json["zeroed"], 1234);
}

TEST(LogLine, IsOfOneWidthWhateverTheValues) {
  StepMetrics large = example();
  large.loss = 11.5;
  large.grad_norm = 123.4;
  EXPECT_EQ(log_line(example(), false).size(), log_line(large, false).size());
  large.grad_norm = std::nan("");
  EXPECT_EQ(log_line(example(), false).size(), log_line(large, false).size());
}

TEST(LogLine, GroupsDigitsByThree) {
  StepMetrics m = example();
  const std::vector<std::pair<double, std::string>> cases = {
      {0, "0"}, {999, "999"}, {1000, "1,000"}, {123456, "123,456"}, {1234567, "1,234,567"}};
  for (const auto& [tps, text] : cases) {
    m.tps = tps;
    EXPECT_THAT(log_line(m, false), HasSubstr("tps: " + text + "  "));
  }
}

TEST(LogLine, HasColoursOnlyWhenAsked) {
  EXPECT_THAT(log_line(example(), false), Not(HasSubstr("\033")));
  EXPECT_THAT(log_line(example(), true), HasSubstr("\033[32mloss:  5.1234\033[0m"));
}

TEST(JsonLine, HasAllThatAProgramNeeds) {
  const auto json = nlohmann::json::parse(json_line(example()));
  EXPECT_EQ(json["step"], 10);
  EXPECT_EQ(json["tokens"], 40960);
  EXPECT_EQ(json["epoch"], 1.25);
  EXPECT_EQ(json["step_seconds"], 0.25);
  EXPECT_EQ(json["tps"], 12345.4);
  EXPECT_EQ(json["memory"], int64_t{1} << 30);
  EXPECT_EQ(json["comm"]["dp_shard"]["calls"], 30);
  EXPECT_EQ(json["comm"]["dp_shard"]["bytes"], 123456789012);
  EXPECT_EQ(json["comm"]["dp_shard"]["seconds"], 0.03);
  EXPECT_FALSE(json.contains("mfu_percent"));
}

TEST(JsonLine, RestoresEveryDoubleBitForBit) {
  StepMetrics m = example();
  for (uint64_t i = 1; i < 2000; ++i) {
    m.loss =
        std::bit_cast<double>(0x3ff0000000000000 + i * 0x00012345678abcd1 % 0x0040000000000000);
    const auto json = nlohmann::json::parse(json_line(m));
    ASSERT_EQ(std::bit_cast<uint64_t>(json["loss"].get<double>()), std::bit_cast<uint64_t>(m.loss));
  }
}

TEST(JsonLine, WritesNullForWhatIsNotFinite) {
  StepMetrics m = example();
  m.loss = std::numeric_limits<double>::infinity();
  m.grad_norm = std::nan("");
  const auto json = nlohmann::json::parse(json_line(m));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(JsonLine, TellsEvaluationsFromSteps) {
  const auto json = nlohmann::json::parse(json_line(EvalMetrics{100, 2.5, 4096, 0.5}));
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["eval_loss"], 2.5);
  EXPECT_FALSE(json.contains("loss"));
}

TEST(MetricsFile, HandsOverEachLineAtOnce) {
  const TempDir dir;
  MetricsFile file(dir / "metrics.jsonl", 0);
  file.write(example());
  EXPECT_EQ(slurp(dir / "metrics.jsonl"), json_line(example()) + "\n");
  file.write(EvalMetrics{10, 2.5, 1, 1});
  EXPECT_EQ(slurp(dir / "metrics.jsonl"),
            json_line(example()) + "\n" + json_line(EvalMetrics{10, 2.5, 1, 1}) + "\n");
}

TEST(MetricsFile, DropsOnResumeTheStepsThatWillBeDoneAgain) {
  const TempDir dir;
  const std::string path = dir / "metrics.jsonl";
  spill(path,
        "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n{\"step\":3}\n{\"step\":2,\"lo");
  MetricsFile file(path, 2);
  file.write(EvalMetrics{3, 2, 1, 1});
  EXPECT_EQ(slurp(path),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n" +
                json_line(EvalMetrics{3, 2, 1, 1}) + "\n");
}

TEST(MetricsFile, NamesAPathThatCannotBeWritten) {
  try {
    MetricsFile file("/proc/no/metrics.jsonl", 0);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("/proc/no/metrics.jsonl"));
  }
}

}  // namespace
}  // namespace yoke
