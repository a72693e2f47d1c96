// The host compares the learning rate, its schedule and precision.product with the run, and
// compat::check_lines() compares the rest of what all backends share. Options of [ptd] that the run
// leaves unset have the values of the job file.
#include "plugins/ptd/torchtitan/run_lines.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::ptd::torchtitan {
namespace {

constexpr const char* kParallel = "parallelism.";
constexpr int64_t kMost = 1'000'000'000;  // the product of two such numbers fits into 64 bits

struct Degree {
  int axis;
  const char* name;
};
constexpr Degree kDegrees[] = {{YOKE_DP_REPLICATE, "parallelism.data_parallel_replicate_degree"},
                               {YOKE_DP_SHARD, "parallelism.data_parallel_shard_degree"},
                               {YOKE_CP, "parallelism.context_parallel_degree"},
                               {YOKE_TP, "parallelism.tensor_parallel_degree"},
                               {YOKE_PP, "parallelism.pipeline_parallel_degree"}};

// Names of torchtitan's matrices, and those of Hugging Face, which Yoke uses.
const std::map<std::string, std::string, std::less<>>& names() {
  static const std::map<std::string, std::string, std::less<>> known{
      {"output", "lm_head"},
      {"attention", "self_attn"},
      {"attention.wq", "self_attn.q_proj"},
      {"attention.wk", "self_attn.k_proj"},
      {"attention.wv", "self_attn.v_proj"},
      {"attention.wo", "self_attn.o_proj"},
      {"feed_forward", "mlp"},
      {"feed_forward.w1", "mlp.gate_proj"},
      {"feed_forward.w2", "mlp.down_proj"},
      {"feed_forward.w3", "mlp.up_proj"},
      {"wq", "q_proj"},
      {"wk", "k_proj"},
      {"wv", "v_proj"},
      {"wo", "o_proj"},
      {"w1", "gate_proj"},
      {"w2", "down_proj"},
      {"w3", "up_proj"}};
  return known;
}

// The dimensions of torchtitan's Llamas.
using Lines = std::vector<std::pair<std::string, std::string>>;
const std::map<std::string, Lines, std::less<>>& flavors() {
  const auto llama3 = [](int dim, int layers, int heads, int ffn_dim) {
    return Lines{{"model.vocab", "128256"},
                 {"model.dim", concat(dim)},
                 {"model.layers", concat(layers)},
                 {"model.heads", concat(heads)},
                 {"model.kv_heads", "8"},
                 {"model.ffn_dim", concat(ffn_dim)},
                 {"model.tied", "false"},
                 {"model.rope_theta", "500000"},
                 {"model.norm_eps", "1e-05"}};
  };
  static const std::map<std::string, Lines, std::less<>> known{
      {"8B", llama3(4096, 32, 32, 14336)},
      {"70B", llama3(8192, 80, 64, 28672)},
      {"405B", llama3(16384, 126, 128, 53248)}};
  return known;
}

// torchtitan skips every matrix whose name contains an entry, so "layers.1" also names layers 10 to
// 19. Returns whether no other number of a layer begins with these digits.
bool names_one_layer(std::string_view number) {
  constexpr int kMostLayers = 126;  // layers of its largest Llama
  return number == "0" || number.size() > 2 || 10 * std::stoi(std::string(number)) >= kMostLayers;
}

// Returns the name of a matrix, or of several, as Yoke writes it; "" if it is unknown or would name
// other matrices in torchtitan as well.
std::string own_name(std::string_view fqn) {
  if (const auto found = names().find(fqn); found != names().end()) return found->second;
  constexpr std::string_view kLayer = "layers.";
  if (!fqn.starts_with(kLayer)) return "";
  const size_t end = std::min(fqn.find('.', kLayer.size()), fqn.size());
  const std::string_view number = fqn.substr(kLayer.size(), end - kLayer.size());
  if (number.empty() || number.find_first_not_of("0123456789") != number.npos) return "";
  const std::string layer(fqn.substr(0, end));
  if (end == fqn.size()) return names_one_layer(number) ? layer : "";
  if (end + 1 == fqn.size()) return layer;
  const std::string rest = own_name(fqn.substr(end + 1));
  return rest.empty() || rest == "lm_head" ? "" : layer + "." + rest;
}

class Writer {
 public:
  Writer(const JobFile& file, const YokePlan& plan, PlanMessages& messages)
      : file_(file), plan_(plan), lines_(file, messages) {}

  std::vector<compat::RunLine> write() {
    write_model();
    write_degrees();
    write_batch();
    write_optimizer();
    write_schedule();
    write_precision();
    write_fp8();
    write_options();
    write_rest();
    return lines_.lines();
  }

 private:
  // Returns a whole number that is at least `least`; std::nullopt if it is refused or missing.
  std::optional<int64_t> count(const std::string& name, int64_t least = 1) {
    const auto value = file_.integer(name);
    if (!value || (*value >= least && *value <= kMost)) return value;
    lines_.refuse(name, concat(least, " to ", kMost), "it is a number of things");
    return std::nullopt;
  }
  void write_model() {
    const char* const flavor = "model.flavor";
    const auto found = flavors().find(file_.word(flavor).value_or(""));
    if (found != flavors().end()) {
      for (const auto& [key, value] : found->second) lines_.add(flavor, key, value);
    } else if (file_.is_given(flavor)) {
      lines_.note(flavor, "give its dimensions in [model], or set model.from");
    }
    for (const std::string& name : file_.list("model.converters")) {
      if (present_path(name + ".") != "float8.")
        lines_.refuse("model.converters", "float8, quantize.linear.float8", "no other is built");
    }
    if (count("training.seq_len")) lines_.integer("training.seq_len", "data.seq_len");
  }
  void write_degrees() {
    for (const Degree& d : kDegrees) {
      if (!file_.is_given(d.name) && plan_.degree[d.axis] == 1) continue;
      lines_.add(d.name, yoke_degree_key(d.axis), concat(plan_.degree[d.axis]));
      const auto wanted = file_.integer(d.name);
      const bool is_rest = d.axis == YOKE_DP_SHARD && wanted == -1;
      if (wanted && !is_rest && *wanted != plan_.degree[d.axis])
        lines_.refuse(d.name,
                      concat(plan_.degree[d.axis]),
                      concat("the run has ",
                             yoke_degree_key(d.axis),
                             " = ",
                             plan_.degree[d.axis],
                             "; change one of them"));
    }
  }
  // A pipeline cuts the batch of a rank into micro-batches. Without one it is the micro-batch.
  void write_batch() {
    const std::string local = "training.local_batch_size", global = "training.global_batch_size";
    const auto batch = count(local);
    if (!batch) return;
    const bool pipeline = plan_.degree[YOKE_PP] > 1;
    const std::string micro =
        pipeline ? concat(kParallel, "pipeline_parallel_microbatch_size") : local;
    if (count(micro)) lines_.integer(micro, "train.micro_batch");
    if (file_.integer(global).value_or(-1) > 0) return lines_.integer(global, "train.global_batch");
    lines_.add(local,
               "train.global_batch",
               concat(*batch * plan_.degree[YOKE_DP_REPLICATE] * plan_.degree[YOKE_DP_SHARD]));
  }
  void write_optimizer() {
    const bool adam = file_.word("optimizer.name") == "Adam";
    lines_.add("optimizer.name", "train.optimizer", compat::quoted(adam ? "adam" : "adamw"));
    lines_.number("optimizer.lr", "train.lr");
    const auto beta1 = file_.number("optimizer.beta1"), beta2 = file_.number("optimizer.beta2");
    if (beta1 && beta2)
      lines_.add("optimizer.beta2", "train.betas", compat::pair_text(*beta1, *beta2));
    lines_.number("optimizer.eps", "train.eps");
    lines_.number("optimizer.weight_decay", "train.weight_decay");
    lines_.add("optimizer.weight_decay", "train.decay", compat::quoted("all"));
    lines_.number("training.max_norm", "train.clip");
  }
  // The decay begins after the warmup, or the file gives its share of the steps.
  void write_schedule() {
    const std::string ratio_key = "lr_scheduler.decay_ratio", type_key = "lr_scheduler.decay_type";
    const auto steps = count("training.steps");
    const auto warmup = count("lr_scheduler.warmup_steps", 0);
    if (!steps || !warmup) return;
    lines_.integer("training.steps", "train.steps");
    lines_.integer("lr_scheduler.warmup_steps", "train.warmup");
    lines_.number("lr_scheduler.min_lr_factor", "train.min_lr_factor");
    const int64_t total = file_.integer("lr_scheduler.total_steps").value_or(*steps);
    if (total != *steps) lines_.integer("lr_scheduler.total_steps", "lr_schedule.total_steps");
    const std::string type = file_.word(type_key).value_or("");
    const auto ratio = file_.number(ratio_key);
    if (!ratio && type != "sqrt")
      return lines_.add(type_key, "train.schedule", compat::quoted(type));
    if (ratio && (*ratio < 0 || *ratio > 1))
      return lines_.refuse(ratio_key, "0 to 1", "it is a share of the steps");
    const std::string key = ratio ? ratio_key : type_key;
    lines_.add(key, "train.schedule", compat::quoted("wsd"));
    const int64_t rest = std::max<int64_t>(0, total - *warmup);
    // Python rounds halves to even, as lrint does.
    const int64_t decay =
        ratio ? std::min<int64_t>(rest, std::lrint(static_cast<double>(total) * *ratio)) : rest;
    lines_.add(key, "lr_schedule.decay_steps", concat(decay));
    lines_.add(type_key, "lr_schedule.decay_shape", compat::quoted(type));
  }
  // torchtitan has mixed precision only with FSDP, and with DDP alone.
  void write_precision() {
    const char* const param = "training.mixed_precision_param";
    const bool sharded = plan_.degree[YOKE_DP_SHARD] * plan_.degree[YOKE_CP] > 1;
    const bool mixed = sharded || plan_.degree[YOKE_TP] * plan_.degree[YOKE_PP] == 1;
    const bool bf16 = mixed && file_.word(param) == "bfloat16";
    if (!mixed) lines_.note(param, "torchtitan ignores it with tp or pp but without FSDP or cp");
    lines_.add(param, "precision.param", compat::quoted(bf16 ? "bf16" : "fp32"));
    lines_.add("training.mixed_precision_reduce", "precision.reduce", compat::quoted("fp32"));
  }
  void write_fp8() {
    const char* const recipe_key = "float8.recipe_name";
    const char* const gather_key = "float8.enable_fsdp_float8_all_gather";
    if (!file_.has_fp8()) {
      for (const char* key : {recipe_key, gather_key, "float8.filter_fqns"}) {
        if (file_.is_given(key)) lines_.note(key, "no effect: model.converters has no float8");
      }
      return;
    }
    const std::string recipe = file_.word(recipe_key).value_or("");
    lines_.add(
        file_.is_given("model.converters") ? "model.converters" : "float8.enable_float8_linear",
        "precision.product",
        compat::quoted("fp8"));
    lines_.add(recipe_key,
               "precision.fp8_recipe",
               compat::quoted(recipe == "rowwise_with_gw_hp" ? "rowwise_gw_hp" : recipe));
    write_skip();
    if (recipe == "tensorwise")
      lines_.note(recipe_key, "scales are powers of two here in every recipe; torchao's are not");
    if (file_.boolean(gather_key) != true) return;
    if (recipe != "tensorwise")
      return lines_.refuse(gather_key, "false", "rows have scales of their own; use tensorwise");
    if (plan_.degree[YOKE_DP_SHARD] * plan_.degree[YOKE_CP] == 1)
      return lines_.note(gather_key, "no effect: nothing is sharded");
    lines_.add(gather_key, "ptd.fp8_gather", "true");
  }
  // torchtitan converts the head, too, unless it is filtered.
  void write_skip() {
    std::string skip;
    for (const std::string& fqn : file_.list("float8.filter_fqns")) {
      const std::string name = own_name(fqn);
      if (name.empty()) {
        lines_.refuse("float8.filter_fqns",
                      "output, layers.N., attention, attention.wq, feed_forward.w1 and so on",
                      concat("'",
                             fqn,
                             "' is not the name of a matrix in torchtitan's Llama, or is "
                             "contained in the names of other matrices"));
        continue;
      }
      skip += (skip.empty() ? "" : ", ") + compat::quoted(name);
    }
    lines_.add("float8.filter_fqns", "precision.fp8_skip", "[" + skip + "]");
  }
  void write_options() {
    const char* const mode = "activation_checkpoint.mode";
    const bool recompute = file_.word(mode) != "none";
    if (recompute) lines_.add(mode, "ptd.activation_checkpoint", compat::quoted("full"));
    const std::string reshard = concat(kParallel, "fsdp_reshard_after_forward");
    if (file_.word(reshard) != "default" && file_.word(reshard))
      lines_.add(reshard,
                 "ptd.reshard_after_forward",
                 compat::boolean_text(file_.word(reshard) == "always"));
    const std::string loss = concat(kParallel, "disable_loss_parallel");
    if (plan_.degree[YOKE_TP] > 1 && file_.boolean(loss) == true)
      lines_.add(loss, "ptd.loss_parallel", "false");
    const std::string async = concat(kParallel, "enable_async_tensor_parallel");
    if (plan_.degree[YOKE_TP] > 1 && file_.boolean(async) == true)
      lines_.add(async, "ptd.tp_pieces", concat(plan_.degree[YOKE_TP]));
    const std::string rotate = concat(kParallel, "context_parallel_rotate_method");
    if (plan_.degree[YOKE_CP] > 1)
      lines_.add(rotate,
                 "ptd.cp_attention",
                 compat::quoted(file_.word(rotate) == "alltoall" ? "ring" : "all_gather"));
    if (plan_.degree[YOKE_PP] > 1) write_pipeline();
  }
  void write_pipeline() {
    static const std::map<std::string, const char*, std::less<>> schedules{
        {"1F1B", "1f1b"},
        {"GPipe", "gpipe"},
        {"Interleaved1F1B", "interleaved"},
        {"LoopedBFS", "looped_bfs"},
        {"InterleavedZeroBubble", "zb_interleaved"},
        {"ZBVZeroBubble", "zb_v"},
        {"DualPipeV", "dual_pipe_v"}};
    const std::string key = concat(kParallel, "pipeline_parallel_schedule");
    const auto known = schedules.find(file_.word(key).value_or(""));
    if (known != schedules.end()) lines_.add(key, "ptd.pp_schedule", compat::quoted(known->second));
  }
  void write_rest() {
    if (file_.is_given("training.seed")) lines_.integer("training.seed", "seed");
    if (file_.boolean("training.deterministic") == true)
      lines_.add("training.deterministic", "train.deterministic", "true");
    lines_.integer("metrics.log_freq", "metrics.every");
    lines_.add("metrics.enable_tensorboard",
               "metrics.tensorboard",
               compat::boolean_text(file_.boolean("metrics.enable_tensorboard") == true));
    if (file_.boolean("checkpoint.enable_checkpoint") != true)
      return lines_.add("checkpoint.enable_checkpoint", "checkpoint.every", "0");
    lines_.integer("checkpoint.interval", "checkpoint.every");
    const int64_t keep = file_.integer("checkpoint.keep_latest_k").value_or(0);
    lines_.add("checkpoint.keep_latest_k", "checkpoint.keep", concat(keep > 0 ? keep : 1'000'000));
  }

  const JobFile& file_;
  const YokePlan& plan_;
  compat::RunLines lines_;
};

}  // namespace

void fill_degrees(const JobFile& file, YokePlan& plan) {
  if (!file.has_file()) return;
  for (const Degree& d : kDegrees) {
    const int64_t degree = file.integer(d.name).value_or(1);
    if (plan.degree[d.axis] == 0 && degree >= 1 && degree <= plan.world_size)
      plan.degree[d.axis] = static_cast<int32_t>(degree);
  }
}

std::vector<compat::RunLine> run_lines(const JobFile& file,
                                       const YokePlan& plan,
                                       PlanMessages& messages) {
  if (!file.has_file()) return {};
  return Writer(file, plan, messages).write();
}

PtdOptions options_of(const Options& options, const YokePlan& plan) {
  PtdOptions result(options, plan.degree[YOKE_PP]);
  const JobFile file(options);
  PlanMessages reported;  // messages that complete_plan() reports
  for (const compat::RunLine& line : run_lines(file, plan, reported)) {
    constexpr std::string_view kPrefix = "ptd.";
    if (!line.key.starts_with(kPrefix)) continue;
    const std::string key = line.key.substr(kPrefix.size());
    if (options.given(key)) continue;
    if (key == "fp8_gather") result.fp8_gather = true;
    if (key == "activation_checkpoint") result.recompute = Recompute::kBlocks;
    if (key == "reshard_after_forward") result.reshard_after_forward = line.value == "true";
    if (key == "loss_parallel") result.mesh.loss_parallel = false;
    if (key == "tp_pieces") result.mesh.tp_pieces = plan.degree[YOKE_TP];
    if (key == "cp_attention")
      result.mesh.exchange = line.value == compat::quoted("ring") ? SequenceExchange::kRing
                                                                  : SequenceExchange::kAllGather;
    for (const PipelineInfo& info : pipeline_infos()) {
      if (key == "pp_schedule" && line.value == compat::quoted(info.name))
        result.pp_schedule = info.kind;
    }
  }
  return result;
}

}  // namespace yoke::ptd::torchtitan
