// Applies the batch rule when factors may be unset.
//
// The run file's global batch is fixed; micro-batch and accumulation steps may each be given or
// not. If both are given, the product must match. If one is given, the other is computed, and the
// division must leave no remainder. If none is given, the host chooses the micro-batch.
#include "plugins/deepspeed_stub/config/batch.hpp"

#include <string>

#include "yoke/plan.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

std::string text(int64_t n) {
  return std::to_string(n);
}

// Checks that a size is between 1 and a million. The upper bound keeps the product size x size x
// ranks within 64 bits.
bool is_batch_size(const DsConfig& config, const char* path, PlanMessages& messages) {
  const auto value = config.integer(path);
  if (!value || (*value >= 1 && *value <= 1'000'000)) return true;
  messages.push_back(
      {config.label(path), config.shown(path), "1 to 1000000 or \"auto\"", "correct the value"});
  return false;
}

// Returns whether the value in the ds_config differs from the run's, and reports a difference. key:
// name of the same value in a run file.
bool differs(const DsConfig& config,
             const char* path,
             const char* key,
             int64_t run,
             PlanMessages& messages) {
  const auto value = config.integer(path);
  if (!value || *value == run) return false;
  messages.push_back({config.label(path),
                      config.shown(path),
                      concat(run, " or \"auto\""),
                      std::string("the run has ") + key + " = " + text(run) +
                          "; change one of them, for example on the command line: " + key + "=" +
                          text(*value)});
  return true;
}

// Describes a batch whose factors are all given, but train != micro x steps x ranks.
PlanMessage product_differs(
    const DsConfig& config, int64_t train, int64_t micro, int64_t steps, int64_t ranks) {
  const int64_t product = micro * steps * ranks;
  std::string fix = concat("nearest: ", kTrain, " = train.global_batch = ", product);
  if (train % (steps * ranks) == 0) fix += concat(", or ", kMicro, " = ", train / (steps * ranks));
  if (train % (micro * ranks) == 0)
    fix += concat(", or ", kAccumulation, " = ", train / (micro * ranks));
  return {config.find(kMicro) != nullptr ? config.label(kMicro) : "train.micro_batch",
          text(micro),
          "factors whose product is the batch",
          std::string(kMicro) + " " + text(micro) + " x " + kAccumulation + " " + text(steps) +
              " x " + text(ranks) + " data ranks = " + text(product) + ", but the batch is " +
              text(train) + "; " + fix};
}

// Describes a batch with one given factor, under `path`, for which the other is not an integer.
PlanMessage factor_does_not_divide(
    const DsConfig& config, const char* path, int64_t train, int64_t factor, int64_t ranks) {
  std::string fix = "nearest: train.global_batch = " +
                    nearest_text(yoke_nearest_multiples(train, factor * ranks));
  if (train % ranks == 0)
    fix += ", or " + std::string(path) + " = " +
           nearest_text(yoke_nearest_divisors(train / ranks, factor));
  return {config.find(path) != nullptr ? config.label(path) : "train.micro_batch",
          text(factor),
          "a divisor of the part of the batch that one data rank gets",
          "train batch " + text(train) + " / (" + path + " " + text(factor) + " x " + text(ranks) +
              " data ranks = " + text(factor * ranks) + ") leaves a remainder of " +
              text(train % (factor * ranks)) + "; " + fix};
}

}  // namespace

void resolve_batch(const DsConfig& config, YokePlan& plan, PlanMessages& messages) {
  bool valid = true;
  for (const char* path : {kTrain, kMicro, kAccumulation})
    valid = is_batch_size(config, path, messages) && valid;
  if (!valid) return;
  const int64_t train = plan.global_batch, ranks = plan.world_size;
  if (differs(config, kTrain, "train.global_batch", train, messages)) return;
  if (plan.micro_batch != 0 &&
      differs(config, kMicro, "train.micro_batch", plan.micro_batch, messages))
    return;

  const auto micro =
      plan.micro_batch != 0 ? std::optional<int64_t>(plan.micro_batch) : config.integer(kMicro);
  // As in DeepSpeed, a batch size without factors means no accumulation.
  auto steps = config.integer(kAccumulation);
  if (!micro && !steps && config.integer(kTrain) && train % ranks == 0) steps = 1;
  if (micro && steps) {
    if (*micro * *steps * ranks != train)
      return messages.push_back(product_differs(config, train, *micro, *steps, ranks));
  } else if (const auto factor = micro ? micro : steps; factor && train % (*factor * ranks) != 0) {
    return messages.push_back(
        factor_does_not_divide(config, micro ? kMicro : kAccumulation, train, *factor, ranks));
  }
  if (plan.micro_batch != 0) return;
  if (micro)
    plan.micro_batch = static_cast<int32_t>(*micro);
  else if (steps)
    plan.micro_batch = static_cast<int32_t>(train / (*steps * ranks));
}

}  // namespace yoke::deepspeed_stub
