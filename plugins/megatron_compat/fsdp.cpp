// The engine of this backend has whole parameters on every data rank, between backward and update.
// FSDP differs from it everywhere: in what a rank stores, in when parameters are gathered, and in
// where gradients go. An engine for it would be a copy of ptd.
#include "plugins/megatron_compat/fsdp.hpp"

#include <string>
#include <utility>
#include <vector>

#include "sdk/compat/delegate.hpp"
#include "sdk/compat/reduction_hint.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

constexpr const char* kTorch = "--use-torch-fsdp2";
constexpr const char* kMegatron = "--use-megatron-fsdp";
constexpr const char* kOldName = "--use-custom-fsdp";
constexpr const char* kStrategy = "--data-parallel-sharding-strategy";
constexpr const char* kOuter = "--outer-dp-sharding-strategy";
constexpr const char* kKeep = "--torch-fsdp2-no-reshard-after-forward";
constexpr const char* kDistributed = "--use-distributed-optimizer";
constexpr const char* kPerToken = "--calculate-per-token-loss";

class Reader {
 public:
  Reader(const Config& config, Settings& settings, PlanMessages& messages)
      : config_(config), settings_(settings), messages_(messages) {}

  void read() {
    const bool torch = config_.is_given(kTorch);
    const char* megatron = config_.is_given(kOldName) ? kOldName : kMegatron;
    if (torch && config_.is_given(megatron)) {
      refuse(megatron, "unset", concat("it contradicts ", kTorch, "; remove one of them"));
      settings_.fsdp = true;
    } else if (torch) {
      read_torch();
    } else if (config_.is_given(megatron)) {
      read_megatron(megatron);
    }
    for (const char* name : {kStrategy, kOuter}) {
      if (config_.is_given(name) && !config_.is_given(megatron))
        note(name, concat("no effect without ", kMegatron));
    }
    if (config_.is_given(kKeep) && !torch) note(kKeep, concat("no effect without ", kTorch));
    if (settings_.fsdp) note_unused();
  }

 private:
  void read_torch() {
    settings_.fsdp = true;
    settings_.reshard = !config_.is_given(kKeep);
    if (config_.is_given(kDistributed))
      refuse(kDistributed, "unset", concat(kTorch, " shards the optimizer itself"));
    if (config_.has_file() && !config_.is_given("--untie-embeddings-and-output-weights"))
      refuse(kTorch,
             "unset",
             "Megatron has it only for models with --untie-embeddings-and-output-weights");
    if (settings_.instances > 1)
      refuse("--num-distributed-optimizer-instances",
             "1",
             concat(kTorch, " shards over all data ranks; ", kMegatron, " has instances"));
    if (config_.is_given("--bf16"))
      note("--bf16", compat::reduction_hint(concat("with ", kTorch, " Megatron"), YOKE_BF16));
    if (config_.is_given(kPerToken))
      note(kPerToken,
           concat("gradients are divided by the number of targets; with ",
                  kTorch,
                  " Megatron leaves this out, so its gradients are larger by that factor"));
  }
  // Releases of Megatron differ in the default of the strategy, so it must be given. Recent ones
  // set --use-distributed-optimizer themselves.
  void read_megatron(const char* megatron) {
    const std::string strategy = config_.word(kStrategy).value_or("");
    settings_.fsdp = strategy != "optim" && strategy != "no_shard";
    settings_.distributed_optimizer = strategy == "optim";
    if (strategy.empty()) {
      refuse(megatron,
             concat(kStrategy, " with no_shard, optim or optim_grads_params"),
             "releases have different defaults");
    } else if (strategy == "no_shard") {
      settings_.instances = 1;
      for (const char* name : {kDistributed, "--num-distributed-optimizer-instances"}) {
        if (config_.is_given(name)) note(name, concat("no effect with ", kStrategy, " no_shard"));
      }
    }
  }
  void note_unused() {
    for (const char* name : {"--overlap-grad-reduce",
                             "--overlap-param-gather",
                             "--ddp-bucket-size",
                             "--ddp-num-buckets",
                             "--ddp-pad-buckets-for-high-nccl-busbw",
                             "--ddp-average-in-collective"}) {
      if (config_.is_given(name))
        note(name, "no effect: with FSDP there are no buckets, and communication overlaps");
    }
    if (!config_.is_given(kPerToken) && config_.has_file())
      note(config_.is_given(kTorch) ? kTorch : kStrategy,
           "the loss is the mean over all targets of a step, which is Megatron's as long as "
           "micro-batches have equal numbers of targets");
  }
  void refuse(const char* name, std::string allowed, std::string hint) {
    messages_.push_back(
        {config_.label(name), config_.shown(name), std::move(allowed), std::move(hint)});
  }
  void note(const char* name, std::string hint) {
    messages_.push_back({config_.label(name), config_.shown(name), "", std::move(hint), true});
  }

  const Config& config_;
  Settings& settings_;
  PlanMessages& messages_;
};

// Returns ptd with its options, each with the argument that it follows from.
compat::Delegation delegation_of(const Config& config,
                                 const Settings& settings,
                                 const YokePlan& plan) {
  std::vector<compat::InnerOption> options;
  const auto set = [&](const char* key, const char* value, const char* name) {
    options.push_back({key, value, config.label(name), config.shown(name)});
  };
  // The defaults of ptd are Megatron's, except that ptd has sequence parallelism by default.
  if (!settings.reshard) set("reshard_after_forward", "false", kKeep);
  if (settings.recompute != Recompute::kNone)
    set("activation_checkpoint", "full", "--recompute-granularity");
  if (plan.degree[YOKE_CP] > 1 && config.is_given("--cp-comm-type"))
    set("cp_attention", settings.gather_keys ? "all_gather" : "ring", "--cp-comm-type");
  if (settings.sequence_parallel) set("sequence_parallel", "true", "--sequence-parallel");
  if (!settings.sequence_parallel && plan.degree[YOKE_TP] > 1)
    options.push_back({"sequence_parallel", "false", "--sequence-parallel", "unset"});
  return {"ptd", "megatron_compat", std::move(options)};
}

// Refuses what ptd has only in another form.
void check(const Config& config,
           const Settings& settings,
           const Options& options,
           const YokePlan& plan,
           PlanMessages& messages) {
  if (options.given("loss") && settings.loss != Loss::kPerToken)
    messages.push_back({"megatron_compat.loss",
                        std::string(options.string("loss")),
                        "per_token",
                        "with FSDP the loss is the mean over all targets of a step"});
  if (plan.degree[YOKE_PP] > 1)
    messages.push_back({"pp_degree",
                        concat(plan.degree[YOKE_PP]),
                        "1",
                        "FSDP with pipelines needs parallel_backend = \"ptd\""});
  const bool each_layer =
      settings.recompute == Recompute::kUniform && settings.recompute_layers == 1;
  if (settings.recompute != Recompute::kNone && !each_layer)
    messages.push_back({config.label("--recompute-method"),
                        config.shown("--recompute-method"),
                        "uniform with --recompute-num-layers 1",
                        "with FSDP, each layer is computed again, or none"});
}

}  // namespace

void read_fsdp(const Config& config, Settings& settings, PlanMessages& messages) {
  Reader(config, settings, messages).read();
}

void plan_with_fsdp(const YokePlanArgs& args,
                    const Config& config,
                    const Settings& settings,
                    YokePlan& plan,
                    PlanReport& report) {
  PlanMessages messages;
  check(config, settings, Options(args.options, args.num_options), plan, messages);
  report.add(messages);
  if (!messages.empty()) return;
  compat::plan_with(
      delegation_of(config, settings, plan),
      [&](int axis) -> std::string {
        const char* name = axis == YOKE_TP   ? "--tensor-model-parallel-size"
                           : axis == YOKE_CP ? "--context-parallel-size"
                                             : "";
        return config.is_given(name) ? config.label(name) : "";
      },
      args,
      plan,
      report);
}

std::unique_ptr<Context> fsdp_context(const YokeInitArgs& args, const Settings& settings) {
  const Config config(Options(args.options, args.num_options));
  return compat::init_with(delegation_of(config, settings, *args.plan), args);
}

}  // namespace yoke::megatron_compat
