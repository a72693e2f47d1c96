// Requests a plan for a run and a Megatron command line, without LibTorch.
#pragma once

#include <string>
#include <vector>

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/plan.hpp"
#include "tests/support/plan_request.hpp"

namespace yoke::megatron_compat::testing {

using yoke::testing::PlanOfLlama;
using yoke::testing::PlanOnly;

// A run of two ranks that agrees with the arguments below.
struct PlanRequest : PlanOfLlama<PlanOnly<option_infos, complete_plan>> {
  // Arguments that describe the run. A test adds others, or changes these.
  std::string model =
      "--num-layers 2 --hidden-size 64 --ffn-hidden-size 256 --num-attention-heads 8 "
      "--group-query-attention --num-query-groups 4 --normalization RMSNorm --swiglu "
      "--disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
      "--position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 1024 "
      "--seq-length 64 ";
  std::string train =
      "--micro-batch-size 2 --global-batch-size 8 --train-iters 20 --lr 1e-3 "
      "--lr-decay-style constant --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1 ";
  std::string more;  // other arguments

  PlanRequest() { dims.decay_matrices = true; }
  explicit PlanRequest(std::string arguments) : PlanRequest() { more = std::move(arguments); }
  std::vector<std::string> ask() { return PlanOfLlama::ask("args_file", model + train + more); }
};

}  // namespace yoke::megatron_compat::testing
