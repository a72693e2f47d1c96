// Reads the settings of the engine, and reports arguments that contradict each other, as Megatron
// does when it starts.
#include "plugins/megatron_compat/settings.hpp"

#include "plugins/megatron_compat/fsdp.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

class Reader {
 public:
  Reader(const Config& config, PlanMessages& messages) : config_(config), messages_(messages) {}

  Settings read(std::string_view loss) {
    settings_.distributed_optimizer = config_.is_given("--use-distributed-optimizer");
    settings_.overlap_grad_reduce = config_.is_given("--overlap-grad-reduce");
    settings_.overlap_param_gather = config_.is_given("--overlap-param-gather");
    settings_.average_in_collective = config_.is_given("--ddp-average-in-collective");
    settings_.pad_buckets = config_.is_given("--ddp-pad-buckets-for-high-nccl-busbw");
    settings_.bucket_size = positive("--ddp-bucket-size", 0);
    settings_.num_buckets = positive("--ddp-num-buckets", 0);
    settings_.instances = positive("--num-distributed-optimizer-instances", 1);
    read_loss(loss);
    read_recompute();
    read_model_parallel();
    read_fsdp(config_, settings_, messages_);
    if (!settings_.fsdp) check_buckets();
    check_engine();
    check_stages();
    return settings_;
  }

 private:
  int64_t positive(const char* name, int64_t otherwise) {
    const auto value = config_.integer(name);
    if (!value) return otherwise;
    if (*value >= 1) return *value;
    refuse(name, "1 or more", "it is a number of elements, of buckets or of layers");
    return otherwise;
  }
  void read_loss(std::string_view given) {
    const bool per_token = config_.is_given("--calculate-per-token-loss");
    if (given.empty()) {
      settings_.loss = per_token || !config_.has_file() ? Loss::kPerToken : Loss::kEven;
    } else {
      settings_.loss = compat::loss_of(given);
    }
    if (per_token && settings_.loss != Loss::kPerToken)
      refuse("--calculate-per-token-loss",
             "",
             concat("megatron_compat.loss = \"", given, "\" is another loss; remove one of them"));
    if (settings_.loss == Loss::kPerToken && settings_.average_in_collective)
      refuse("--ddp-average-in-collective",
             "unset",
             "with --calculate-per-token-loss gradients are sums, which no rank averages");
  }
  void read_recompute() {
    const bool full = config_.word("--recompute-granularity") == "full";
    const auto method = config_.word("--recompute-method");
    if (full && config_.is_given("--recompute-activations"))
      refuse("--recompute-activations", "unset", "it contradicts --recompute-granularity full");
    settings_.recompute_layers = positive("--recompute-num-layers", 1);
    if (full && !method) {
      refuse("--recompute-granularity",
             "selective",
             "full needs --recompute-method uniform or block, and --recompute-num-layers");
    } else if (full && !config_.is_given("--recompute-num-layers")) {
      refuse("--recompute-method", "", "it needs --recompute-num-layers, a number of layers");
    } else if (!full && method) {
      refuse("--recompute-method", "unset", "it needs --recompute-granularity full");
    }
    if (full && method)
      settings_.recompute = *method == "uniform" ? Recompute::kUniform : Recompute::kBlock;
  }
  void read_model_parallel() {
    settings_.sequence_parallel = config_.is_given("--sequence-parallel");
    settings_.gather_keys = config_.word("--cp-comm-type") == "all_gather";
    settings_.chunks = positive("--num-virtual-stages-per-pipeline-rank", 1);
    settings_.layers_of_chunk = positive("--num-layers-per-virtual-pipeline-stage", 0);
    settings_.group_size = positive("--microbatch-group-size-per-virtual-pipeline-stage", 0);
    settings_.first_layers = positive("--decoder-first-pipeline-num-layers", 0);
    settings_.last_layers = positive("--decoder-last-pipeline-num-layers", 0);
    settings_.count_embedding = config_.is_given("--account-for-embedding-in-pipeline-split");
    settings_.count_loss = config_.is_given("--account-for-loss-in-pipeline-split");
    settings_.layout = config_.word("--pipeline-model-parallel-layout").value_or("");
  }
  // Refuses what Megatron refuses.
  void check_stages() {
    const bool virtual_stages = settings_.chunks > 1 || settings_.layers_of_chunk > 0;
    if (settings_.chunks > 1 && settings_.layers_of_chunk > 0)
      refuse("--num-layers-per-virtual-pipeline-stage",
             "unset",
             "it contradicts --num-virtual-stages-per-pipeline-rank; remove one of them");
    const bool uneven = settings_.first_layers + settings_.last_layers > 0;
    const bool counts = settings_.count_embedding || settings_.count_loss;
    if (uneven && counts)
      refuse(settings_.count_embedding ? "--account-for-embedding-in-pipeline-split"
                                       : "--account-for-loss-in-pipeline-split",
             "unset",
             "it contradicts the given numbers of layers of the first and the last rank");
    if (!settings_.layout.empty() && (virtual_stages || uneven || counts))
      refuse("--pipeline-model-parallel-layout",
             "unset",
             "it contradicts the other arguments about stages; remove those or this");
    if (uneven && settings_.layers_of_chunk > 0)
      refuse("--num-layers-per-virtual-pipeline-stage",
             "unset",
             "with uneven ranks use --num-virtual-stages-per-pipeline-rank");
  }
  void check_buckets() {
    const bool distributed = settings_.distributed_optimizer;
    if (settings_.overlap_param_gather && !(distributed && settings_.overlap_grad_reduce))
      refuse("--overlap-param-gather",
             "unset",
             "it needs --use-distributed-optimizer and --overlap-grad-reduce");
    if (settings_.instances > 1 && !distributed)
      refuse("--num-distributed-optimizer-instances", "1", "it needs --use-distributed-optimizer");
    if (settings_.instances > 1 && settings_.average_in_collective)
      refuse("--ddp-average-in-collective",
             "unset",
             "an average over an instance is not the average over all data ranks");
    if (settings_.bucket_size > 0 && settings_.num_buckets > 0)
      refuse("--ddp-num-buckets", "unset", "it contradicts --ddp-bucket-size; remove one of them");
    for (const char* name : {"--ddp-bucket-size", "--ddp-num-buckets"}) {
      if (config_.is_given(name) && !settings_.overlap_grad_reduce)
        note(name, "no effect: without --overlap-grad-reduce there is one bucket");
    }
    if (settings_.pad_buckets && !distributed)
      note("--ddp-pad-buckets-for-high-nccl-busbw",
           "no effect: buckets are padded only with --use-distributed-optimizer");
  }
  void check_engine() {
    if (config_.is_given("--accumulate-allreduce-grads-in-fp32") &&
        config_.is_given("--grad-reduce-in-bf16"))
      refuse("--grad-reduce-in-bf16",
             "unset",
             "it contradicts --accumulate-allreduce-grads-in-fp32; remove one of them");
    if (config_.is_given("--recompute-activations") ||
        config_.word("--recompute-granularity") == "selective")
      note(config_.is_given("--recompute-activations") ? "--recompute-activations"
                                                       : "--recompute-granularity",
           "no effect: the scores of attention are never kept");
  }
  void refuse(const char* name, std::string_view allowed, std::string_view hint) {
    messages_.push_back(
        {config_.label(name), config_.shown(name), std::string(allowed), std::string(hint)});
  }
  void note(const char* name, std::string_view hint) {
    messages_.push_back({config_.label(name), config_.shown(name), "", std::string(hint), true});
  }

  const Config& config_;
  PlanMessages& messages_;
  Settings settings_;
};

}  // namespace

Settings read_settings(const Config& config, std::string_view loss, PlanMessages& messages) {
  return Reader(config, messages).read(loss);
}

}  // namespace yoke::megatron_compat
