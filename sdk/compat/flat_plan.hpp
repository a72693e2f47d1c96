// What plans have in common of backends that are data parallel and read the config of another
// program: precision, optimizer, degrees of data parallelism, and those of model parallelism, which
// are refused.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sdk/compat/run_lines.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::compat {

// A degree of model parallelism, and the setting that requests it.
struct ModelDegree {
  int axis;
  const char* setting;
  const char* what;
};

// Sets unset degrees to 1, and refuses others. backend: the one that refuses; instead: one that has
// these degrees. A config that requests them is refused as well, unless the run has the same
// degree, which is refused by itself.
void refuse_model_degrees(const ForeignConfig& config,
                          std::span<const ModelDegree> degrees,
                          std::string_view backend,
                          std::string_view instead,
                          YokePlan& plan,
                          PlanMessages& messages);
// Returns whether a config requests one of the degrees.
bool is_model_parallel(const ForeignConfig& config, std::span<const ModelDegree> degrees);

// Makes all ranks data ranks: dp_degree is `replicas`, which divides the number of ranks, and
// dp_shards follows from it. Sets unset degrees, and refuses others. hint: why they are refused, as
// a clause.
void resolve_data_degrees(int32_t replicas,
                          std::string_view hint,
                          YokePlan& plan,
                          PlanMessages& messages);

// Sets unset dtypes, and refuses what the engine of flat buffers lacks. narrow_sums: whether a bf16
// run reduces in bf16 if it does not say.
void resolve_precision(bool narrow_sums, YokePlan& plan, PlanMessages& messages);

// Refuses optimizers other than AdamW and SGD. hint: why, and what to use.
void check_optimizer(const YokePlan& plan, std::string_view hint, PlanMessages& messages);

// Reports a line `key = value` of a run file that replaces a setting.
void report_line(const ForeignConfig& config, const RunLine& line, PlanReport& report);

}  // namespace yoke::compat
