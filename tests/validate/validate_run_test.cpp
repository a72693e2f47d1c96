// Runs the real program with `validate` on top of good and of faulty backends. In good runs it
// finds nothing and changes no bit. Each fault of faults.h violates its rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/playground.hpp"
#include "tests/validate/faults.h"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Playground;
using Args = std::vector<std::string>;

// Trains for a few steps. A setting in `more` replaces the default here.
SubprocessResult train(const Playground& place, int ranks, const Args& more) {
  Args args{"train", "run.toml", "--nproc", std::to_string(ranks)};
  args.insert(args.end(), more.begin(), more.end());
  for (const std::string& setting : {std::string("train.steps=3"),
                                     "train.global_batch=" + std::to_string(ranks == 3 ? 6 : 4),
                                     std::string("data.holdout=0.2"),
                                     std::string("eval.every=2"),
                                     std::string("eval.batches=2")}) {
    const std::string key = setting.substr(0, setting.find('=') + 1);
    if (std::none_of(more.begin(), more.end(), [&](const std::string& word) {
          return word.starts_with(key);
        }))
      args.push_back(setting);
  }
  return place.yoke(args);
}

std::string all_text(const SubprocessResult& r) {
  return r.out + r.err;
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// ---- Runs without a fault ----

struct GoodRun {
  const char* backend;
  int ranks;
  Args args;
};

void PrintTo(const GoodRun& run, std::ostream* out) {
  *out << run.backend << " on " << run.ranks << " ranks";
}

class ValidateOn : public ::testing::TestWithParam<GoodRun> {};

// Returns the values of metrics.jsonl that do not depend on time.
std::vector<nlohmann::json> numbers(const Playground& place, const std::string& run) {
  std::vector<nlohmann::json> rows;
  for (const nlohmann::json& row :
       json_lines((place.folder().path() / "runs" / run / "metrics.jsonl").string())) {
    nlohmann::json kept;
    for (const char* key : {"step", "loss", "grad_norm", "eval_loss"})
      if (row.contains(key)) kept[key] = row[key];
    rows.push_back(kept);
  }
  return rows;
}

TEST_P(ValidateOn, FindsNothingAndChangesNoBit) {
  const GoodRun& run = GetParam();
  const std::string path =
      std::string(std::getenv("YOKE_BIN")) + "/../lib/yoke/backends/" + run.backend + ".so";
  if (!std::ifstream(path)) GTEST_SKIP() << path << " is not built";
  const Playground place;
  Args plain = run.args, checked = run.args;
  plain.insert(plain.end(), {std::string("parallel_backend=") + run.backend, "run.dir=runs/plain"});
  checked.insert(checked.end(),
                 {"parallel_backend=validate",
                  std::string("validate.inner=") + run.backend,
                  "run.dir=runs/checked"});
  ASSERT_EQ(train(place, run.ranks, plain).ending.exit_code, 0);
  const SubprocessResult r = train(place, run.ranks, checked);
  EXPECT_EQ(r.ending.exit_code, 0) << all_text(r);
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("no violation"),
                    HasSubstr(std::string("backend    validate 0.1.0 on ") + run.backend)));
  const auto rows = numbers(place, "plain");
  EXPECT_GE(rows.size(), 3u);
  EXPECT_EQ(rows, numbers(place, "checked"));
  // The state is saved under validate, and loaded without it.
  Args more = run.args;
  more.insert(more.end(),
              {std::string("parallel_backend=") + run.backend,
               "run.dir=runs/more",
               "train.steps=4",
               "checkpoint.resume=runs/checked/checkpoints/step-00000003"});
  const SubprocessResult resumed = train(place, run.ranks, more);
  EXPECT_EQ(resumed.ending.exit_code, 0) << all_text(resumed);
}

std::string name_of(const ::testing::TestParamInfo<GoodRun>& info) {
  return std::string(info.param.backend) + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    ValidateOn,
    ::testing::Values(GoodRun{"serial", 1, {}},
                      GoodRun{"replicas", 3, {}},
                      GoodRun{"pipeline", 2, {}},
                      GoodRun{"diloco", 2, {"diloco.local_steps=2"}},
                      GoodRun{"deepspeed_stub", 2, {"deepspeed_stub.zero_stage=2"}},
                      GoodRun{"ptd", 2, {"dp_shards=2", "precision.param=bf16"}},
                      GoodRun{"ptd", 4, {"pp_degree=2", "tp_degree=2", "model.layers=2"}}),
    name_of);

// ---- Faults ----

struct Fault {
  const char* name;
  int rule;
  int ranks;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

Args on_faulty(const std::string& fault) {
  Args args{"parallel_backend=validate",
            std::string("validate.inner=") + YOKE_FAULTY,
            "faulty.fault=" + fault};
  if (fault == "changes_degree") args.emplace_back("dp_degree=2");
  if (fault == "drops_elements") args.emplace_back("model.vocab=3000");
  return args;
}

class ValidateFinds : public ::testing::TestWithParam<Fault> {};

TEST_P(ValidateFinds, TheFault) {
  const Fault& fault = GetParam();
  const Playground place;
  Args args = on_faulty(fault.name);
  if (std::string(fault.name) == "forgets_load") {
    ASSERT_EQ(train(place, fault.ranks, on_faulty("none")).ending.exit_code, 0);
    args.insert(args.end(),
                {"checkpoint.resume=runs/r/checkpoints/step-00000003", "train.steps=5"});
  }
  const SubprocessResult r = train(place, fault.ranks, args);
  EXPECT_NE(r.ending.exit_code, 0);
  EXPECT_EQ(r.ending.signal, 0);
  const std::string rule = "V" + std::to_string(fault.rule) + ", a fault of the backend (";
  EXPECT_THAT(all_text(r), AllOf(HasSubstr(rule), HasSubstr(" Fix: ")));
}

#define ROW_OF(name, rule, ranks) Fault{#name, rule, ranks},
constexpr Fault kFaults[] = {FAULTS(ROW_OF)};
INSTANTIATE_TEST_SUITE_P(Faults, ValidateFinds, ::testing::ValuesIn(kFaults), [](const auto& info) {
  return std::string(info.param.name);
});

TEST(Validate, AcceptsTheBackendWithoutAFault) {
  for (const int ranks : {1, 2, 3}) {
    const Playground place;
    const SubprocessResult r = train(place, ranks, on_faulty("none"));
    EXPECT_EQ(r.ending.exit_code, 0) << all_text(r);
    EXPECT_THAT(r.out, HasSubstr("no violation"));
  }
}

TEST(Validate, WarnsAndContinuesIfItIsAskedTo) {
  const Playground place;
  Args args = on_faulty("never_asks_cancel");
  args.emplace_back("validate.on_violation=warn");
  const SubprocessResult r = train(place, 1, args);
  EXPECT_EQ(r.ending.exit_code, 0) << all_text(r);
  EXPECT_THAT(all_text(r),
              AllOf(HasSubstr("V21, a fault of the backend"), HasSubstr("7 violations")));
}

TEST(Validate, NamesRankAndStep) {
  const Playground place;
  const SubprocessResult r = train(place, 2, on_faulty("never_asks_cancel"));
  EXPECT_THAT(all_text(r),
              ::testing::ContainsRegex("V21, .* \\(rank [01], step 1, step\\): "
                                       "check_cancel was called 0 times for 1 micro"));
}

TEST(Validate, RefusesToCheckItselfOrNothing) {
  const Playground place;
  for (const char* inner : {"validate", ""}) {
    const SubprocessResult r =
        train(place, 1, {"parallel_backend=validate", std::string("validate.inner=") + inner});
    EXPECT_EQ(r.ending.exit_code, 2) << inner;
    EXPECT_THAT(r.err, HasSubstr("validate.inner"));
  }
  const SubprocessResult r =
      train(place, 1, {"parallel_backend=validate", "validate.inner=serialise"});
  EXPECT_EQ(r.ending.exit_code, 3);
  EXPECT_THAT(r.err, HasSubstr("did you mean 'serial'?"));
}

// ---- Traces ----

TEST(TraceAbi, WritesEveryCallOfEachRank) {
  const Playground place;
  const SubprocessResult r =
      train(place, 2, {"parallel_backend=replicas", "--trace-abi", "abi.jsonl"});
  ASSERT_EQ(r.ending.exit_code, 0) << all_text(r);
  EXPECT_THAT(r.out, HasSubstr("backend    validate 0.1.0 on replicas 1.0.0, dp_degree 2"));
  for (const char* file : {"abi_000.jsonl", "abi_001.jsonl"}) {
    std::map<std::string, int> calls;
    const auto lines = json_lines((place.folder().path() / file).string());
    for (const nlohmann::json& line : lines) {
      ++calls[line.at("by").get<std::string>() + " " + line.at("call").get<std::string>()];
      EXPECT_GE(line.at("us").get<double>(), 0);
      EXPECT_EQ(line.at("code"), 0) << line;
      if (line.at("call") != "all_reduce" || line.at("count") == 2) continue;
      EXPECT_EQ(line.at("axes"), "dp_replicate");
      EXPECT_EQ(line.at("dtype"), "fp32");
      EXPECT_EQ(line.at("bytes"), line.at("count").get<int64_t>() * 4);
      EXPECT_GE(line.at("step"), 1);
    }
    // Three steps and two evaluations of two batches, and the SAVEs that validate adds for them.
    EXPECT_EQ(calls["host init"], 1);
    EXPECT_EQ(calls["host wrap_model"], 1);
    EXPECT_EQ(calls["host step"], 3 + 2 * 2);
    EXPECT_EQ(calls["backend all_reduce"], 2 * 3 + 2 * 2);
    EXPECT_EQ(calls["host destroy_model"], 1);
    EXPECT_EQ(calls["host destroy"], 1);
    for (const char* call : {"backend block_forward",
                             "backend block_backward",
                             "host on_grad_ready",
                             "backend bind_param",
                             "backend visit",
                             "backend check_cancel"})
      EXPECT_GT(calls[call], 0) << call;
  }
}

TEST(TraceAbi, ReportsAWrongFile) {
  const Playground place;
  for (const char* file : {"no/such/folder/abi.jsonl", "."}) {
    const SubprocessResult r = train(place, 1, {"--trace-abi", file});
    EXPECT_EQ(r.ending.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr(std::string("--trace-abi ") + file + " cannot be written: "));
  }
  const SubprocessResult r = train(
      place, 1, {"parallel_backend=validate", "validate.inner=serial", "validate.trace=no/x"});
  EXPECT_EQ(r.ending.exit_code, 1);
  EXPECT_THAT(all_text(r), HasSubstr("the trace no/x_000 cannot be written: "));
}

}  // namespace
}  // namespace yoke
