// Completes a plan from a run and a Megatron command line.
//
// The run file decides what all backends must agree on: model, data, global batch, learning rate,
// optimizer, clipping and precision. A command line may repeat these values but not change them,
// and what it leaves out has Megatron's default. All refusals are collected and reported together.
#include "plugins/megatron_compat/plan.hpp"

#include <string>
#include <utility>

#include "plugins/megatron_compat/config/run_lines.hpp"
#include "plugins/megatron_compat/fsdp.hpp"
#include "plugins/megatron_compat/stages.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "yoke/plan.h"
#include "yoke/plan.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

constexpr compat::ModelDegree kModelDegrees[] = {
    {YOKE_PP, "--pipeline-model-parallel-size"},
    {YOKE_CP, "--context-parallel-size"},
    {YOKE_TP, "--tensor-model-parallel-size"},
};

// Refuses settings of model parallelism that do not fit its degrees, and notes those without
// effect.
void check_model_parallel(const Config& config,
                          const Settings& settings,
                          const YokePlan& plan,
                          PlanMessages& messages) {
  const auto refuse = [&](const char* name, std::string allowed, std::string hint) {
    messages.push_back(
        {config.label(name), config.shown(name), std::move(allowed), std::move(hint)});
  };
  const int pp = plan.degree[YOKE_PP];
  if (settings.sequence_parallel && plan.degree[YOKE_TP] == 1)
    refuse("--sequence-parallel", "unset", "it needs a --tensor-model-parallel-size above 1");
  if (pp > 1 && has_virtual_stages(settings) && settings.group_size > 0 &&
      settings.group_size != pp)
    refuse("--microbatch-group-size-per-virtual-pipeline-stage",
           concat(pp),
           "groups of another size than the pipeline-parallel size are not supported");
  const auto note = [&](const char* name, int axis) {
    if (config.is_given(name) && plan.degree[axis] == 1)
      messages.push_back({config.label(name),
                          config.shown(name),
                          "",
                          concat("no effect with ", yoke_degree_key(axis), " = 1"),
                          true});
  };
  note("--cp-comm-type", YOKE_CP);
  for (const char* name : {"--num-layers-per-virtual-pipeline-stage",
                           "--num-virtual-stages-per-pipeline-rank",
                           "--microbatch-group-size-per-virtual-pipeline-stage",
                           "--decoder-first-pipeline-num-layers",
                           "--decoder-last-pipeline-num-layers",
                           "--account-for-embedding-in-pipeline-split",
                           "--account-for-loss-in-pipeline-split",
                           "--pipeline-model-parallel-layout"})
    note(name, YOKE_PP);
}

// Instances of the distributed optimizer are replicas, and the ranks of one of them are shards.
// Without it, all data ranks are replicas.
void resolve_degrees(const Settings& settings, YokePlan& plan, PlanMessages& messages) {
  const int32_t ranks = compat::data_ranks(plan);
  const bool shards = settings.distributed_optimizer || settings.fsdp;
  if (shards && ranks % settings.instances != 0) {
    messages.push_back({"megatron_compat.num_distributed_optimizer_instances",
                        concat(settings.instances),
                        list_text(divisors(ranks)),
                        concat("it must divide the number of data ranks, ", ranks)});
    return;
  }
  compat::resolve_data_degrees(
      static_cast<int32_t>(shards ? settings.instances : ranks),
      shards ? "with the distributed optimizer or FSDP, dp_degree is "
               "megatron_compat.num_distributed_optimizer_instances, and all others are dp_shards"
             : "without megatron_compat.use_distributed_optimizer all of them are replicas",
      plan,
      messages);
}

// ---- The lines of a run file that replace the command line ----

class Equivalents {
 public:
  Equivalents(const Config& config, const Options& options, PlanReport& report)
      : config_(config), options_(options), report_(report) {}

  void report(std::string_view argument, std::string_view key, std::string_view value) {
    compat::report_line(
        config_, {std::string(argument), std::string(key), std::string(value)}, report_);
  }
  // Reports a degree that follows from the number of processes that the script starts.
  void report_launched(std::string_view key, int64_t degree) {
    report_.equivalent(config_.label("--nproc_per_node"),
                       concat(*config_.launched(), " process(es)"),
                       concat(key, " = ", degree));
  }
  void report_degrees(const Settings& settings) {
    const int64_t data = data_ranks(config_, config_.launched().value_or(0));
    const bool shards = settings.distributed_optimizer || settings.fsdp;
    if (!config_.launched() || (shards && data % settings.instances != 0)) return;
    const int64_t replicas = shards ? settings.instances : data;
    report_launched("dp_degree", replicas);
    report_launched("dp_shards", data / replicas);
  }
  void report_engine(const Settings& settings) {
    report("--use-distributed-optimizer", "parallel_backend", "\"megatron_compat\"");
    for (const compat::ModelDegree& d : kModelDegrees) {
      const int64_t degree = config_.integer(d.setting).value_or(1);
      if (degree > 1) report(d.setting, yoke_degree_key(d.axis), concat(degree));
    }
    report_degrees(settings);
    for (const Argument& argument : honoured_arguments()) {
      if (!config_.is_given(argument.name) || options_.given(option_name(argument))) continue;
      const std::string value = *config_.word(argument.name);
      report(argument.name,
             concat("megatron_compat.", option_name(argument)),
             argument.form == Form::kSwitch ? "true"
             : argument.form == Form::kInt  ? value
                                            : concat("\"", value, "\""));
    }
    if (!options_.given("loss"))
      report("--calculate-per-token-loss",
             "megatron_compat.loss",
             settings.loss == Loss::kPerToken || settings.fsdp ? "\"per_token\""
                                                               : "\"mean_of_means\"");
  }

 private:
  const Config& config_;
  const Options& options_;
  PlanReport& report_;
};

void report_equivalents(const Config& config,
                        const Options& options,
                        const Settings& settings,
                        const std::vector<compat::RunLine>& lines,
                        PlanReport& report) {
  if (!config.has_file()) return;
  Equivalents run_file(config, options, report);
  run_file.report_engine(settings);
  for (const compat::RunLine& line : lines) run_file.report(line.setting, line.key, line.value);
}

Settings settings_of(const Config& config, const Options& options, PlanMessages& messages) {
  return read_settings(config, options.string("loss"), messages);
}

// A config without a file has no lines that the run could contradict.
void check_reduction(const Config& config, const YokePlan& plan, PlanMessages& messages) {
  if (config.has_file()) return;
  for (const auto& [name, dtype] : {std::pair("--accumulate-allreduce-grads-in-fp32", YOKE_F32),
                                    std::pair("--grad-reduce-in-bf16", YOKE_BF16)}) {
    if (config.is_given(name))
      compat::check_reduction(config, name, dtype, "unset", plan, messages);
  }
  if (config.is_given("--grad-reduce-in-bf16") && plan.param_dtype != YOKE_BF16)
    messages.push_back({config.label("--grad-reduce-in-bf16"),
                        config.shown("--grad-reduce-in-bf16"),
                        "unset",
                        "it needs precision.param = \"bf16\""});
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  const Options options(args.options, args.num_options);
  const Config config(options);
  PlanMessages messages = config.messages();
  const Settings settings = settings_of(config, options, messages);
  compat::resolve_model_degrees(config, kModelDegrees, plan, messages);
  check_model_parallel(config, settings, plan, messages);
  resolve_degrees(settings, plan, messages);
  compat::resolve_precision(config.is_given("--grad-reduce-in-bf16"), plan, messages);
  check_reduction(config, plan, messages);
  compat::check_optimizer(
      plan,
      "Megatron decouples the decay of its Adam and corrects its moments; use adamw",
      messages);
  const auto lines = run_lines(config, compat::data_ranks(plan), messages);
  compat::check_lines(config, lines, *args.model, plan, messages);
  if (!settings.fsdp) {
    const mesh::Pipeline pipeline =
        pipeline_of(*args.model, config, settings, plan.degree[YOKE_PP], messages);
    compat::check_pipeline(*args.model, pipeline, plan, messages);
  }
  report_equivalents(config, options, settings, lines, report);
  report.add(messages);
  compat::check_model(
      *args.model, settings.sequence_parallel, "remove --sequence-parallel", plan, report);
  // What is refused already, ptd would refuse again.
  if (settings.fsdp && report.count() == 0) plan_with_fsdp(args, config, settings, plan, report);
}

Settings settings_of(const YokeInitArgs& args) {
  PlanMessages messages;  // already reported when the plan was made
  const Options options(args.options, args.num_options);
  return settings_of(Config(options), options, messages);
}

}  // namespace yoke::megatron_compat
