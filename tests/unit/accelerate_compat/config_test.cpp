// Reads Accelerate configs. The expected messages are those that users see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>

#include "plugins/accelerate_compat/config/accelerate_config.hpp"
#include "tests/unit/accelerate_compat/plan_request.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const std::string kDdp = "distributed_type: MULTI_CPU\n";
const std::string kFsdp = "distributed_type: FSDP\n";

// ---- YAML ----

TEST(Yaml, RefusesWhatIsNotAMapWithItsLine) {
  EXPECT_THAT(ask("- a\n- b\n"), ElementsAre(HasSubstr("the file holds no map")));
  EXPECT_THAT(ask("\n"), ElementsAre(HasSubstr("the file holds no map")));
  EXPECT_THAT(ask(kDdp + "num_machines: [1\n"),
              ElementsAre(AllOf(HasSubstr("accelerate_compat.config_file = config_file.file"),
                                HasSubstr("config_file.file, line "))));
  EXPECT_THAT(ask(kDdp + "fsdp_config:\n\tfsdp_version: 2\n"), ElementsAre(HasSubstr("line 3")));
  EXPECT_THAT(ask(kDdp + "---\nuse_cpu: true\n"), ElementsAre(HasSubstr("a second document")));
  EXPECT_THAT(ask("distributed_type: !!python/name:os.system MULTI_CPU\n"),
              ElementsAre(HasSubstr("line 1: the tag ")));
}

TEST(Yaml, LimitsSizeAndDepthAndRefusesAliases) {
  EXPECT_THAT(ask("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"),
              ElementsAre(HasSubstr("line 2: an alias")));
  EXPECT_THAT(ask("a: " + std::string(10000, '[')), ElementsAre(HasSubstr("8 levels of nesting")));
  EXPECT_THAT(ask(std::string(100000, '#')), ElementsAre(HasSubstr("100000 bytes")));
}

TEST(Yaml, ReadsTheBooleansOfPyYaml) {
  for (const char* yes : {"true", "True", "TRUE", "yes", "Yes", "on", "ON", "'true'", "\"yes\""})
    EXPECT_THAT(ask(kDdp + "debug: " + yes), ElementsAre(HasSubstr("note: "))) << yes;
  for (const char* no : {"false", "False", "no", "NO", "off", "'no'", "", "null", "~"})
    EXPECT_THAT(ask(kDdp + "debug: " + no), IsEmpty()) << no;
  for (const char* neither : {"tRUE", "maybe", "'maybe'", "2"})
    EXPECT_THAT(ask(kDdp + "debug: " + neither),
                ElementsAre(HasSubstr("config_file.file:2: debug = ")))
        << neither;
}

TEST(Yaml, IntegersAreDecimal) {
  for (const char* other : {"010", "0x2", "1_0", "2.0", "two", "[2]", "99999999999999999999"})
    EXPECT_THAT(ask(kDdp + "num_processes: " + other),
                ElementsAre(HasSubstr("allowed: an integer in decimal")))
        << other;
}

// ---- Keys ----

TEST(AccelerateConfig, AnUnknownKeyIsRefusedWithTheNearestOne) {
  EXPECT_THAT(
      ask(kFsdp +
          "fsdp_confg: {}\nfsdp_config:\n  fsdp_verson: 2\nparallelism_config:\n  tp_size: 2\n"),
      UnorderedElementsAre(AllOf(HasSubstr("config_file.file:2: fsdp_confg = {}"),
                                 HasSubstr("did you mean 'fsdp_config'?")),
                           AllOf(HasSubstr("config_file.file:4: fsdp_config.fsdp_verson = 2"),
                                 HasSubstr("did you mean 'fsdp_version'?")),
                           HasSubstr("config_file.file:6: parallelism_config.tp_size = 2")));
}

TEST(AccelerateConfig, PrefixesMayBeLeftOutWhereAccelerateAddsThem) {
  EXPECT_THAT(ask(kFsdp + "fsdp_config: {version: 3}\n"),
              ElementsAre(HasSubstr("fsdp_config.fsdp_version = 3; allowed: 1, 2")));
  EXPECT_THAT(ask(kDdp + "dynamo_config: {backend: INDUCTOR}\n"),
              ElementsAre(HasSubstr("note: config_file.file:2: dynamo_config.dynamo_backend")));
}

TEST(AccelerateConfig, AKeyGivenTwiceIsRefused) {
  EXPECT_THAT(ask(kFsdp + "fsdp_config: {fsdp_version: 2, version: 1}\n"),
              ElementsAre(HasSubstr("fsdp_config.fsdp_version = given twice")));
}

TEST(AccelerateConfig, ReportsEveryProblemAtOnce) {
  EXPECT_THAT(
      ask("distributed_type: MULTI_CPU\nmixed_precision: fp12\nnum_processes: 4\n"
          "compute_environment: AMAZON_SAGEMAKER\nfp8_config: {backend: AO}\n"
          "fsdp_config: {fsdp_offload_params: true, fsdp_version: 2}\n"
          "parallelism_config: {parallelism_config_sp_size: 2}\n"
          "deepspeed_config: {zero_stage: 2}\nmegatron_lm_config: {a: 1}\nnonsense: 1\n"),
      UnorderedElementsAre(
          HasSubstr(":2: mixed_precision = fp12; allowed: no, bf16, fp16, fp8; Accelerate has no "
                    "other precision"),
          HasSubstr(":3: num_processes = 4; allowed: 2; the run has 2 rank(s); start 4"),
          HasSubstr(":4: compute_environment = AMAZON_SAGEMAKER; allowed: LOCAL_MACHINE"),
          HasSubstr("note: config_file.file:5: fp8_config.backend = AO; no effect"),
          HasSubstr("fsdp_offload_params = true; allowed: false; offload is not supported"),
          HasSubstr("fsdp_version = 2; allowed: unset; fsdp_config has an effect only with"),
          HasSubstr("sp_size = 2; allowed: 1; DeepSpeed's Ulysses"),
          HasSubstr(":8: deepspeed_config.zero_stage = 2; no effect without distributed_type"),
          HasSubstr(":9: megatron_lm_config = {...}"),
          HasSubstr(":10: nonsense = 1; allowed: a key of Accelerate")));
}

// Returns a value of the key that is not its default, so it must be honoured, noted or refused.
std::string uncommon_value(const Key& key) {
  if (key.form == Form::kBool) return key.value == "true" ? "false" : "true";
  if (key.form == Form::kInt) return "7";
  return "{uncommon: 1}";
}

TEST(AccelerateConfig, NeverIgnoresAKeySilently) {
  for (const Key& key : keys()) {
    if (key.handling == Handling::kSection || key.path.empty()) continue;
    const size_t dot = key.path.find('.');
    const std::string value = uncommon_value(key);
    std::string yaml = key.path == "distributed_type" ? "" : kFsdp;
    yaml += dot == key.path.npos ? std::string(key.path) + ": " + value
                                 : std::string(key.path.substr(0, dot)) + ": {" +
                                       std::string(key.path.substr(dot + 1)) + ": " + value + "}";
    PlanRequest run(2, yaml);
    const auto texts = run.ask();
    const std::string name = ": " + std::string(key.path) + " = ";
    const bool reported = std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return text.find(name) != text.npos;
    });
    const bool translated =
        std::any_of(run.lines.begin(), run.lines.end(), [&](const std::string& line) {
          return line.find(name) != line.npos;
        });
    // These keys have an effect only with a different wrap policy, version or strategy.
    const bool conditional = key.path == "fsdp_config.fsdp_min_num_params" ||
                             key.path == "fsdp_config.fsdp_forward_prefetch" ||
                             key.path == "num_machines";
    EXPECT_TRUE(reported || translated || conditional) << yaml;
  }
}

// ---- Variables ----

TEST(Variables, SetWhatTheFileLeavesOpen) {
  PlanRequest run(2);
  run.plan.options["environment"] =
      "ACCELERATE_USE_FSDP=true\nFSDP_VERSION=2\nFSDP_RESHARD_AFTER_FORWARD=false\n"
      "FSDP_ACTIVATION_CHECKPOINTING=true\nACCELERATE_MIXED_PRECISION=no\nFSDP_AUTO_WRAP_POLICY="
      "None\n";
  EXPECT_THAT(run.ask(), IsEmpty());
  EXPECT_EQ(run.degree(YOKE_DP_SHARD), 2);
  EXPECT_EQ(run.inner_options["reshard_after_forward"], "0");
  EXPECT_EQ(run.inner_options["activation_checkpoint"], "full");
}

TEST(Variables, TheFileHasPrecedence) {
  PlanRequest run(2, kFsdp + "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\n");
  run.plan.options["environment"] = "FSDP_RESHARD_AFTER_FORWARD=false\nFSDP_VERSION=2\n";
  EXPECT_THAT(run.ask(),
              ElementsAre(AllOf(HasSubstr("note: FSDP_RESHARD_AFTER_FORWARD = false"),
                                HasSubstr("config_file.file:2: "),
                                HasSubstr("has precedence, as under accelerate launch"))));
  EXPECT_EQ(run.inner_options["reshard_after_forward"], "1");
}

TEST(Variables, SizesCountOnlyWithTheirSwitch) {
  PlanRequest run(4);
  run.plan.options["environment"] = "PARALLELISM_CONFIG_TP_SIZE=2\n";
  EXPECT_THAT(run.ask(),
              ElementsAre(HasSubstr("no effect without ACCELERATE_USE_PARALLELISM_CONFIG=true")));
  EXPECT_EQ(run.degree(YOKE_DP_REPLICATE), 4);
  PlanRequest on(4);
  on.plan.options["environment"] =
      "ACCELERATE_USE_FSDP=true\nFSDP_VERSION=2\nACCELERATE_USE_PARALLELISM_CONFIG=true\n"
      "PARALLELISM_CONFIG_DP_SHARD_SIZE=2\nPARALLELISM_CONFIG_TP_SIZE=2\n"
      "PARALLELISM_CONFIG_CP_BACKEND=torch\nPARALLELISM_CONFIG_SP_SIZE=1\n";
  EXPECT_THAT(on.ask(), IsEmpty());
  EXPECT_EQ(on.degree(YOKE_TP), 2);
  EXPECT_EQ(on.degree(YOKE_DP_SHARD), 2);
}

TEST(Variables, AreCheckedLikeKeys) {
  PlanRequest run(2);
  run.plan.options["environment"] =
      "ACCELERATE_USE_DEEPSPEED=true\nACCELERATE_DYNAMO_BACKEND=INDUCTOR\nFSDP_VERSION=two\n"
      "ACCELERATE_USE_FSPD=true\nACCELERATE_FP8_BACKEND=AO\nFSDP_USE_ORIG_PARAMS=false\n";
  EXPECT_THAT(
      run.ask(),
      UnorderedElementsAre(
          HasSubstr("ACCELERATE_USE_DEEPSPEED = true; allowed: false; use parallel_backend"),
          HasSubstr("note: ACCELERATE_DYNAMO_BACKEND = INDUCTOR"),
          HasSubstr("FSDP_VERSION = two; allowed: an integer in decimal"),
          AllOf(HasSubstr("note: ACCELERATE_USE_FSPD = true"),
                HasSubstr("did you mean 'ACCELERATE_USE_FSDP'?")),
          HasSubstr("note: ACCELERATE_FP8_BACKEND = AO"),
          HasSubstr("note: FSDP_USE_ORIG_PARAMS = false")));
}

// ---- The table of keys ----

TEST(Keys, TheReadmeHasEveryRow) {
  std::ifstream in(std::string(std::getenv("YOKE_SOURCE")) +
                   "/plugins/accelerate_compat/README.md");
  const std::string readme((std::istreambuf_iterator<char>(in)), {});
  const std::map<Handling, std::string> words = {{Handling::kHonoured, "honoured"},
                                                 {Handling::kRun, "the run's"},
                                                 {Handling::kNoEffect, "no effect"},
                                                 {Handling::kRefused, "refused"}};
  const auto quoted = [](std::string_view text) {
    return text.empty() ? std::string() : "`" + std::string(text) + "`";
  };
  for (const Key& key : keys()) {
    if (key.handling == Handling::kSection) continue;
    std::string word = words.at(key.handling);
    if (key.handling == Handling::kRefused && !key.value.empty())
      word += " unless " + quoted(key.value);
    const std::string row = "| " + quoted(key.path) + " | " + quoted(key.variable) + " | " + word +
                            " | " + std::string(key.why) + " |\n";
    EXPECT_NE(readme.find(row), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace yoke::accelerate_compat::testing
