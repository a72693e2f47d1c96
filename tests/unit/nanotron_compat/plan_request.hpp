// Requests a plan for a run and a YAML file of nanotron, without LibTorch.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plugins/nanotron_compat/config/config.hpp"
#include "plugins/nanotron_compat/plan.hpp"
#include "tests/support/plan_request.hpp"

namespace yoke::nanotron_compat::testing {

using yoke::testing::PlanOfLlama;
using yoke::testing::PlanOnly;

inline constexpr const char* kFile = R"(parallelism: {dp: 2, tp: 1, pp: 1}
model:
  dtype: float32
  model_config:
    hidden_size: 64
    num_hidden_layers: 2
    num_attention_heads: 8
    num_key_value_heads: 4
    intermediate_size: 256
    vocab_size: 1024
    rms_norm_eps: 1.0e-05
tokens:
  sequence_length: 64
  train_steps: 20
  micro_batch_size: 2
  batch_accumulation_per_replica: 2
optimizer:
  zero_stage: 0
  accumulate_grad_in_fp32: false
  weight_decay: 0.1
  clip_grad: 1.0
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08}
  learning_rate_scheduler:
    learning_rate: 0.001
    lr_warmup_style: constant
)";

// A run of two ranks that agrees with the file.
struct PlanRequest : PlanOfLlama<PlanOnly<option_infos, complete_plan>> {
  std::string file = kFile;

  PlanRequest() = default;
  // Appends lines to the file.
  explicit PlanRequest(const std::string& more) : file(kFile + more) {}
  // Replaces a part of the file.
  void replace(const std::string& from, const std::string& to) {
    const size_t at = file.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    file.replace(at, from.size(), to);
  }
  // Adds a pattern of parameters that do not decay, in quotes.
  void exclude_from_decay(const std::string& pattern) {
    replace("weight_decay: 0.1",
            "weight_decay: 0.1\n  weight_decay_exclude_named_params: [" + pattern + "]");
  }
  std::vector<std::string> ask() { return PlanOfLlama::ask("config", file); }
};

// A replacement in the file, and a part of the message that follows.
struct Case {
  const char* from;
  const char* to;
  const char* message;
};

}  // namespace yoke::nanotron_compat::testing
