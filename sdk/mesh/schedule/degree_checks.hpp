// Whether a model can be cut by the degrees of a plan. Pure; no LibTorch.
#pragma once

#include <string>

#include "yoke/plan_report.hpp"

namespace yoke::mesh {

// How the sequence is cut.
struct SequenceCuts {
  bool head_tail = true;           // each rank of cp has two parts of the sequence, else one
  bool sequence_parallel = false;  // tp cuts what cp leaves of the sequence
  // What else a refusal suggests, as clauses: how to give each rank of cp one part ("" = it cannot
  // be done), and how to run without sequence parallelism.
  std::string one_part_hint, whole_sequence_hint;
};

// Tensor parallelism needs a hint for every parameter, and a degree that divides everything it
// cuts. The sequence must divide evenly. Degrees must be set. Adds refusals to `report`.
void check_tensor_parallel(const YokeModelSummary& model, const YokePlan& plan, PlanReport& report);
void check_sequence(const YokeModelSummary& model,
                    const YokePlan& plan,
                    const SequenceCuts& cuts,
                    PlanReport& report);

}  // namespace yoke::mesh
