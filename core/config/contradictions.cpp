// One function per rule. A rule names the keys that it reads and is skipped if one of them is
// invalid by itself: the rule would read a default, and its message would confuse. Rules that need
// the model's final dimensions, the data or the backend's plan are checked later, in core/run.
#include "core/config/contradictions.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "core/config/lr_schedules.hpp"
#include "core/config/schema.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Found = std::vector<std::string>;

bool sound(const ConfigView& view, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return view.sound(key); });
}

// core/backend checks that the backend exists. Only a clash with a table of the run file, which
// would make its options unreachable, is checked here.
void check_backend(const ConfigView& view, Found& found) {
  const std::string& name = view.run.parallel_backend;
  if (!sound(view, {"parallel_backend"}) || !is_table(name)) return;
  found.push_back(view.cite("parallel_backend") +
                  ": a backend cannot have the name of a table of the run file");
}

// The meaning of a relative path would change with the directory in which a run is started or
// resumed.
void check_absolute(const ConfigView& view, Found& found) {
  const auto relative = [](const std::string& path) { return path.empty() || path[0] != '/'; };
  const auto& folders = view.run.backend_path;
  if (sound(view, {"backend_path"}) && std::any_of(folders.begin(), folders.end(), relative)) {
    found.push_back(view.cite("backend_path") + ": every folder must be an absolute path");
  }
  if (sound(view, {"worker"}) && !view.run.worker.empty() && relative(view.run.worker)) {
    found.push_back(view.cite("worker") + ": must be an absolute path, or empty for yoke-worker");
  }
}

// Dimensions that come from a preset are unset here; the model checks them.
void check_division(const ConfigView& view, Found& found, const char* whole, const char* part) {
  if (!sound(view, {whole, part})) return;
  const auto n = read_key(*find_key(whole), view.run), d = read_key(*find_key(part), view.run);
  if (!n || !d) return;
  const int64_t divisor = std::get<int64_t>(d->data);
  const int64_t rest = std::get<int64_t>(n->data) % divisor;
  if (rest == 0) return;
  const int64_t below = std::get<int64_t>(n->data) - rest;
  const std::string multiples =
      below == 0 ? concat(divisor) : concat(below, " or ", below + divisor);
  found.push_back(view.cite(whole) + " is not a multiple of " + view.cite(part) +
                  "; nearest: " + whole + " = " + multiples);
}

// Gradients that are summed in a type less precise than their own only lose accuracy.
void check_precision(const ConfigView& view, Found& found) {
  const PrecisionConfig& p = view.run.precision;
  if (!sound(view, {"precision.param", "precision.reduce"}) || !p.reduce) return;
  // bf16 has fewer digits than fp16, and fp16 a smaller range than bf16.
  std::vector<std::string> allowed{"fp32", "fp64"};
  if (p.param == "fp64") allowed = {"fp64"};
  if (p.param == "bf16" || p.param == "fp16") allowed.insert(allowed.begin(), p.param);
  if (std::find(allowed.begin(), allowed.end(), *p.reduce) != allowed.end()) return;
  found.push_back(view.cite("precision.reduce") + " is less precise than " +
                  view.cite("precision.param") + "; allowed: " + join(allowed));
}

bool is_changed(const ConfigView& view, const Key& key) {
  return read_key(key, view.run) != read_key(key, RunConfig());
}

// Without momentum, Muon's direction would be that of a single noisy gradient. The default of the
// key is that of SGD.
void check_muon(const ConfigView& view, Found& found) {
  const TrainConfig& t = view.run.train;
  if (!sound(view, {"train.optimizer", "train.momentum"})) return;
  if (t.optimizer != "muon" || t.momentum > 0) return;
  found.push_back(view.cite("train.optimizer") +
                  " needs a momentum above 0; add train.momentum = 0.95");
}

// The other optimizers have no moments to correct.
void check_optimizer(const ConfigView& view, Found& found) {
  const TrainConfig& t = view.run.train;
  if (!sound(view, {"train.optimizer", "train.bias_correction"}) || t.bias_correction) return;
  if (t.optimizer == "adamw" || t.optimizer == "adam") return;
  found.push_back(view.cite("train.bias_correction") + " has no effect with " +
                  view.cite("train.optimizer") +
                  "; only adamw and adam correct moments; remove it");
}

// Adapters freeze everything else, and belong to the weights with which they were trained.
void check_adapters(const ConfigView& view, Found& found) {
  const ModelConfig& model = view.run.model;
  if (!sound(view, {"lora.rank"})) return;
  if (model.lora.rank == 0) {
    for (const char* key : {"lora.alpha", "lora.targets", "lora.from"}) {
      if (!sound(view, {key}) || !is_changed(view, *find_key(key))) continue;
      found.push_back(view.cite(key) + " has no effect with " + view.cite("lora.rank") +
                      "; set lora.rank, or leave " + key + " out");
    }
    return;
  }
  if (sound(view, {"model.freeze"}) && !model.freeze.empty()) {
    found.push_back(view.cite("model.freeze") + " has no effect with " + view.cite("lora.rank") +
                    ", because only the adapters are trained; leave model.freeze out");
  }
  if (sound(view, {"lora.from", "model.from"}) && !model.lora.from.empty() && model.from.empty()) {
    found.push_back(view.cite("lora.from") +
                    " needs the weights that its adapters belong to; name their folder in "
                    "model.from");
  }
}

// Without fp8 products these keys have no effect.
void check_fp8(const ConfigView& view, Found& found) {
  const PrecisionConfig& p = view.run.precision;
  if (!sound(view, {"precision.product"}) || p.product == "fp8") return;
  const auto without_effect = [&](const char* key) {
    if (!sound(view, {key})) return;
    found.push_back(view.cite(key) + " has no effect with " + view.cite("precision.product") +
                    "; set precision.product = \"fp8\", or leave " + key + " out");
  };
  if (p.fp8_recipe) without_effect("precision.fp8_recipe");
  if (p.fp8_skip != PrecisionConfig().fp8_skip) without_effect("precision.fp8_skip");
}

// Returns the key because of which a key of [loss_scale] has no effect; NULL if it has one.
const char* reason_without_effect(const RunConfig& run, std::string_view key) {
  if (run.precision.param != "fp16") return "precision.param";
  if (run.loss_scale.fixed > 0) return key == "loss_scale.static" ? nullptr : "loss_scale.static";
  const std::string& rule = run.loss_scale.rule;
  const bool has_effect =
      key == "loss_scale.hysteresis" || key == "loss_scale.consecutive_hysteresis"
          ? rule == "deepspeed"
          : key != "loss_scale.min" || rule != "grad_scaler";
  return has_effect ? nullptr : "loss_scale.rule";
}

// Only fp16 has so small a range that the loss must be scaled, and a static scale never changes.
void check_loss_scale(const ConfigView& view, Found& found) {
  if (!sound(view, {"precision.param", "loss_scale.static"})) return;
  const bool scales = view.run.precision.param == "fp16";
  const LossScaleConfig& scale = view.run.loss_scale;
  for (const Key& key : schema()) {
    if (!key.name.starts_with("loss_scale.") || !is_changed(view, key)) continue;
    const char* with = reason_without_effect(view.run, key.name);
    if (with == nullptr) continue;
    found.push_back(
        view.cite(std::string(key.name)) + " has no effect with " + view.cite(with) +
        (scales ? "; remove one of them" : "; set precision.param = \"fp16\", or remove it"));
  }
  if (!scales || scale.fixed > 0 || scale.rule == "grad_scaler" ||
      !sound(view, {"loss_scale.min", "loss_scale.initial_power"}))
    return;
  if (std::ldexp(1, static_cast<int>(scale.initial_power)) >= scale.min) return;
  found.push_back(view.cite("loss_scale.min") + " is above the initial scale, 2 to the power of " +
                  view.cite("loss_scale.initial_power"));
}

// Measurements differ from run to run, and algorithms in the last bits of their results.
void check_products(const ConfigView& view, Found& found) {
  if (!sound(view, {"train.deterministic", "train.tune_products"})) return;
  if (!view.run.train.deterministic || !view.run.train.tune_products) return;
  found.push_back(view.cite("train.tune_products") + " contradicts " +
                  view.cite("train.deterministic") + "; remove one of them");
}

// fp8 products are made for tensors with the range of bf16.
void check_fp16_products(const ConfigView& view, Found& found) {
  if (!sound(view, {"precision.param", "precision.product"})) return;
  const PrecisionConfig& p = view.run.precision;
  if (p.param != "fp16" || p.product != "fp8") return;
  found.push_back(view.cite("precision.product") + " is not supported with " +
                  view.cite("precision.param") + "; set precision.param = \"bf16\", which needs " +
                  "no loss scale, or precision.product = \"param\"");
}

void check_weights(const ConfigView& view, Found& found) {
  if (!sound(view, {"data.path", "data.weights"})) return;
  const size_t weights = view.run.data.weights.size(), entries = view.run.data.path.size();
  if (weights == 0 || weights == entries) return;
  found.push_back(view.cite("data.weights") + concat(" has a weight for ", weights) +
                  (weights == 1 ? " entry, but " : " entries, but ") + view.cite("data.path") +
                  concat(" has ", entries, "; give one weight for each entry of data.path"));
}

void check_documents(const ConfigView& view, Found& found) {
  if (!sound(view, {"data.documents", "data.document_end"})) return;
  if (!view.run.data.document_end || view.run.data.documents == "separate") return;
  found.push_back(view.cite("data.document_end") + " has no effect with " +
                  view.cite("data.documents") +
                  "; set data.documents = \"separate\", or remove it");
}

// Returns whether the samples are read in the order of another program.
bool has_foreign_order(const DataConfig& data) {
  return data.order == "megatron" || data.order == "nanotron";
}

void check_split(const ConfigView& view, Found& found) {
  if (!sound(view, {"data.order", "data.split", "data.holdout", "eval.path"})) return;
  const DataConfig& data = view.run.data;
  if (has_foreign_order(data) && data.holdout > 0 && is_changed(view, *find_key("data.holdout")))
    found.push_back(view.cite("data.holdout") + " has no effect with " + view.cite("data.order") +
                    (data.order == "megatron" ? "; use data.split" : "; use eval.path"));
  if (data.order != "megatron") {
    if (!data.split.empty())
      found.push_back(view.cite("data.split") + " has no effect with " + view.cite("data.order") +
                      (data.order == "nanotron"
                           ? "; use eval.path"
                           : "; set data.order = \"megatron\", or use data.holdout"));
    return;
  }
  if (data.split.empty()) return;
  if (!view.run.eval.path.empty())
    found.push_back(view.cite("data.split") + " would divide the training data, but " +
                    view.cite("eval.path") + " is evaluated; remove one of them");
  if (data.split.size() > 3 || std::accumulate(data.split.begin(), data.split.end(), 0.0) <= 0)
    found.push_back(view.cite("data.split") +
                    ": allowed: one to three shares, of training, evaluation and test, with a sum "
                    "above 0");
}

void check_eval_path(const ConfigView& view, Found& found) {
  if (!sound(view, {"eval.path", "eval.every", "data.holdout"})) return;
  if (view.run.eval.path.empty()) return;
  if (view.run.data.holdout > 0)
    found.push_back(view.cite("data.holdout") +
                    " would hold out training data for evaluation, but " + view.cite("eval.path") +
                    " is evaluated; remove one of them");
  if (view.run.eval.every == 0)
    found.push_back(view.cite("eval.path") + " is never evaluated, because " +
                    view.cite("eval.every") + "; set eval.every above 0, or remove eval.path");
}

void check_evaluation(const ConfigView& view, Found& found) {
  if (!sound(view, {"eval.every", "eval.path", "data.holdout", "data.order"})) return;
  if (has_foreign_order(view.run.data)) return;  // data.holdout does not matter there
  if (view.run.eval.every == 0 || view.run.data.holdout > 0 || !view.run.eval.path.empty()) return;
  found.push_back(view.cite("eval.every") + " has no data to evaluate on, because " +
                  view.cite("data.holdout") +
                  "; set eval.every = 0, data.holdout above 0, or eval.path");
}

void check_best(const ConfigView& view, Found& found) {
  if (!sound(view, {"checkpoint.best", "checkpoint.every", "eval.every"})) return;
  if (!view.run.checkpoint.best) return;
  for (const auto& [key, every] : {std::pair("eval.every", view.run.eval.every),
                                   std::pair("checkpoint.every", view.run.checkpoint.every)}) {
    if (every > 0) continue;
    found.push_back(view.cite("checkpoint.best") + " has no effect, because " + view.cite(key) +
                    "; set " + key + " above 0, or remove checkpoint.best");
  }
}

void check_profile(const ConfigView& view, Found& found) {
  const auto& steps = view.run.profile.steps;
  if (!sound(view, {"profile.steps", "train.steps"}) || !steps) return;
  if ((*steps)[0] > (*steps)[1]) {
    found.push_back(view.cite("profile.steps") + ": the first step comes after the last one");
  } else if ((*steps)[1] > view.run.train.steps) {
    found.push_back(view.cite("profile.steps") + " ends after " + view.cite("train.steps"));
  }
}

// A key that the schedule does not read would be ignored, which is rarely what the user wanted.
void check_schedule(const ConfigView& view, Found& found) {
  if (!sound(view, {"train.schedule"})) return;
  const LrSchedule& schedule = *find_lr_schedule(view.run.train.lr_schedule);
  for (const Key& key : schema()) {
    const bool is_detail = key.name.starts_with("lr_schedule.");
    if (!is_detail || schedule.reads(key.name) || !is_changed(view, key)) continue;
    found.push_back(view.cite(std::string(key.name)) + " has no effect with " +
                    view.cite("train.schedule") + "; remove it, or choose another schedule");
  }
  const LrScheduleConfig& details = view.run.lr_schedule;
  const int64_t warmup = view.run.train.warmup;
  if (sound(view, {"train.warmup", "lr_schedule.total_steps"}) && details.total_steps &&
      *details.total_steps < warmup)
    found.push_back(view.cite("lr_schedule.total_steps") + " is less than " +
                    view.cite("train.warmup") + "; the schedule must not end before its warmup");
}

// A run with train.steps = 0 only saves its initial parameters, so saving must not be disabled.
void check_steps(const ConfigView& view, Found& found) {
  if (!sound(view, {"train.steps", "checkpoint.every"})) return;
  if (view.run.train.steps > 0 || view.run.checkpoint.every > 0) return;
  found.push_back(view.cite("train.steps") + " only saves the initial parameters, but " +
                  view.cite("checkpoint.every") +
                  " disables saving; set checkpoint.every = 1, or train.steps above 0");
}

}  // namespace

std::vector<std::string> contradictions(const ConfigView& view) {
  Found found;
  check_backend(view, found);
  check_absolute(view, found);
  check_division(view, found, "model.dim", "model.heads");
  check_division(view, found, "model.heads", "model.kv_heads");
  check_division(view, found, "train.global_batch", "train.micro_batch");
  check_weights(view, found);
  check_documents(view, found);
  check_split(view, found);
  check_eval_path(view, found);
  check_evaluation(view, found);
  check_best(view, found);
  check_optimizer(view, found);
  check_muon(view, found);
  check_adapters(view, found);
  check_precision(view, found);
  check_fp8(view, found);
  check_products(view, found);
  check_fp16_products(view, found);
  check_loss_scale(view, found);
  check_profile(view, found);
  check_schedule(view, found);
  check_steps(view, found);
  return found;
}

}  // namespace yoke
