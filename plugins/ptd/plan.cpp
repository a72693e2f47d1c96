// Everything that can be wrong with a plan is found here, before a rank exists, and all of it in
// one call: each check reports its refusal and the next one runs. A refusal names the key, what was
// given, what is allowed and what to do. Later code may therefore assume that degrees divide what
// they cut.
//
// An option that has no effect is a note, not a refusal: run files are shared between layouts.
#include "plugins/ptd/plan.hpp"

#include <algorithm>
#include <string>

#include "plugins/ptd/exact_sums.hpp"
#include "plugins/ptd/forecast.hpp"
#include "plugins/ptd/fp8_gather.hpp"
#include "plugins/ptd/options.hpp"
#include "plugins/ptd/pipeline_plan.hpp"
#include "plugins/ptd/torchtitan/run_lines.hpp"
#include "sdk/compat/flat_plan.hpp"
#include "sdk/compat/named_keys.hpp"
#include "sdk/mesh/schedule/degree_checks.hpp"
#include "yoke/optimizer.h"
#include "yoke/optimizer_name.hpp"
#include "yoke/plan.hpp"
#include "yoke/tensor.hpp"

namespace yoke::ptd {
namespace {

constexpr double kLargeBubble = 0.2;  // share of idle time above which a note is printed

// Returns "dp_degree 2 x dp_shards 3 = 6, but the run has 4 rank(s)".
std::string arithmetic(const YokePlan& plan) {
  std::string text;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    const int32_t degree = plan.degree[axis];
    if (degree == 1 && axis != YOKE_DP_REPLICATE && axis != YOKE_DP_SHARD) continue;
    text += concat(text.empty() ? "" : " x ", yoke_degree_key(axis), " ", degree);
  }
  return concat(text,
                " = ",
                yoke_degree_product(plan.degree),
                ", but the run has ",
                plan.world_size,
                " rank(s)");
}

// Sets an unset dp_shards to the number of ranks divided by the other degrees, and every other
// unset degree to 1. Refuses degrees whose product is not the number of ranks.
void fill_degrees(YokePlan& plan, PlanReport& report) {
  for (const int axis : {YOKE_PP, YOKE_DP_REPLICATE, YOKE_CP, YOKE_TP}) {
    if (plan.degree[axis] == 0) plan.degree[axis] = 1;
  }
  const int64_t product = yoke_degree_product(plan.degree);  // an unset dp_shards counts as 1
  int32_t& shards = plan.degree[YOKE_DP_SHARD];
  if (shards == 0) {
    // The value is at least 1, because the checks below also run after a refusal.
    shards = static_cast<int32_t>(std::max<int64_t>(1, plan.world_size / product));
    if (product <= plan.world_size && product * shards == plan.world_size) return;
    // The largest degree is the most likely mistake.
    const int largest =
        static_cast<int>(std::max_element(plan.degree, plan.degree + YOKE_NUM_AXES) - plan.degree);
    report.refuse(yoke_degree_key(largest),
                  concat(plan.degree[largest]),
                  concat("degrees whose product divides the ", plan.world_size, " ranks"),
                  "what is left of the world goes into dp_shards");
    return;
  }
  if (product == plan.world_size) return;
  report.refuse("dp_shards",
                concat(shards),
                "degrees whose product is the number of ranks",
                concat(arithmetic(plan), "; start ", product, " ranks, or leave dp_shards unset"));
}

bool is_known(int32_t dtype) {
  return dtype == YOKE_BF16 || dtype == YOKE_F16 || dtype == YOKE_F32 || dtype == YOKE_F64;
}

void check_precision(YokePlan& plan, PlanReport& report) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  if (plan.reduce_dtype == 0) plan.reduce_dtype = yoke_default_reduce_dtype(plan.param_dtype);
  if (!is_known(plan.param_dtype)) {
    report.refuse("precision.param",
                  dtype_name(plan.param_dtype),
                  "bf16, fp16, fp32, fp64",
                  "other compute types are not built yet");
    return;
  }
  // A larger item size means a higher precision. Of bf16 and fp16, each loses what the other keeps.
  const int64_t reduce = item_size(plan.reduce_dtype), param = item_size(plan.param_dtype);
  if (is_known(plan.reduce_dtype) && (reduce > param || plan.reduce_dtype == plan.param_dtype))
    return;
  report.refuse(
      "precision.reduce",
      dtype_name(plan.reduce_dtype),
      concat(dtype_name(plan.param_dtype), param == 2 ? ", fp32" : "", param < 8 ? ", fp64" : ""),
      "leave it unset; gradients must not be less precise than the computation");
}

// Attention over a cut sequence with a mask waits for the device, which a recorded step cannot do.
void check_recording(const YokePlan& plan, const PtdOptions& options, PlanReport& report) {
  if (options.cuda_graph && plan.degree[YOKE_TP] * plan.degree[YOKE_CP] > 1)
    report.refuse("ptd.cuda_graph",
                  "true",
                  "false",
                  "a step with tensor or context parallelism cannot be recorded yet");
}

// Without sequence parallelism activations are all-reduced, which no piece of a product can begin.
void check_pieces(const YokePlan& plan, const PtdOptions& options, PlanReport& report) {
  const MeshOptions& mesh = options.mesh;
  if (plan.degree[YOKE_TP] > 1 && mesh.tp_pieces > 1 && !mesh.sequence_parallel)
    report.refuse("ptd.tp_pieces",
                  concat(mesh.tp_pieces),
                  "1 with ptd.sequence_parallel = false",
                  "only the gathers and reduce-scatters of sequence parallelism are cut into "
                  "pieces; set ptd.sequence_parallel = true, or leave ptd.tp_pieces unset");
}

void check_optimizer(const YokePlan& plan, PlanReport& report) {
  const int32_t kind = plan.optimizer->kind;
  if (yoke_is_muon(kind) && plan.degree[YOKE_TP] > 1) {
    report.refuse("train.optimizer",
                  optimizer_name(kind),
                  concat("adamw, adam, lion, sgd with tp_degree = ", plan.degree[YOKE_TP]),
                  "muon needs whole matrices, which tp cuts; use dp_shards instead of tp_degree");
    return;
  }
  if (yoke_is_adam(kind) || yoke_is_lion(kind) || yoke_is_muon(kind) || kind == YOKE_SGD) return;
  report.refuse("train.optimizer",
                optimizer_name(kind),
                "adamw, adam, lion, muon, sgd",
                "other optimizers are not built yet");
}

// Units are made of the parameters of blocks, so a parameter in no block would never be gathered.
void check_model(const YokeModelSummary& model, PlanReport& report) {
  if (model.num_blocks == 0)
    report.refuse("model", "no block", "at least one block", "give the model at least one block");
  report.refuse_unused_params(model, "ptd gathers parameters by block");
}

// Notes options that were set but have no effect in this layout; the user probably expects one.
void note_idle_options(const YokePlanArgs& args,
                       const YokePlan& plan,
                       const PtdOptions& ptd,
                       PlanReport& report) {
  const Options options(args.options, args.num_options);
  const auto note = [&](std::initializer_list<const char*> keys, const char* why) {
    for (const char* key : keys) {
      if (options.given(key)) report.note(concat("ptd.", key), options.text(key), why);
    }
  };
  const int32_t cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  if (plan.degree[YOKE_DP_SHARD] * (ptd.shard_over_cp ? cp : 1) == 1) {
    const char* why = "it has no effect with dp_shards = 1: nothing is sharded";
    note({"reshard_after_forward", "accumulate"}, why);
    if (plan.degree[YOKE_PP] > 1) note({"pp_whole"}, why);
    if (plan.degree[YOKE_DP_REPLICATE] * cp == 1) note({"unit_bytes"}, why);
  }
  const bool sharded = plan.degree[YOKE_DP_SHARD] * (ptd.shard_over_cp ? cp : 1) > 1;
  if (plan.degree[YOKE_PP] > 1 && sharded && ptd.pp_whole > 0) {
    if (ptd.reshard_after_forward && ptd.accumulate == Accumulate::kSharded)
      note({"pp_whole"},
           "it has no effect with reshard_after_forward = true and accumulate = \"sharded\"");
    else if (ptd.pp_schedule_file.empty() && ptd.pp_whole >= chunks_of(ptd))
      note({"pp_whole"}, "it has no effect: no rank has more stages");
  }
  if (tp == 1)
    note({"sequence_parallel", "loss_parallel", "tp_pieces"},
         "it has no effect with tp_degree = 1");
  if (cp == 1)
    note({"shard_over_cp", "cp_attention", "cp_order"}, "it has no effect with cp_degree = 1");
  if (plan.degree[YOKE_PP] == 1)
    note({"pp_schedule", "pp_chunks", "pp_cut", "pp_whole", "pp_schedule_file"},
         "it has no effect with pp_degree = 1");
  if (plan.degree[YOKE_PP] == 1 && ptd.recompute == Recompute::kStages)
    note({"activation_checkpoint"},
         "\"stage\" has no effect with pp_degree = 1: each backward directly follows its forward, "
         "so there is nothing to recompute");
  if (tp == 1 && cp == 1)
    note({"debug_ops"}, "no tensor is distributed with tp_degree = 1 and cp_degree = 1");
}

// Idle time that comes from an uneven cut has a note of its own.
void note_bubble(const Forecast& forecast, const YokePlan& plan, PlanReport& report) {
  const double bubble = forecast.bubble();
  if (bubble - forecast.imbalance() <= kLargeBubble) return;
  const int64_t micros = micros_of(plan);
  report.note("train.micro_batch",
              concat(plan.micro_batch),
              concat("ranks are idle for about ",
                     static_cast<int>(bubble * 100 + 0.5),
                     " % of a step with ",
                     micros,
                     micros == 1 ? " micro-batch" : " micro-batches",
                     " on ",
                     plan.degree[YOKE_PP],
                     " pp ranks; `yoke plan --schedule` shows where. A larger train.global_batch",
                     plan.micro_batch > 1 ? ", or a smaller train.micro_batch," : "",
                     " gives more micro-batches"));
}

// Forecasts a step of a pipeline, or of any layout if the host asks for it. Refuses a schedule
// whose ranks would wait for each other in a circle.
void make_forecast(const YokePlanArgs& args,
                   const PtdOptions& options,
                   const YokePlan& plan,
                   PlanReport& report) {
  const bool pipeline = plan.degree[YOKE_PP] > 1;
  const bool known = plan.micro_batch == 0 ? sequences_of(plan) > 0 : micros_of(plan) > 0;
  if ((!pipeline && !report.wants_forecasts()) || !known) return;
  try {
    const Forecast forecast = forecast_step(*args.model, plan, options);
    if (pipeline) note_bubble(forecast, plan, report);
    if (report.wants_forecasts()) report_forecast(forecast, plan, report);
  } catch (const Error& e) {
    const bool file = !options.pp_schedule_file.empty();
    report.refuse(file ? "ptd.pp_schedule_file" : "ptd.pp_schedule",
                  file ? options.pp_schedule_file : info_of(options.pp_schedule).name,
                  "a schedule that can be carried out",
                  e.what());
  }
}

// Reports what a job file of torchtitan means, and refuses what the run contradicts.
void compare_with_job_file(const YokePlanArgs& args,
                           const torchtitan::JobFile& file,
                           YokePlan& plan,
                           PlanReport& report) {
  compat::NamedKeys named(args);
  PlanReport recorded(named.args());
  PlanMessages messages = file.messages();
  const std::vector<compat::RunLine> lines = torchtitan::run_lines(file, plan, messages);
  compat::check_lines(file, lines, *args.model, plan, messages);
  for (const compat::RunLine& line : lines) compat::report_line(file, line, recorded);
  recorded.add(messages);
  report.add(recorded.count());
  for (const torchtitan::Key& key : torchtitan::keys()) {
    if (file.is_given(key.name))
      named.explain(file.label(key.name), file.shown(key.name), std::string(key.why));
  }
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) {
  const Options given(args.options, args.num_options);
  const torchtitan::JobFile job_file(given);
  // The degrees are filled in first, because everything below reads them.
  torchtitan::fill_degrees(job_file, plan);
  fill_degrees(plan, report);
  const PtdOptions options = torchtitan::options_of(given, plan);
  check_tensor_parallel(*args.model, plan, report);
  check_sequence(*args.model,
                 plan,
                 {options.mesh.order == SequenceOrder::kHeadTail,
                  options.mesh.sequence_parallel,
                  "with ptd.cp_order = \"plain\" only the degree itself",
                  "set ptd.sequence_parallel = false"},
                 report);
  check_precision(plan, report);
  compare_with_job_file(args, job_file, plan, report);
  check_optimizer(plan, report);
  check_model(*args.model, report);
  check_exact_sums(*args.model, plan, options, report);
  check_recording(plan, options, report);
  check_pieces(plan, options, report);
  check_fp8_gather(*args.model, plan, options, report);
  complete_pipeline(*args.model, options, plan, report);
  note_idle_options(args, plan, options, report);
  if (report.count() == 0) make_forecast(args, options, plan, report);
}

ModelSpec model_spec(const YokeModelSummary& model, int tp) {
  ModelSpec spec;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    const bool cut = tp > 1 && param.tp_cut > 0;
    // A parameter that tp does not cut is the same on all ranks of tp. Its gradients can be partial
    // sums, which the schedule then reduces over tp.
    spec.params.push_back({numel(param.shape, param.ndim) / (cut ? tp : 1),
                           param.trainable != 0,
                           param.decay != 0,
                           tp > 1 && !cut});
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    spec.blocks.emplace_back(block.params, block.params + block.num_params);
  }
  return spec;
}

}  // namespace yoke::ptd
