// Inline keys and a file exclude each other, as in Accelerate: with deepspeed_config_file it takes
// stage, offload, accumulation and clipping from that file alone.
//
// Rejected: training the run here, through the host's service for inner backends. The settings of
// DeepSpeed would then pass through two translations, and every key would need two messages.
#include "plugins/accelerate_compat/deepspeed.hpp"

#include "plugins/accelerate_compat/fsdp.hpp"
#include "sdk/compat/number.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::accelerate_compat {
namespace {

constexpr const char* kType = "distributed_type";
constexpr const char* kBackend = "deepspeed_stub";
constexpr const char* kFile = "deepspeed_config.deepspeed_config_file";
constexpr const char* kStage = "deepspeed_config.zero_stage";
constexpr const char* kClip = "deepspeed_config.gradient_clipping";
constexpr const char* kSteps = "deepspeed_config.gradient_accumulation_steps";
constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kProcesses = "num_processes";

class Translation {
 public:
  Translation(const AccelerateConfig& config, const YokePlan& plan, PlanReport& report)
      : config_(config), plan_(plan), report_(report) {}

  void run() {
    line(kType, concat("parallel_backend = \"", kBackend, "\""));
    if (config_.is_given(kFile)) {
      line(kFile, concat(kBackend, ".config_file = \"", config_.shown(kFile), "\""));
      refuse_beside_file();
    } else {
      translate_inline();
    }
    translate_ranks();
    translate_precision();
  }

 private:
  void line(const char* name, const std::string& text) {
    if (config_.is_given(name)) report_.equivalent(config_.label(name), config_.shown(name), text);
  }
  void refuse(const char* name, const std::string& allowed, const std::string& hint) {
    report_.refuse(config_.label(name), config_.shown(name), allowed, hint);
  }

  void refuse_beside_file() {
    std::vector<std::string> names{kStage, kClip, kSteps};
    for (const char* kind : kOffload) {
      for (const char* key : {"_device", "_nvme_path"})
        names.push_back(concat(kSection, kind, key));
    }
    for (const std::string& name : names) {
      if (config_.is_given(name))
        refuse(name.c_str(),
               "unset",
               "Accelerate reads it from deepspeed_config_file; write it there");
    }
  }

  // Keys that say "none", in either case, need no line.
  void translate_offload() {
    for (const char* kind : kOffload) {
      const std::string device = concat(kSection, kind, "_device");
      const std::string path = concat(kSection, kind, "_nvme_path");
      const std::string given = config_.string(device).value_or("NONE");
      const bool has_path = config_.string(path).value_or("NONE") != "NONE";
      if (given == "CPU" || given == "NVME") {
        line(device.c_str(),
             concat(kBackend, ".", kind, "_device = \"", given == "CPU" ? "cpu" : "nvme", "\""));
      } else if (given != "NONE") {
        refuse(device.c_str(), "none, cpu, nvme", "DeepSpeed has no other device");
      }
      if (has_path) {
        line(path.c_str(),
             concat(kBackend, ".", kind, "_nvme_path = \"", config_.shown(path), "\""));
      } else if (given == "NVME") {
        refuse(device.c_str(), "cpu", concat("nvme needs ", path, ", a folder on a local disk"));
      }
    }
  }

  void translate_inline() {
    translate_offload();
    const int64_t given = config_.integer(kStage).value_or(kDefaultStage);
    if (given < 0 || given > 3) return refuse(kStage, "0, 1, 2, 3", "DeepSpeed has no other stage");
    line(config_.is_given(kStage) ? kStage : kType, concat(kBackend, ".zero_stage = ", given));
    stage_ = given;
    if (const auto clip = config_.string(kClip); clip && *clip != "AUTO") {
      const auto value = compat::parsed<double>(*clip);
      if (!value || !(*value >= 0)) return refuse(kClip, "a number from 0 on", "0 does not clip");
      line(kClip, concat("train.clip = ", *value));
    }
    translate_accumulation();
  }

  void translate_accumulation() {
    const auto steps = config_.integer(kSteps);
    if (!steps) return;
    const int64_t ranks = plan_.world_size;
    if (*steps == 1) {
      line(kSteps, "train.max_micro_batch = 1000000");  // a micro-batch is never too large
    } else if (*steps < 1 || plan_.global_batch % (ranks * *steps) != 0) {
      refuse(kSteps,
             "a divisor of the part of the batch that one rank gets",
             concat("train.global_batch is ", plan_.global_batch, " on ", ranks, " rank(s)"));
    } else {
      line(kSteps, concat("train.micro_batch = ", plan_.global_batch / (ranks * *steps)));
    }
  }

  void translate_ranks() {
    const auto ranks = config_.integer(kProcesses);
    const char* own = stage_ == 0 ? "dp_degree" : "dp_shards";
    if (ranks) line(kProcesses, concat(own, " = ", *ranks));
    const int other = stage_ == 0 ? YOKE_DP_SHARD : YOKE_DP_REPLICATE;
    if (config_.is_given(kFile) || plan_.degree[other] <= 1) return;
    refuse(config_.is_given(kStage) ? kStage : kType,
           stage_ == 0 ? "a zero_stage of 1, 2 or 3" : "a zero_stage of 0",
           concat("the run has ",
                  yoke_degree_key(other),
                  " = ",
                  plan_.degree[other],
                  ", but at ZeRO stage ",
                  stage_,
                  " all ranks belong to ",
                  own));
  }

  // DeepSpeed scales the loss of fp16 itself. A file of DeepSpeed says how.
  void translate_precision() {
    const auto precision = config_.string(kPrecision);
    if (!precision) return;
    if (*precision == "BF16") return line(kPrecision, "precision.param = \"bf16\"");
    if (*precision == "FP16") {
      line(kPrecision, "precision.param = \"fp16\"");
      if (config_.is_given(kFile)) return;
      for (const char* text : kLossScale) line(kPrecision, text);
      if (stage_ == 0) return line(kPrecision, "loss_scale.rule = \"fp16_optimizer\"");
      for (const char* text : kLossScaleOfStages) line(kPrecision, text);
    } else if (*precision == "NO" || *precision == "FALSE") {
      if (!config_.is_given(kFile)) line(kPrecision, "precision.param = \"fp32\"");
    } else {
      refuse(kPrecision, "no, bf16, fp16", "fp8 with DeepSpeed is not supported");
    }
  }

  static constexpr int64_t kDefaultStage = 2;
  static constexpr const char* kSection = "deepspeed_config.";
  static constexpr const char* kOffload[] = {"offload_optimizer", "offload_param"};
  static constexpr const char* kLossScale[] = {"loss_scale.static = 0.0",
                                               "loss_scale.initial_power = 16",
                                               "loss_scale.window = 1000",
                                               "loss_scale.min = 1.0"};
  static constexpr const char* kLossScaleOfStages[] = {"loss_scale.rule = \"deepspeed\"",
                                                       "loss_scale.hysteresis = 2",
                                                       "loss_scale.consecutive_hysteresis = false"};

  const AccelerateConfig& config_;
  const YokePlan& plan_;
  PlanReport& report_;
  int64_t stage_ = kDefaultStage;
};

}  // namespace

bool wants_deepspeed(const AccelerateConfig& config) {
  return config.string(kType) == "DEEPSPEED";
}

void plan_deepspeed(const AccelerateConfig& config, const YokePlan& plan, PlanReport& report) {
  PlanMessages messages = config.messages();
  refuse_fsdp(config, messages);
  for (const Key& key : keys()) {
    if (key.path.starts_with("parallelism_config.") && config.integer(key.path).value_or(1) > 1)
      messages.push_back({config.label(key.path),
                          config.shown(key.path),
                          "1",
                          "DeepSpeed's ZeRO is data parallelism only"});
  }
  report.add(messages);
  Translation(config, plan, report).run();
  const std::string& file = config.file();
  report.refuse("parallel_backend",
                "\"accelerate_compat\"",
                concat("\"", kBackend, "\""),
                concat(config.label(kType),
                       " = DEEPSPEED; write a run file for it with: yoke config import ",
                       file,
                       " > run.toml"));
}

void note_unused_deepspeed(const AccelerateConfig& config, PlanMessages& messages) {
  for (const Key& key : keys()) {
    if (!key.path.starts_with("deepspeed_config.") || !config.is_given(key.path)) continue;
    messages.push_back({config.label(key.path),
                        config.shown(key.path),
                        "",
                        "no effect without distributed_type: DEEPSPEED",
                        true});
  }
}

}  // namespace yoke::accelerate_compat
