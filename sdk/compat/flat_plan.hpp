// What plans have in common of backends that train on flat buffers and read the config of another
// program: precision, optimizer and degrees.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/run_lines.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::compat {

// A degree of model parallelism, and the setting that requests it.
struct ModelDegree {
  int axis;
  const char* setting;
};

// Sets unset degrees of model parallelism to those of a config, and refuses those that contradict
// it, or whose product does not divide the number of ranks.
void resolve_model_degrees(const ForeignConfig& config,
                           std::span<const ModelDegree> degrees,
                           YokePlan& plan,
                           PlanMessages& messages);

// Returns the number of ranks that have the same part of the model: all, divided by the degrees of
// pipelines and tensor parallelism, which must be set.
int32_t copies_of_part(const YokePlan& plan);
// Returns the number of ranks with different data: the same, divided by cp_degree.
int32_t data_ranks(const YokePlan& plan);
// Returns the degrees of model parallelism above 1 for a line of a log, such as "tp 2, pp 2, "; ""
// if there are none.
std::string model_degrees_text(const YokePlan& plan);

// Makes dp_degree `replicas`, which divides the number of data ranks, and dp_shards what is left.
// Sets unset degrees, and refuses others. hint: why they are refused, as a clause.
void resolve_data_degrees(int32_t replicas,
                          std::string_view hint,
                          YokePlan& plan,
                          PlanMessages& messages);

// Refuses numbers of micro-batches that a pipeline cannot run, and a parameter that blocks on more
// than two of its ranks use. Sets an unset plan.micro_batch to 1 if there is a pipeline. pipeline:
// one without stages has been refused.
void check_pipeline(const YokeModelSummary& model,
                    const mesh::Pipeline& pipeline,
                    YokePlan& plan,
                    PlanMessages& messages);

// Refuses a model that tp and cp cannot cut, or that has parameters without a block.
// without_sequence_parallel: how to run without it, as a clause.
void check_model(const YokeModelSummary& model,
                 bool sequence_parallel,
                 std::string_view without_sequence_parallel,
                 const YokePlan& plan,
                 PlanReport& report);

// Sets unset dtypes, and refuses what the engine of flat buffers lacks. narrow_sums: whether a bf16
// run reduces in bf16 if it does not say.
void resolve_precision(bool narrow_sums, YokePlan& plan, PlanMessages& messages);

// Refuses a setting that demands bf16 gradients in the dtype `wanted` if precision.reduce says
// another. Only for settings of the run file; check_lines does so for those of a config.
void check_reduction(const ForeignConfig& config,
                     std::string_view setting,
                     int32_t wanted,
                     std::string_view allowed,
                     const YokePlan& plan,
                     PlanMessages& messages);

// Refuses optimizers other than AdamW and SGD. hint: why, and what to use.
void check_optimizer(const YokePlan& plan, std::string_view hint, PlanMessages& messages);

// Reports a line `key = value` of a run file that replaces a setting.
void report_line(const ForeignConfig& config, const RunLine& line, PlanReport& report);

}  // namespace yoke::compat
