// Completes a plan from a run and a YAML file of nanotron.
//
// The run file decides what all backends must agree on: model, data, global batch, learning rate,
// optimizer, clipping and precision. A file may repeat these values but not change them, and what
// it leaves out has nanotron's default. All refusals are collected and reported together.
#include "plugins/nanotron_compat/plan.hpp"

#include <string>
#include <utility>

#include "plugins/nanotron_compat/config/run_lines.hpp"
#include "plugins/nanotron_compat/stages.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

constexpr compat::ModelDegree kModelDegrees[] = {
    {YOKE_PP, "parallelism.pp"},
    {YOKE_CP, "parallelism.context_parallel_size"},
    {YOKE_TP, "parallelism.tp"},
};
constexpr const char* kDataRanks = "parallelism.dp";
constexpr const char* kStage = "optimizer.zero_stage";
constexpr const char* kFp32Sums = "optimizer.accumulate_grad_in_fp32";

// Data ranks are on the axis of the ZeRO stage.
void resolve_degrees(const Config& config,
                     const Settings& settings,
                     YokePlan& plan,
                     PlanMessages& messages) {
  const int32_t ranks = compat::data_ranks(plan);
  compat::resolve_data_degrees(
      settings.zero ? 1 : ranks,
      settings.zero ? "with nanotron_compat.zero_stage = 1 all of them belong to dp_shards"
                    : "with nanotron_compat.zero_stage = 0 all of them belong to dp_degree",
      plan,
      messages);
  const auto wanted = config.integer(kDataRanks);
  if (wanted && *wanted != ranks)
    messages.push_back({config.label(kDataRanks),
                        config.shown(kDataRanks),
                        concat(ranks),
                        concat("the run has ", ranks, " data rank(s); change one of them")});
}

// Notes settings of model parallelism without effect.
void note_idle(const Config& config, const YokePlan& plan, PlanMessages& messages) {
  for (const auto& [name, axis] :
       {std::pair("parallelism.tp_mode", YOKE_TP), std::pair("parallelism.pp_engine", YOKE_PP)}) {
    if (config.is_given(name) && plan.degree[axis] == 1)
      messages.push_back({config.label(name),
                          config.shown(name),
                          "",
                          concat("no effect with ", yoke_degree_key(axis), " = 1"),
                          true});
  }
}

void check_sums(const Config& config, const YokePlan& plan, PlanMessages& messages) {
  const auto wide = config.boolean(kFp32Sums);
  if (!wide || config.has_file()) return;
  compat::check_reduction(
      config, kFp32Sums, *wide ? YOKE_F32 : YOKE_BF16, *wide ? "false" : "true", plan, messages);
  if (!*wide || plan.param_dtype == YOKE_BF16) return;
  messages.push_back({config.label(kFp32Sums),
                      "true",
                      "false",
                      "it needs precision.param = \"bf16\", as in nanotron; gradients of other "
                      "dtypes are added in their own"});
}

void report_equivalents(const Config& config,
                        const Options& options,
                        const Settings& settings,
                        const std::vector<compat::RunLine>& lines,
                        PlanReport& report) {
  if (!config.has_file()) return;
  const auto line = [&](std::string_view key, std::string_view name, std::string_view value) {
    compat::report_line(config, {std::string(key), std::string(name), std::string(value)}, report);
  };
  const int64_t ranks = config.integer(kDataRanks).value_or(1);
  line(kStage, "parallel_backend", "\"nanotron_compat\"");
  for (const compat::ModelDegree& d : kModelDegrees) {
    const int64_t degree = config.integer(d.setting).value_or(1);
    if (degree > 1) line(d.setting, yoke_degree_key(d.axis), concat(degree));
  }
  line(kDataRanks, "dp_degree", concat(settings.zero ? 1 : ranks));
  line(kDataRanks, "dp_shards", concat(settings.zero ? ranks : 1));
  for (const Key& key : honoured_keys()) {
    if (!config.is_given(key.name) || options.given(option_name(key))) continue;
    const std::string value = *config.word(key.name);
    line(key.name,
         "nanotron_compat." + option_name(key),
         key.form == compat::Form::kWord ? compat::quoted(value) : value);
  }
  if (!options.given("loss"))
    line("tokens.batch_accumulation_per_replica", "nanotron_compat.loss", "\"mean_of_means\"");
  for (const compat::RunLine& l : lines) compat::report_line(config, l, report);
}

Settings settings_of(const Config& config, const Options& options) {
  return read_settings(config, options.string("loss"));
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  const Options options(args.options, args.num_options);
  const Config config(options);
  PlanMessages messages = config.messages();
  const Settings settings = settings_of(config, options);
  compat::resolve_model_degrees(config, kModelDegrees, plan, messages);
  note_idle(config, plan, messages);
  resolve_degrees(config, settings, plan, messages);
  compat::resolve_precision(config.boolean(kFp32Sums) == false, plan, messages);
  check_sums(config, plan, messages);
  compat::check_optimizer(plan, "nanotron has AdamW and SGD; use one of them", messages);
  const std::vector<compat::RunLine> lines = run_lines(config, messages);
  compat::check_lines(config, lines, *args.model, plan, messages);
  const mesh::Pipeline pipeline =
      pipeline_of(*args.model, settings, plan.degree[YOKE_PP], messages);
  compat::check_pipeline(*args.model, pipeline, plan, messages);
  report_equivalents(config, options, settings, lines, report);
  report.add(messages);
  compat::check_model(
      *args.model, settings.sequence_parallel, "use tp_mode: ALL_REDUCE", plan, report);
}

Settings settings_of(const YokeInitArgs& args) {
  const Options options(args.options, args.num_options);
  return settings_of(Config(options), options);
}

}  // namespace yoke::nanotron_compat
