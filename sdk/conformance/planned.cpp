#include "sdk/conformance/planned.hpp"

#include <algorithm>

#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

void collect_refusal(void* ctx, const YokeRefusal* r) {
  if (r == nullptr || r->header.struct_id != YOKE_ID_REFUSAL || r->note != 0) return;
  static_cast<std::vector<PlanRefusal>*>(ctx)->push_back({std::string(view(r->key)),
                                                          std::string(view(r->given)),
                                                          std::string(view(r->allowed)),
                                                          std::string(view(r->hint))});
}

// Returns values to try for an option, without its default.
std::vector<std::string> other_values(const YokeOptionInfo& o) {
  std::vector<std::string> values;
  if (o.type == YOKE_OPTION_BOOL) values = {"true", "false"};
  if (o.type == YOKE_OPTION_INT) {
    for (const double v : {1, 2, 3})
      if (o.min > o.max || (v >= o.min && v <= o.max))
        values.push_back(std::to_string(static_cast<int>(v)));
  }
  if (o.type == YOKE_OPTION_STRING) {
    std::string_view rest = view(o.choices);
    while (!rest.empty()) {
      values.emplace_back(rest.substr(0, rest.find('|')));
      rest.remove_prefix(std::min(rest.size(), values.back().size() + 1));
    }
  }
  std::erase(values, view(o.default_value));
  return values;
}

// The decay rate of Muon's moment is that of AdamW's first moment, so that gradient_factor() is the
// same for all parameters.
constexpr double kMuonMomentum = kBeta1;

std::string optimizer_name(const RunSpec& spec) {
  for (const OptimizerKind& o : optimizers())
    if (o.kind == spec.kind && o.momentum == spec.momentum) return o.name;
  return concat("an optimizer of kind ", spec.kind);
}

// Describes those settings of a run that may make plan refuse it.
std::string run_text(const RunSpec& spec) {
  std::string text = degrees_text(spec.degrees) + " in " + dtype_name(spec.model.dtype) + " with " +
                     optimizer_name(spec);
  if (spec.reduce_dtype != 0) text += concat(", reduced in ", dtype_name(spec.reduce_dtype));
  return text;
}

}  // namespace

std::span<const OptimizerKind> optimizers() {
  static constexpr OptimizerKind all[] = {{YOKE_ADAMW, 0, "adamw"},
                                          {YOKE_SGD, 0.9, "sgd with momentum"},
                                          {YOKE_SGD, 0, "sgd"},
                                          {YOKE_ADAM, 0, "adam"},
                                          {YOKE_ADAMW_UNCORRECTED, 0, "adamw without correction"},
                                          {YOKE_ADAM_UNCORRECTED, 0, "adam without correction"},
                                          {YOKE_LION, 0, "lion"},
                                          {YOKE_MUON, kMuonMomentum, "muon"}};
  return all;
}

Degrees along(std::initializer_list<std::pair<int, int32_t>> degrees) {
  Degrees all;
  all.fill(1);
  for (const auto& [axis, degree] : degrees) all[axis] = degree;
  return all;
}

std::string degrees_text(const Degrees& degrees) {
  std::string text;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (degrees[axis] <= 1) continue;
    text += concat(text.empty() ? "" : " x ", yoke_degree_key(axis), " ", degrees[axis]);
  }
  return text.empty() ? "1 rank" : text;
}

int32_t RunSpec::world() const {
  return static_cast<int32_t>(yoke_degree_product(degrees.data()));
}

std::vector<std::string> RunSpec::moments() const {
  if (kind == YOKE_SGD)
    return momentum != 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>();
  if (kind == YOKE_LION) return {"exp_avg"};
  return {"exp_avg", "exp_avg_sq"};
}

bool is_hidden_matrix(const YokeModelSummary& model, uint64_t i) {
  const auto lists = [&](const YokeBlock& block) {
    const int64_t* end = block.params + block.num_params;
    return std::find(block.params, end, static_cast<int64_t>(i)) != end;
  };
  const YokeParameter& p = *model.params[i];
  return p.trainable != 0 && p.ndim == 2 && !lists(*model.blocks[0]) &&
         !lists(*model.blocks[model.num_blocks - 1]);
}

std::vector<std::string> RunSpec::moments_of(const YokeModelSummary& model, uint64_t i) const {
  if (model.params[i]->trainable == 0) return {};
  if (kind == YOKE_MUON && is_hidden_matrix(model, i)) return {"exp_avg"};
  return moments();
}

double RunSpec::gradient_factor() const {
  if (kind == YOKE_SGD) return 1;
  return kind == YOKE_LION ? 1 / (1 - kBeta2) : 1 / (1 - kBeta1);
}

Planned::Planned(Subject& subject, const ParallelBackend& backend, const RunSpec& spec)
    : err(make_error()),
      subject_(subject),
      backend_(backend),
      spec_(spec),
      description_(description_of(backend)) {
  model_ = subject.test_bed.make_model(spec.model, description_.torch_tag);
  options = subject.test_bed.options(description_, spec.options);
  optimizer.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  optimizer.kind = spec.kind;
  optimizer.beta1 = kBeta1;
  optimizer.beta2 = kBeta2;
  optimizer.eps = kEps;
  optimizer.momentum = spec.momentum;
  optimizer.weight_decay = spec.weight_decay;
  optimizer.clip = spec.clip;
  optimizer.lr = kPeakRate;
  plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  plan.optimizer = &optimizer;
  plan.world_size = spec.world();
  std::copy(spec.degrees.begin(), spec.degrees.end(), plan.degree);
  plan.global_batch = spec.global_batch;
  plan.micro_batch = spec.micro_batch;
  plan.param_dtype = spec.model.dtype;
  plan.reduce_dtype = spec.reduce_dtype;
  args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  args.header.next = subject.test_bed.plan_extensions();
  args.model = model_->model().summary;
  args.options = options.data;
  args.num_options = options.size;
  args.refuse = collect_refusal;
  args.refuse_ctx = &refusals;
}

int32_t Planned::ask() {
  refusals.clear();
  err = make_error();
  return call_backend("plan", [&] { return backend_.plan(&args, &plan, &err); });
}

bool Planned::accepts() {
  if (ask() != YOKE_OK || !refusals.empty()) return false;
  return yoke_degree_product(plan.degree) == plan.world_size;
}

std::string Planned::refusals_text() const {
  std::string text;
  for (const PlanRefusal& r : refusals)
    text += (text.empty() ? "" : "; ") + r.key + " = " + r.given + " (allowed: " + r.allowed + ")";
  if (text.empty()) text = "no refusal was reported";
  return err.text[0] == 0 ? text : text + "; " + err.text;
}

void Planned::accept() {
  const int32_t code = ask();
  if (code != YOKE_OK || !refusals.empty())
    throw NotRun(concat("plan refuses ", run_text(spec_), ": ", refusals_text()));
  // An unset degree means 1 for a backend that does not use that axis.
  for (int32_t& degree : plan.degree) degree = std::max(degree, 1);
  const int64_t product = yoke_degree_product(plan.degree);
  if (product != plan.world_size) {
    throw Failed(concat("plan accepted ",
                        plan.world_size,
                        " rank(s), but the product of its degrees is ",
                        product));
  }
  const int32_t data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
  if (plan.micro_batch == 0) plan.micro_batch = plan.global_batch / data_ranks;
  if (plan.reduce_dtype == 0) plan.reduce_dtype = yoke_default_reduce_dtype(plan.param_dtype);
}

std::vector<RunSpec> variants(Subject& subject,
                              const ParallelBackend& backend,
                              const RunSpec& spec) {
  std::vector<RunSpec> accepted;
  const YokeDescription d = description_of(backend);
  for (uint64_t i = 0; i < d.num_options; ++i) {
    for (const std::string& value : other_values(*d.options[i])) {
      RunSpec other = spec;
      if (!other.options.emplace(view(d.options[i]->key), value).second) continue;
      Planned planned(subject, backend, other);
      if (planned.accepts()) accepted.push_back(other);
    }
  }
  return accepted;
}

void Planned::stepped() const {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    if (plan.degree[axis] > 1) subject_.axes_run |= YOKE_AXIS_BIT(axis);
}

RunSpec accepted_variant(Subject& subject, const ParallelBackend& backend, RunSpec spec) {
  Planned plain(subject, backend, spec);
  if (plain.accepts()) return spec;
  const auto others = variants(subject, backend, spec);
  if (!others.empty()) return others.front();
  plain.accept();  // throws with the refusals
  return spec;
}

RunSpec basic_run(Subject& subject, const ParallelBackend& backend, int steps) {
  const YokeDescription d = description_of(backend);
  const int32_t* end = d.param_dtypes + d.num_param_dtypes;
  RunSpec spec;
  spec.steps = steps;
  std::string refused;
  for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_F16}) {
    if (std::find(d.param_dtypes, end, dtype) == end) continue;
    spec.model.dtype = dtype;
    for (const OptimizerKind& optimizer : optimizers()) {
      spec.kind = optimizer.kind;
      spec.momentum = optimizer.momentum;
      Planned planned(subject, backend, spec);
      if (planned.accepts()) return spec;
      if (refused.empty()) refused = planned.refusals_text();
    }
  }
  throw NotRun("plan refuses one rank in every declared dtype, with every optimizer: " + refused);
}

RunSpec short_run(Subject& subject, const ParallelBackend& backend) {
  RunSpec spec = basic_run(subject, backend, 3);
  spec.micro_batch = 4;
  return spec;
}

}  // namespace yoke::conformance
