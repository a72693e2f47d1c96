#include "plugins/deepspeed_stub/config/optimizer_type.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/plan_request.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> ask_with(int32_t kind, const std::string& optimizer) {
  PlanRequest run(2, R"({"optimizer": )" + optimizer + "}");
  run.plan.optimizer.kind = kind;
  return run.ask();
}

constexpr int32_t kKinds[] = {
    YOKE_ADAMW, YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED, YOKE_LION};

TEST(OptimizerType, SgdIsRefused) {
  PlanRequest run;
  run.plan.optimizer.kind = YOKE_SGD;
  EXPECT_THAT(run.ask(),
              ElementsAre(HasSubstr("train.optimizer = sgd; allowed: adamw, adam, lion")));
}

TEST(OptimizerType, AgreesWithTheRunThatItMeans) {
  struct Case {
    int32_t kind;
    const char* optimizer;
  };
  const Case cases[] = {
      {YOKE_ADAMW, R"({"type": "AdamW", "params": {"adam_w_mode": false}})"},
      {YOKE_ADAMW, R"({"type": "Adam"})"},
      {YOKE_ADAMW, R"({"type": "Adam", "params": {"bias_correction": true}})"},
      {YOKE_ADAM, R"({"type": "Adam", "params": {"adam_w_mode": false}})"},
      {YOKE_ADAMW_UNCORRECTED, R"({"type": "AdamW", "params": {"bias_correction": false}})"},
      {YOKE_ADAMW_UNCORRECTED, R"({"params": {"bias_correction": false}})"},
      {YOKE_ADAM_UNCORRECTED,
       R"({"type": "adam", "params": {"adam_w_mode": false, "bias_correction": false}})"},
      {YOKE_LION, R"({"type": "Lion", "params": {"betas": [0.9, 0.95]}})"}};
  for (const Case& c : cases) EXPECT_THAT(ask_with(c.kind, c.optimizer), IsEmpty()) << c.optimizer;
  for (const int32_t kind : kKinds) {
    EXPECT_THAT(ask_with(kind, "{}"), IsEmpty()) << kind;
  }
}

TEST(OptimizerType, IsRefusedWithTheKeyThatDiffers) {
  EXPECT_THAT(ask_with(YOKE_LION, R"({"type": "AdamW"})"),
              ElementsAre(AllOf(HasSubstr("optimizer.type = \"AdamW\"; allowed: \"Lion\""),
                                HasSubstr("the run has train.optimizer = \"lion\""))));
  EXPECT_THAT(
      ask_with(YOKE_ADAM, R"({"type": "AdamW"})"),
      ElementsAre(HasSubstr("optimizer.type = \"AdamW\"; allowed: \"Adam\" with adam_w_mode")));
  EXPECT_THAT(ask_with(YOKE_ADAM, R"({"type": "Adam"})"),
              ElementsAre(AllOf(HasSubstr("adam_w_mode = unset; allowed: false"),
                                HasSubstr("the run has train.optimizer = \"adam\""))));
  for (const char* type : {"", R"("type": "Adam", )"})
    EXPECT_THAT(ask_with(YOKE_ADAMW, concat("{", type, R"("params": {"adam_w_mode": false}})")),
                ElementsAre(HasSubstr("adam_w_mode = false; allowed: true")));
  EXPECT_THAT(ask_with(YOKE_ADAMW_UNCORRECTED, R"({"type": "Adam"})"),
              ElementsAre(AllOf(HasSubstr("bias_correction = unset; allowed: false"),
                                HasSubstr("the run has train.bias_correction = false"))));
  for (const char* type : {"", R"("type": "AdamW", )"})
    EXPECT_THAT(ask_with(YOKE_ADAMW, concat("{", type, R"("params": {"bias_correction": false}})")),
                ElementsAre(HasSubstr("bias_correction = false; allowed: true")));
}

TEST(OptimizerType, RefusesWhatDeepSpeedsLionWouldNotTake) {
  EXPECT_THAT(
      ask_with(YOKE_LION, R"({"type": "Lion", "params": {"eps": 1e-8, "bias_correction": true}})"),
      UnorderedElementsAre(AllOf(HasSubstr("eps = 1e-08; allowed: unset"),
                                 HasSubstr("DeepSpeed's Lion has no such parameter")),
                           HasSubstr("bias_correction = true; allowed: unset")));
}

// Parameters that the file leaves out have the defaults of DeepSpeed's classes.
TEST(OptimizerType, BecomesKeysOfTheRunFile) {
  const auto lines = [](const std::string& optimizer) {
    PlanRequest run(2, R"({"optimizer": )" + optimizer + "}");
    run.ask();
    return run.lines;
  };
  const std::string backend = "parallel_backend = \"deepspeed_stub\"";
  EXPECT_THAT(
      lines(R"({"type": "Adam", "params": {"adam_w_mode": false, "bias_correction": false}})"),
      UnorderedElementsAre("train.optimizer = \"adam\"",
                           "train.bias_correction = false",
                           "train.lr = 0.001",
                           "train.betas = [0.9, 0.999]",
                           "train.eps = 1e-8",
                           "train.weight_decay = 0.0",
                           backend));
  EXPECT_THAT(
      lines(R"({"type": "AdamW", "params": {"bias_correction": true, "lr": "auto", "eps": "auto",
                                            "betas": "auto", "weight_decay": "auto"}})"),
      UnorderedElementsAre("train.optimizer = \"adamw\"", "train.bias_correction = true", backend));
  // torch_adam chooses a class of PyTorch, and AdamW's decays.
  for (const char* keys : {R"("type": "AdamW", "params": {)",
                           R"("type": "AdamW", "params": {"adam_w_mode": false, )",
                           R"("type": "Adam", "params": {)"})
    EXPECT_THAT(lines(concat("{", keys, R"("torch_adam": true}})")),
                Contains("train.weight_decay = 0.01"))
        << keys;
  for (const char* keys : {R"("type": "Adam", "params": {"adam_w_mode": false, "torch_adam": true)",
                           R"("type": "AdamW", "params": {"torch_adam": false)",
                           R"("type": "Lion", "params": {"torch_adam": true)"})
    EXPECT_THAT(lines(concat("{", keys, "}}")), Contains("train.weight_decay = 0.0")) << keys;
  EXPECT_THAT(lines(R"({"type": "AdamW", "params": {"torch_adam": true, "weight_decay": 0.5}})"),
              Contains("train.weight_decay = 0.5"));
  EXPECT_THAT(lines(R"({"type": "Lion"})"),
              UnorderedElementsAre("train.optimizer = \"lion\"",
                                   "train.lr = 0.001",
                                   "train.betas = [0.9, 0.999]",
                                   "train.weight_decay = 0.0",
                                   backend));
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
