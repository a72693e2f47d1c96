// Completes a plan from a run and an Accelerate config.
//
// The run file decides what all backends must agree on: global batch, learning rate, optimizer,
// clipping and precision. A config may repeat these values but not change them. strategy.cpp
// chooses the engine and the degrees. Plans for DDP are checked here, and all other plans are
// passed to the inner backend.
#include "plugins/accelerate_compat/plan.hpp"

#include <string>

#include "plugins/accelerate_compat/config/options.hpp"
#include "plugins/accelerate_compat/deepspeed.hpp"
#include "plugins/accelerate_compat/fp16.hpp"
#include "plugins/accelerate_compat/fp8.hpp"
#include "sdk/compat/named_keys.hpp"
#include "sdk/compat/reduction_hint.hpp"
#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::accelerate_compat {
namespace {

constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

int64_t data_ranks(const YokePlan& plan) {
  return int64_t{plan.degree[YOKE_DP_REPLICATE]} * plan.degree[YOKE_DP_SHARD];
}

// Returns the compute dtype that the config asks for: fp32 if it does not ask, 0 if Accelerate has
// no such precision.
int32_t wanted_dtype(const AccelerateConfig& config) {
  const std::string wanted = config.string(kPrecision).value_or("NO");
  if (wanted == "BF16" || wanted == "FP8") return YOKE_BF16;
  if (wanted == "FP16") return YOKE_F16;
  return wanted == "NO" || wanted == "FALSE" ? YOKE_F32 : 0;
}

void check_precision(const AccelerateConfig& config, const YokePlan& plan, PlanMessages& messages) {
  const auto wanted = config.string(kPrecision);
  if (!wanted) return;
  const auto is_narrow = [](int32_t dtype) { return item_size(dtype) == 2; };
  const int32_t dtype = wanted_dtype(config);
  // "no" leaves the dtype to the model: fp32, or fp64.
  const bool either = dtype == YOKE_F32 && !is_narrow(plan.param_dtype);
  if (dtype == plan.param_dtype || either) return;
  const std::string run = dtype_name(plan.param_dtype);
  if (dtype == 0) {
    messages.push_back({config.label(kPrecision),
                        config.shown(kPrecision),
                        "no, bf16, fp16, fp8",
                        "Accelerate has no other precision"});
    return;
  }
  messages.push_back({config.label(kPrecision),
                      config.shown(kPrecision),
                      is_narrow(plan.param_dtype) ? run : "\"no\" (" + run + ")",
                      concat("the run has precision.param = \"",
                             run,
                             "\"; change one of them, for example on the command line: "
                             "precision.param=",
                             dtype_name(dtype))});
}

// gradient_accumulation_steps divides the global batch of the run, and so determines the
// micro-batch.
void resolve_batch(const AccelerateConfig& config, YokePlan& plan, PlanMessages& messages) {
  const auto steps = config.integer(kAccumulation);
  if (!steps) return;
  const int64_t batch = plan.global_batch, ranks = data_ranks(plan);
  const auto refuse = [&](const std::string& allowed, const std::string& hint) {
    messages.push_back({config.label(kAccumulation), config.shown(kAccumulation), allowed, hint});
  };
  if (*steps < 1 || *steps > batch) {
    refuse("1 to " + std::to_string(batch), "every micro-batch has at least one sequence");
  } else if (batch % (ranks * *steps) != 0) {
    refuse("a divisor of the part of the batch that one data rank gets",
           "train.global_batch " + std::to_string(batch) + " / (" + std::to_string(ranks) +
               " data ranks x " + std::to_string(*steps) + " steps) leaves a remainder of " +
               std::to_string(batch % (ranks * *steps)));
  } else if (const int64_t micro = batch / (ranks * *steps); plan.micro_batch == 0) {
    plan.micro_batch = static_cast<int32_t>(micro);
  } else if (plan.micro_batch != micro) {
    refuse(std::to_string(batch / ranks / plan.micro_batch),
           "the run has train.micro_batch = " + std::to_string(plan.micro_batch) +
               ", but this results in " + std::to_string(micro) + "; change one of them");
  }
}

// ---- DDP ----

void check_ddp(YokePlan& plan, PlanMessages& messages) {
  const int32_t param = plan.param_dtype;
  if (param != YOKE_F64 && param != YOKE_F32 && param != YOKE_BF16 && param != YOKE_F16) {
    messages.push_back({"precision.param",
                        dtype_name(param),
                        "fp64, fp32, bf16, fp16",
                        "no other dtype is supported"});
  }
  if (!yoke_is_adam(plan.optimizer->kind) && plan.optimizer->kind != YOKE_SGD) {
    messages.push_back({"train.optimizer",
                        optimizer_name(plan.optimizer->kind),
                        "adamw, adam, sgd",
                        "DDP has no other optimizer; ptd, which FSDP uses, does"});
  }
  if (plan.reduce_dtype == 0) plan.reduce_dtype = plan.param_dtype;
  if (plan.reduce_dtype != plan.param_dtype) {
    messages.push_back({"precision.reduce",
                        dtype_name(plan.reduce_dtype),
                        dtype_name(plan.param_dtype),
                        "DDP's reducer adds gradients in their own dtype; leave it unset"});
  }
}

void note_unused_options(const YokePlanArgs& args, PlanMessages& messages) {
  const Options options(args.options, args.num_options);
  for (const char* key : ddp_option_keys()) {
    if (!options.given(key)) continue;
    messages.push_back({"accelerate_compat." + std::string(key),
                        options.text(key),
                        "",
                        concat("it has no effect: this run does not use DDP but ", kInner),
                        true});
  }
}

// Accelerate reduces in the dtype of mixed precision, but a run in 16 bits reduces in fp32 here by
// default. A note reports the difference.
void note_reduction(const AccelerateConfig& config, const YokePlan& plan, PlanMessages& messages) {
  const int32_t dtype = wanted_dtype(config);
  if ((dtype != YOKE_BF16 && dtype != YOKE_F16) || plan.reduce_dtype == dtype) return;
  messages.push_back({config.label(kPrecision),
                      config.shown(kPrecision),
                      "",
                      compat::reduction_hint("Accelerate", dtype),
                      true});
}

// ---- The lines of a run file that replace the config ----

// For each key that the config gives, reports the equivalent line of a run file.
class Equivalents {
 public:
  Equivalents(const AccelerateConfig& config, PlanReport& report)
      : config_(config), report_(report) {}

  void report(std::string_view name, const std::string& line) {
    if (config_.is_given(name)) report_.equivalent(config_.label(name), config_.shown(name), line);
  }

 private:
  const AccelerateConfig& config_;
  PlanReport& report_;
};

// Returns a value as a run file writes it: words in quotes, numbers and booleans without.
std::string in_toml(const std::string& value) {
  const bool number = value.find_first_not_of("0123456789") == std::string::npos;
  return number || value == "true" || value == "false" ? value : "\"" + value + "\"";
}

void report_equivalents(const Chosen& chosen, const YokePlan& plan, PlanReport& report) {
  const auto& [config, strategy] = chosen;
  Equivalents run_file(config, report);
  const bool sharded = strategy.engine == Strategy::kSharded;
  run_file.report(
      "distributed_type",
      std::string("parallel_backend = \"") + (sharded ? kInner : "accelerate_compat") + "\"");
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (!strategy.from[axis].empty())
      run_file.report(
          strategy.from[axis],
          std::string(yoke_degree_key(axis)) + " = " + std::to_string(plan.degree[axis]));
  }
  const int32_t dtype = wanted_dtype(config);
  if (dtype != 0)
    run_file.report(kPrecision, concat("precision.param = \"", dtype_name(dtype), "\""));
  for (const char* line : fp16_lines(config)) run_file.report(kPrecision, line);
  for (const char* line : fp8_lines(config)) run_file.report(kPrecision, line);
  run_file.report(kAccumulation, "train.micro_batch = " + std::to_string(plan.micro_batch));
  for (const InnerOption& option : strategy.options)
    report.equivalent(
        option.label, option.shown, concat(kInner, ".", option.key, " = ", in_toml(option.value)));
}

// Makes the plan and returns the keys of the file.
std::vector<AccelerateConfig::Given> plan_config(const YokePlanArgs& args,
                                                 YokePlan& plan,
                                                 PlanReport& report) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  AccelerateConfig config(Options(args.options, args.num_options));
  if (wants_deepspeed(config)) {
    plan_deepspeed(config, plan, report);
    return config.given();
  }
  PlanMessages messages = config.messages();
  note_unused_deepspeed(config, messages);
  Strategy strategy = choose_strategy(config, plan, messages);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] == 0) plan.degree[axis] = strategy.degree[axis];
  }
  // The inner backend has pipelines, but no config of Accelerate describes one.
  if (plan.degree[YOKE_PP] > 1) {
    messages.push_back({"pp_degree",
                        concat(plan.degree[YOKE_PP]),
                        "1",
                        "Accelerate has no pipelines; use parallel_backend = \"ptd\""});
  }
  check_precision(config, plan, messages);
  check_fp8(config, messages);
  resolve_batch(config, plan, messages);
  const bool sharded = strategy.engine == Strategy::kSharded;
  if (sharded) {
    note_unused_options(args, messages);
    note_reduction(config, plan, messages);
  } else {
    check_ddp(plan, messages);
  }
  const Chosen chosen{std::move(config), std::move(strategy)};
  report_equivalents(chosen, plan, report);
  report.add(messages);
  if (!sharded) report.refuse_unused_params(*args.model, "no block would report its gradient");
  // Degrees whose product is not the world size are already reported; the inner backend would only
  // report them again.
  if (sharded && yoke_degree_product(plan.degree) == plan.world_size)
    compat::plan_with(
        delegation_of(chosen.strategy),
        [&](int axis) -> std::string {
          const std::string_view from = chosen.strategy.from[axis];
          return chosen.config.is_given(from) ? chosen.config.label(from) : "";
        },
        args,
        plan,
        report);
  return chosen.config.given();
}

// Returns why a key of the file needs no line of a run file.
std::string explanation(const AccelerateConfig::Given& given) {
  const std::string why(given.key->why);
  if (given.text.empty()) return "the same as unset";
  if (given.key->handling == Handling::kNoEffect) return "no effect here: " + why;
  if (given.key->handling == Handling::kRefused) return "the only value that is supported: " + why;
  return concat("needs no line of its own (", why, ")");
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  compat::NamedKeys named(args);
  PlanReport recorded(named.args());
  const std::vector<AccelerateConfig::Given> keys = plan_config(named.args(), plan, recorded);
  report.add(recorded.count());
  for (const AccelerateConfig::Given& given : keys)
    named.explain(given.label, given.text, explanation(given));
}

Chosen chosen_for(const YokeInitArgs& args) {
  AccelerateConfig config(Options(args.options, args.num_options));
  PlanMessages messages;  // already reported when the plan was made
  Strategy strategy = choose_strategy(config, *args.plan, messages);
  return {std::move(config), std::move(strategy)};
}

}  // namespace yoke::accelerate_compat
