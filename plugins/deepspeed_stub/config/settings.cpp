#include "plugins/deepspeed_stub/config/settings.hpp"

namespace yoke::deepspeed_stub {
namespace {

// The values that an integer may have. kMultipleOf2 is DeepSpeed's rule for all-gather buckets.
enum class Range { kStage, kPositive, kMultipleOf2, kNotNegative };

// Sets of ZeRO stages, with one bit per stage.
constexpr unsigned kStages12 = 1u << 1 | 1u << 2, kStage3 = 1u << 3, kAllStages = 0xf;

struct Integer {
  const char* path;
  int64_t Settings::*field;
  Range range;
  unsigned stages;  // set of the stages at which the key has an effect
};
constexpr Integer kIntegers[] = {
    {"zero_optimization.stage", &Settings::stage, Range::kStage, kAllStages},
    {"zero_optimization.reduce_bucket_size",
     &Settings::reduce_bucket_size,
     Range::kPositive,
     kAllStages},
    {"zero_optimization.allgather_bucket_size",
     &Settings::allgather_bucket_size,
     Range::kMultipleOf2,
     kStages12 | kStage3},
    {"zero_optimization.stage3_prefetch_bucket_size",
     &Settings::prefetch_bucket_size,
     Range::kNotNegative,
     kStage3},
    {"zero_optimization.stage3_param_persistence_threshold",
     &Settings::param_persistence_threshold,
     Range::kNotNegative,
     kStage3},
    {"zero_optimization.stage3_model_persistence_threshold",
     &Settings::model_persistence_threshold,
     Range::kNotNegative,
     kStage3},
    {"zero_optimization.stage3_max_live_parameters",
     &Settings::max_live_parameters,
     Range::kNotNegative,
     kStage3},
    {"zero_optimization.stage3_max_reuse_distance",
     &Settings::max_reuse_distance,
     Range::kNotNegative,
     kStage3},
};

struct Boolean {
  const char* path;
  bool Settings::*field;
  unsigned stages;
};
constexpr Boolean kBooleans[] = {
    {"zero_optimization.overlap_comm", &Settings::overlap_comm, kAllStages},
    {"zero_optimization.reduce_scatter", &Settings::reduce_scatter, kStages12},
    {"zero_optimization.allgather_partitions", &Settings::allgather_partitions, kStages12},
};

bool holds(Range range, int64_t value) {
  switch (range) {
    case Range::kStage:
      return value >= 0 && value <= 3;
    case Range::kPositive:
      return value >= 1;
    case Range::kMultipleOf2:
      return value >= 2 && value % 2 == 0;
    case Range::kNotNegative:
      break;
  }
  return value >= 0;
}

const char* text(Range range) {
  switch (range) {
    case Range::kStage:
      return "0, 1, 2, 3";
    case Range::kPositive:
      return "1 or more";
    case Range::kMultipleOf2:
      return "a multiple of 2, at least 2";
    case Range::kNotNegative:
      break;
  }
  return "0 or more";
}

}  // namespace

Settings read_settings(const DsConfig& config, PlanMessages& messages) {
  Settings settings;
  bool valid = true;
  for (const Integer& key : kIntegers) {
    const auto value = config.integer(key.path);
    if (!value) continue;
    if (holds(key.range, *value)) {
      settings.*key.field = *value;
    } else {
      valid = false;
      messages.push_back({config.label(key.path),
                          config.shown(key.path),
                          text(key.range),
                          key.range == Range::kStage ? "DeepSpeed has no other ZeRO stage"
                                                     : "it counts elements, not bytes"});
    }
  }
  settings.overlap_comm = settings.stage == 3;  // the default depends on the stage
  for (const Boolean& key : kBooleans) {
    if (const auto value = config.boolean(key.path)) settings.*key.field = *value;
  }
  if (!valid) return settings;
  // Whether a key has an effect depends on the stage.
  const auto note_unused = [&](const char* path, unsigned stages) {
    if (config.find(path) == nullptr || (stages & 1u << settings.stage) != 0) return;
    messages.push_back({config.label(path),
                        config.shown(path),
                        "",
                        "no effect at ZeRO stage " + std::to_string(settings.stage),
                        true});
  };
  for (const Integer& key : kIntegers) note_unused(key.path, key.stages);
  for (const Boolean& key : kBooleans) note_unused(key.path, key.stages);
  settings.offload = read_offload(config, settings.stage, messages);
  return settings;
}

}  // namespace yoke::deepspeed_stub
