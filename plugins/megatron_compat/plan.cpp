// Completes a plan from a run and a Megatron command line.
//
// The run file decides what all backends must agree on: model, data, global batch, learning rate,
// optimizer, clipping and precision. A command line may repeat these values but not change them,
// and what it leaves out has Megatron's default. All refusals are collected and reported together.
#include "plugins/megatron_compat/plan.hpp"

#include <string>

#include "plugins/megatron_compat/config/run_lines.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "yoke/plan.h"
#include "yoke/plan.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

constexpr compat::ModelDegree kModelDegrees[] = {
    {YOKE_PP, "--pipeline-model-parallel-size", "pipelines"},
    {YOKE_CP, "--context-parallel-size", "context parallelism"},
    {YOKE_TP, "--tensor-model-parallel-size", "tensor parallelism"},
};

void check_model_degrees(const Config& config, YokePlan& plan, PlanMessages& messages) {
  compat::refuse_model_degrees(config, kModelDegrees, "megatron_compat", "ptd", plan, messages);
  if (config.is_given("--sequence-parallel") && plan.degree[YOKE_TP] == 1)
    messages.push_back({config.label("--sequence-parallel"),
                        "on",
                        "unset",
                        "it needs a --tensor-model-parallel-size above 1"});
}

// All ranks are data ranks: instances of the distributed optimizer are replicas, and the ranks of
// one of them are shards. Without it, all of them are replicas.
void resolve_degrees(const Settings& settings, YokePlan& plan, PlanMessages& messages) {
  const int32_t ranks = plan.world_size;
  const bool distributed = settings.distributed_optimizer;
  if (distributed && ranks % settings.instances != 0) {
    messages.push_back({"megatron_compat.num_distributed_optimizer_instances",
                        concat(settings.instances),
                        list_text(divisors(ranks)),
                        concat("it must divide the number of data ranks, ", ranks)});
    return;
  }
  compat::resolve_data_degrees(
      static_cast<int32_t>(distributed ? settings.instances : ranks),
      distributed
          ? "with the distributed optimizer, dp_degree is "
            "megatron_compat.num_distributed_optimizer_instances, and all other ranks are dp_shards"
          : "without megatron_compat.use_distributed_optimizer all ranks are replicas",
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
    if (!config_.launched() || (settings.distributed_optimizer && data % settings.instances != 0))
      return;
    const int64_t replicas = settings.distributed_optimizer ? settings.instances : data;
    report_launched("dp_degree", replicas);
    report_launched("dp_shards", data / replicas);
  }
  void report_engine(const Settings& settings) {
    report("--use-distributed-optimizer", "parallel_backend", "\"megatron_compat\"");
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
             settings.loss == Loss::kPerToken ? "\"per_token\"" : "\"mean_of_means\"");
  }
  // A command line with model parallelism is run by a backend that has it.
  void report_model_parallel() {
    report("--tensor-model-parallel-size", "parallel_backend", "\"ptd\"");
    for (const compat::ModelDegree& d : kModelDegrees) {
      const int64_t degree = config_.integer(d.setting).value_or(1);
      if (degree > 1) report(d.setting, yoke_degree_key(d.axis), concat(degree));
    }
    if (config_.launched()) report_launched("dp_degree", data_ranks(config_, *config_.launched()));
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
  if (compat::is_model_parallel(config, kModelDegrees)) {
    run_file.report_model_parallel();
  } else {
    run_file.report_engine(settings);
  }
  for (const compat::RunLine& line : lines) run_file.report(line.setting, line.key, line.value);
}

Settings settings_of(const Config& config, const Options& options, PlanMessages& messages) {
  return read_settings(config, options.string("loss"), messages);
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  const Options options(args.options, args.num_options);
  const Config config(options);
  PlanMessages messages = config.messages();
  const Settings settings = settings_of(config, options, messages);
  check_model_degrees(config, plan, messages);
  resolve_degrees(settings, plan, messages);
  compat::resolve_precision(config.is_given("--grad-reduce-in-bf16"), plan, messages);
  compat::check_optimizer(
      plan,
      "Megatron decouples the decay of its Adam and corrects its moments; use adamw",
      messages);
  const auto lines = run_lines(config, plan.world_size, messages);
  compat::check_lines(config, lines, *args.model, plan, messages);
  report_equivalents(config, options, settings, lines, report);
  report.add(messages);
  report.refuse_unused_params(*args.model, "no block would report its gradient");
}

Settings settings_of(const YokeInitArgs& args) {
  PlanMessages messages;  // already reported when the plan was made
  const Options options(args.options, args.num_options);
  return settings_of(Config(options), options, messages);
}

}  // namespace yoke::megatron_compat
