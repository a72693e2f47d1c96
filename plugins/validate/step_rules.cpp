#include "plugins/validate/step_rules.hpp"

#include <bit>
#include <cmath>

#include "plugins/validate/tensors.hpp"
#include "yoke/optimizer.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

bool evaluates(const YokeStepArgs& args) {
  return (args.flags & YOKE_STEP_FORWARD_ONLY) != 0;
}

double loss_scale_of(const YokeStepArgs& args) {
  return YOKE_HAS(YokeStepArgs, &args, loss_scale) ? args.loss_scale : 0;
}

// Returns the bits of a number; those of NaN are always the same.
uint64_t bits(double value) {
  return std::isnan(value) ? ~uint64_t{0} : std::bit_cast<uint64_t>(value);
}

}  // namespace

// ---- Arguments ----

void StepRules::before(const YokeStepArgs& args) {
  const YokeBatch& batch = *args.batch;
  if (batch.num_micros < 1 || !(batch.token_weight > 0)) {
    monitor_.violated(Rule::kBatchIsWellFormed,
                      "step",
                      concat("the batch has ", batch.num_micros, " micro-batches and ") +
                          concat(batch.token_weight, " targets"));
  }
  for (uint64_t m = 0; m < batch.num_micros; ++m) check_micro_batch(batch.micros[m]);
  const int64_t expected = evaluates(args) ? last_step_ : last_step_ + 1;
  if (args.step != expected) {
    monitor_.violated(Rule::kStepNumbers,
                      "step",
                      concat(evaluates(args) ? "an evaluation" : "a step", " has the number ") +
                          concat(args.step, ", and the last update ", last_step_));
  }
  if (!std::isfinite(args.lr) || args.lr < 0)
    monitor_.violated(Rule::kStepNumbers, "step", concat("lr is ", args.lr));
  monitor_.require_none();
}

void StepRules::check_micro_batch(const YokeMicroBatch* micro) {
  std::string fault;
  if (micro == nullptr || micro->header.struct_id != YOKE_ID_MICRO_BATCH) {
    fault = "a micro-batch is NULL or has another struct_id";
  } else {
    for (uint64_t i = 0; i < micro->num_inputs && fault.empty(); ++i) {
      const YokeInput& input = micro->inputs[i];
      fault = tensor_fault("an input", &input.tensor, input.tensor.device);
      if (view(input.role).empty()) fault = "an input has no role";
      if (fault.empty() && (input.tensor.ndim < 1 || input.tensor.shape[0] != plan_.micro_batch))
        fault = "input '" + std::string(view(input.role)) + "' is " + shape_text(input.tensor) +
                concat(", and micro_batch is ", plan_.micro_batch);
    }
  }
  if (!fault.empty()) monitor_.violated(Rule::kBatchIsWellFormed, "step", fault);
}

// ---- The result of this rank ----

void StepRules::check_numbers(const Seen& seen) {
  const YokeStepResult& r = seen.result;
  const auto violated = [&](const std::string& what) {
    monitor_.violated(Rule::kResultIsPlausible, "", what);
  };
  if (r.loss_weight != seen.args->batch->token_weight)
    violated(concat("loss_weight is ", r.loss_weight, ", and token_weight ") +
             concat(seen.args->batch->token_weight));
  if (r.grad_norm < 0) violated(concat("grad_norm is ", r.grad_norm));
  // Numbers of fp16 overflow in a run that is in order.
  const bool overflows = std::isinf(r.grad_norm) || plan_.param_dtype == YOKE_F16;
  if (!std::isfinite(r.loss_sum) && !overflows)
    violated(concat("loss_sum is ", r.loss_sum, " and grad_norm ", r.grad_norm));
  if (evaluates(*seen.args) && !std::isnan(r.grad_norm))
    violated(concat("grad_norm is ", r.grad_norm, " in an evaluation"));
  if (!knows_1_1_) return;
  const bool skipped = !evaluates(*seen.args) && std::isinf(r.grad_norm);
  if (r.skipped != (skipped ? 1 : 0))
    violated(concat("skipped is ", r.skipped, " and grad_norm ", r.grad_norm));
  const double scale = evaluates(*seen.args) ? 0 : loss_scale_of(*seen.args);
  const bool own_scale = scale == 0 && !evaluates(*seen.args);
  if (r.loss_scale != scale && !(own_scale && r.loss_scale > 0))
    violated(concat("loss_scale is ", r.loss_scale, ", and that of the arguments ", scale));
}

void StepRules::check_result(const Seen& seen) {
  check_numbers(seen);
  const auto micros = static_cast<int64_t>(seen.args->batch->num_micros);
  if (knows_1_1_ && seen.cancel_checks < micros) {
    monitor_.violated(Rule::kAsksForCancel,
                      "",
                      concat("check_cancel was called ", seen.cancel_checks, " times for ") +
                          concat(micros, micros == 1 ? " micro-batch" : " micro-batches"));
  }
}

// ---- All ranks ----

void StepRules::after(const Seen& seen) {
  check_result(seen);
  monitor_.require_none();
  compare(seen);
  compare_operations(seen.issued);
  monitor_.require_none();
  const bool skipped = std::isinf(seen.result.grad_norm);
  if (!evaluates(*seen.args) && !skipped) last_step_ = seen.args->step;
}

void StepRules::compare(const Seen& seen) {
  const YokeStepArgs& a = *seen.args;
  const YokeStepResult& r = seen.result;
  const char* const names[] = {"step",
                               "flags",
                               "lr",
                               "loss_scale",
                               "token_weight",
                               "num_micros",
                               "loss_sum",
                               "loss_weight",
                               "grad_norm",
                               "loss_scale",
                               "skipped"};
  constexpr size_t kArguments = 6, kShown = 11;
  const double values[kShown] = {static_cast<double>(a.step),
                                 static_cast<double>(a.flags),
                                 a.lr,
                                 loss_scale_of(a),
                                 a.batch->token_weight,
                                 static_cast<double>(a.batch->num_micros),
                                 r.loss_sum,
                                 r.loss_weight,
                                 r.grad_norm,
                                 r.loss_scale,
                                 static_cast<double>(r.skipped)};
  std::vector<uint64_t> own;
  for (const double value : values) own.push_back(bits(value));
  own.push_back(static_cast<uint64_t>(seen.model.gradients));
  own.push_back(seen.model.nonfinite ? 1 : 0);
  const auto all = ranks_.gather(own);
  int64_t gradients = 0;
  bool nonfinite = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    gradients += static_cast<int64_t>(all[rank][kShown]);
    nonfinite = nonfinite || all[rank][kShown + 1] != 0;
    for (size_t i = 0; i < kShown; ++i) {
      if (all[rank][i] == all[0][i]) continue;
      const auto number = [&](size_t of) { return std::bit_cast<double>(all[of][i]); };
      monitor_.violated(i < kArguments ? Rule::kRanksGetTheSameArguments : Rule::kRanksAgree,
                        "",
                        string_printf("%s is %.17g on rank 0 and %.17g on rank %zu",
                                      names[i],
                                      number(0),
                                      number(rank),
                                      rank));
    }
  }
  if (std::isinf(r.grad_norm) && gradients > 0 && !nonfinite && plan_.param_dtype != YOKE_F16) {
    monitor_.violated(Rule::kGradientsAreNotKept,
                      "",
                      "grad_norm is not finite, although every gradient was finite when "
                      "on_grad_ready got it");
  }
}

bool StepRules::in_one_group(int32_t a, int32_t b, uint32_t axes) const {
  for (int axis = YOKE_NUM_AXES - 1; axis >= 0; --axis) {
    const int32_t degree = plan_.degree[axis];
    if ((axes & YOKE_AXIS_BIT(axis)) == 0 && a % degree != b % degree) return false;
    a /= degree;
    b /= degree;
  }
  return true;
}

void StepRules::compare_operations(const std::vector<WatchedCollectives::Issued>& issued) {
  if (ranks_.size() == 1) return;
  const auto counts = ranks_.gather(std::vector<uint64_t>{issued.size()});
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] == counts[0]) continue;
    monitor_.violated(Rule::kSameOrderOnAllRanks,
                      "",
                      concat("rank 0 has ", counts[0][0], " communicators and rank ", rank, " ") +
                          concat(counts[rank][0]));
    return;
  }
  std::vector<uint64_t> own;
  for (const auto& comm : issued)
    own.insert(own.end(), {static_cast<uint64_t>(comm.count), comm.hash});
  if (own.empty()) return;
  const auto all = ranks_.gather(own);
  for (size_t i = 0; i < issued.size(); ++i) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      size_t first = 0;  // the first rank of the same communicator
      const auto member = static_cast<int32_t>(rank);
      while (!in_one_group(static_cast<int32_t>(first), member, issued[i].axes)) ++first;
      const bool same =
          all[rank][2 * i] == all[first][2 * i] && all[rank][2 * i + 1] == all[first][2 * i + 1];
      if (same) continue;
      monitor_.violated(Rule::kSameOrderOnAllRanks,
                        "",
                        "on the communicator '" + issued[i].purpose + "' " +
                            concat("rank ", first, " has issued ", all[first][2 * i]) +
                            concat(" operations and rank ", rank, " ", all[rank][2 * i]) +
                            (all[rank][2 * i] == all[first][2 * i] ? ", which differ" : ""));
      return;
    }
  }
}

}  // namespace yoke::validate
