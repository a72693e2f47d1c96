#include "plugins/accelerate_compat/plan.hpp"

#include <string>

#include "plugins/accelerate_compat/inner.hpp"
#include "plugins/accelerate_compat/options.hpp"
#include "yoke/tensor.hpp"

namespace yoke::accelerate_compat {
namespace {

using Findings = std::vector<Finding>;

constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

int64_t data_ranks(const YokePlan& plan) {
  return int64_t{plan.degree[YOKE_DP_REPLICATE]} * plan.degree[YOKE_DP_SHARD];
}

void check_precision(const AccelerateConfig& config, const YokePlan& plan, Findings& findings) {
  const auto wanted = config.string(kPrecision);
  if (!wanted) return;
  const bool is_bf16 = plan.param_dtype == YOKE_BF16;
  const bool known = *wanted == "NO" || *wanted == "FALSE" || *wanted == "BF16";
  if (known && (*wanted == "BF16") == is_bf16) return;
  const std::string run = dtype_name(plan.param_dtype);
  findings.push_back({config.label(kPrecision),
                      config.shown(kPrecision),
                      is_bf16 ? "bf16" : "no",
                      known ? "the run has precision.param = \"" + run +
                                  "\"; change one of them, on the command line precision.param=" +
                                  (is_bf16 ? "fp32" : "bf16")
                            : "it is not built; use bf16"});
}

// The run's global batch is what is split.
void settle_batch(const AccelerateConfig& config, YokePlan& plan, Findings& findings) {
  const auto steps = config.integer(kAccumulation);
  if (!steps) return;
  const int64_t batch = plan.global_batch, ranks = data_ranks(plan);
  const auto refuse = [&](const std::string& allowed, const std::string& hint) {
    findings.push_back({config.label(kAccumulation), config.shown(kAccumulation), allowed, hint});
  };
  if (*steps < 1 || *steps > batch) {
    refuse("1 to " + std::to_string(batch), "every micro-batch has at least one sequence");
  } else if (batch % (ranks * *steps) != 0) {
    refuse("a divisor of what a data rank gets of the batch",
           "train.global_batch " + std::to_string(batch) + " / (" + std::to_string(ranks) +
               " data ranks x " + std::to_string(*steps) + " steps) leaves a rest of " +
               std::to_string(batch % (ranks * *steps)));
  } else if (const int64_t micro = batch / (ranks * *steps); plan.micro_batch == 0) {
    plan.micro_batch = static_cast<int32_t>(micro);
  } else if (plan.micro_batch != micro) {
    refuse(std::to_string(batch / ranks / plan.micro_batch),
           "the run has train.micro_batch = " + std::to_string(plan.micro_batch) +
               ", and this makes " + std::to_string(micro) + "; change one of them");
  }
}

// ---- DDP

void check_ddp(const YokePlanArgs& args, YokePlan& plan, Findings& findings) {
  if (plan.param_dtype != YOKE_F64 && plan.param_dtype != YOKE_F32 &&
      plan.param_dtype != YOKE_BF16) {
    findings.push_back({"precision.param",
                        dtype_name(plan.param_dtype),
                        "fp64, fp32, bf16",
                        "other types are not built"});
  }
  if (plan.optimizer->kind != YOKE_ADAMW && plan.optimizer->kind != YOKE_SGD) {
    findings.push_back({"train.optimizer",
                        std::to_string(plan.optimizer->kind),
                        "adamw, sgd",
                        "other optimizers are not built"});
  }
  if (plan.reduce_dtype == 0) plan.reduce_dtype = plan.param_dtype;
  if (plan.reduce_dtype != plan.param_dtype) {
    findings.push_back({"precision.reduce",
                        dtype_name(plan.reduce_dtype),
                        dtype_name(plan.param_dtype),
                        "DDP's reducer adds gradients in the type that they have; leave it unset"});
  }
  const YokeModelSummary& model = *args.model;
  std::vector<bool> used(model.num_params, false);
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) used[block.params[i]] = true;
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (used[p]) continue;
    findings.push_back({"model",
                        "parameter '" + std::string(view(model.params[p]->name)) + "' in no block",
                        "every parameter in at least one block",
                        "its gradient would never come"});
  }
}

void note_idle_options(const YokePlanArgs& args, Findings& findings) {
  const Options options(args.options, args.num_options);
  for (const char* key : ddp_option_keys()) {
    if (!options.given(key)) continue;
    findings.push_back(
        {"accelerate_compat." + std::string(key),
         "set",
         "",
         std::string("it has no effect: this run is no DDP, ") + Inner::kName + " does it",
         true});
  }
}

// Accelerate reduces in the type of mixed precision.
void note_reduction(const AccelerateConfig& config, const YokePlan& plan, Findings& findings) {
  if (config.string(kPrecision).value_or("") != "BF16" || plan.reduce_dtype == YOKE_BF16) return;
  findings.push_back({config.label(kPrecision),
                      config.shown(kPrecision),
                      "",
                      "gradients are reduced in fp32; Accelerate reduces them in bf16, as "
                      "precision.reduce = \"bf16\" does here",
                      true});
}

// ---- What a run file would hold instead

class Equivalents {
 public:
  Equivalents(const AccelerateConfig& config, PlanReport& refusals)
      : config_(config), refusals_(refusals) {}

  void tell(std::string_view name, const std::string& line) {
    if (config_.is_given(name))
      refusals_.equivalent(config_.label(name), config_.shown(name), line);
  }

 private:
  const AccelerateConfig& config_;
  PlanReport& refusals_;
};

// As in a run file: words in quotes.
std::string in_toml(const std::string& value) {
  const bool number = value.find_first_not_of("0123456789") == std::string::npos;
  return number || value == "true" || value == "false" ? value : "\"" + value + "\"";
}

void tell_equivalents(const Chosen& chosen, const YokePlan& plan, PlanReport& refusals) {
  const auto& [config, strategy] = chosen;
  Equivalents run_file(config, refusals);
  const bool sharded = strategy.engine == Strategy::kSharded;
  run_file.tell(
      "distributed_type",
      std::string("parallel_backend = \"") + (sharded ? Inner::kName : "accelerate_compat") + "\"");
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (!strategy.from[axis].empty())
      run_file.tell(strategy.from[axis],
                    std::string(kDegreeKeys[axis]) + " = " + std::to_string(plan.degree[axis]));
  }
  const bool is_bf16 = config.string(kPrecision) == "BF16";
  run_file.tell(kPrecision,
                std::string("precision.param = ") + (is_bf16 ? "\"bf16\"" : "\"fp32\""));
  run_file.tell(kAccumulation, "train.micro_batch = " + std::to_string(plan.micro_batch));
  for (const InnerOption& option : strategy.options)
    run_file.tell(option.from,
                  std::string(Inner::kName) + "." + option.key + " = " + in_toml(option.value));
}

void report(const Findings& findings, PlanReport& refusals) {
  for (const Finding& f : findings) {
    if (f.note) {
      refusals.note(f.key, f.given, f.hint);
    } else {
      refusals.refuse(f.key, f.given, f.allowed, f.hint);
    }
  }
}

void ask_inner(const YokePlanArgs& args,
               const Chosen& chosen,
               YokePlan& plan,
               PlanReport& refusals) {
  Findings findings;
  try {
    Inner inner(args);
    inner.set(chosen.strategy.options, chosen.config, findings);
    inner.plan(args, chosen.strategy, chosen.config, plan, refusals);
  } catch (const Error& e) {
    findings.push_back({"accelerate_compat", Inner::kName, "a backend that can be used", e.what()});
  }
  report(findings, refusals);
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  AccelerateConfig config(Options(args.options, args.num_options));
  Findings findings = config.findings();
  Strategy strategy = choose_strategy(config, plan, findings);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] == 0) plan.degree[axis] = strategy.degree[axis];
  }
  check_precision(config, plan, findings);
  settle_batch(config, plan, findings);
  const bool sharded = strategy.engine == Strategy::kSharded;
  if (sharded) {
    note_idle_options(args, findings);
    note_reduction(config, plan, findings);
  } else {
    check_ddp(args, plan, findings);
  }
  const Chosen chosen{std::move(config), std::move(strategy)};
  tell_equivalents(chosen, plan, refusals);
  report(findings, refusals);
  int64_t ranks = 1;
  for (const int32_t degree : plan.degree) ranks *= degree;
  // It would only repeat the fault.
  if (sharded && ranks == plan.world_size) ask_inner(args, chosen, plan, refusals);
}

Chosen chosen_for(const YokeInitArgs& args) {
  AccelerateConfig config(Options(args.options, args.num_options));
  Findings findings;  // the plan has told them
  Strategy strategy = choose_strategy(config, *args.plan, findings);
  return {std::move(config), std::move(strategy)};
}

}  // namespace yoke::accelerate_compat
