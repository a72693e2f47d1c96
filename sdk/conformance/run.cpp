// A run calls the functions of the backend's table in the same order as a host: plan, init,
// wrap_model, step, checkpoint, destroy_model, destroy. Planned calls plan; Instance calls the
// others on one rank. train() does both and runs all ranks.
//
// The functions are called directly, without the checks that the real host makes before and after a
// call. A check can therefore pass wrong arguments, or replace the host of one rank.
#include "sdk/conformance/run.hpp"

#include <cmath>
#include <mutex>

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

std::string refusals_text(const std::vector<PlanRefusal>& refusals) {
  std::string text;
  for (const PlanRefusal& r : refusals)
    text += (text.empty() ? "" : "; ") + r.key + " = " + r.given + " (allowed: " + r.allowed + ")";
  return text.empty() ? "no refusal was reported" : text;
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

bool accepts(Planned& planned) {
  if (planned.ask() != YOKE_OK || !planned.refusals.empty()) return false;
  return yoke_degree_product(planned.plan.degree) == planned.plan.world_size;
}

}  // namespace

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

// ---- Planning ----

Planned::Planned(Subject& subject, const ParallelBackend& backend, const RunSpec& spec)
    : err(make_error()), backend_(backend), spec_(spec), description_(description_of(backend)) {
  model_ = subject.test_bed.make_model(spec.model, description_.torch_tag);
  options = subject.test_bed.options(description_, spec.options);
  optimizer.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  optimizer.kind = spec.kind;
  optimizer.beta1 = 0.9;
  optimizer.beta2 = 0.95;
  optimizer.eps = 1e-8;
  optimizer.momentum = spec.momentum;
  optimizer.weight_decay = spec.weight_decay;
  optimizer.clip = spec.clip;
  optimizer.lr = 0.05;
  plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  plan.optimizer = &optimizer;
  plan.world_size = spec.world();
  std::copy(spec.degrees.begin(), spec.degrees.end(), plan.degree);
  plan.global_batch = kGlobalBatch;
  plan.micro_batch = spec.micro_batch;
  plan.param_dtype = spec.model.dtype;
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

void Planned::accept() {
  const int32_t code = ask();
  if (code != YOKE_OK || !refusals.empty()) {
    const std::string what =
        concat(degrees_text(spec_.degrees), " with ", dtype_name(spec_.model.dtype));
    const char* separator = err.text[0] != 0 ? "; " : "";
    throw Failed(concat("plan refuses ", what, " (code ", code, "): ", refusals_text(refusals)) +
                 concat(separator, err.text));
  }
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
      if (accepts(planned)) accepted.push_back(other);
    }
  }
  return accepted;
}

bool updates_locally(const ParallelBackend& backend) {
  return (description_of(backend).traits & YOKE_LOCAL_UPDATES) != 0;
}

RunSpec accepted_variant(Subject& subject, const ParallelBackend& backend, RunSpec spec) {
  Planned plain(subject, backend, spec);
  if (accepts(plain)) return spec;
  const auto others = variants(subject, backend, spec);
  if (!others.empty()) return others.front();
  Planned(subject, backend, spec).accept();  // throws with the refusals
  throw Failed(concat("describe declares ",
                      degrees_text(spec.degrees),
                      ", but plan refuses it with every value of every option"));
}

// ---- One rank ----

RunSpec short_run() {
  RunSpec spec;
  spec.steps = 3;
  spec.micro_batch = 4;
  return spec;
}

YokeStepArgs step_args(const YokeBatch* batch, int64_t step, double lr) {
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = batch;
  args.step = step;
  args.lr = lr;
  return args;
}

Instance::Instance(const ParallelBackend& b, const Planned& planned, const YokeHost& h)
    : backend(b), host(&h), err(make_error()), planned_(planned) {
  init_args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  init_args.plan = &planned.plan;
  init_args.options = planned.options.data;
  init_args.num_options = planned.options.size;
  init_args.host = host;
  wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  result.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
}

Instance::~Instance() {
  try {
    destroy_model();
    destroy();
  } catch (const Failed&) {  // another failure is under way and will be reported
  }
}

int32_t Instance::init() {
  err = make_error();
  return call_backend("init", [&] { return backend.init(&init_args, &context, &err); });
}

int32_t Instance::wrap(const YokeModel& model) {
  err = make_error();
  return call_backend("wrap_model",
                      [&] { return backend.wrap_model(context, &model, &wrapped, &err); });
}

int32_t Instance::step(Batch& batch, int64_t step, double lr, uint32_t flags) {
  err = make_error();
  YokeStepArgs args = step_args(&batch.batch(), step, lr);
  args.flags = flags;
  if (planned_.plan.param_dtype == YOKE_F16 && flags == 0) args.loss_scale = loss_scale;
  return call_backend("step", [&] { return backend.step(wrapped.model, &args, &result, &err); });
}

int32_t Instance::checkpoint(int32_t op, const std::function<int32_t(const YokePiece&)>& visit) {
  struct Visit {
    const std::function<int32_t(const YokePiece&)>& visit;
    std::exception_ptr thrown;  // exception of the visitor, which must not pass through the backend
  } ctx{visit, nullptr};
  err = make_error();
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit_ctx = &ctx;
  args.visit = [](void* visit_ctx, const YokePiece* piece, YokeError* e) -> int32_t {
    auto& v = *static_cast<Visit*>(visit_ctx);
    try {
      const int32_t code = v.visit(*piece);
      return code == YOKE_OK ? code : fill(e, code, "the visitor of the check returned an error");
    } catch (...) {
      v.thrown = std::current_exception();
      return fill(e, YOKE_INTERNAL, "the visitor of the check found a fault");
    }
  };
  const int32_t code =
      call_backend("checkpoint", [&] { return backend.checkpoint(wrapped.model, &args, &err); });
  if (ctx.thrown) std::rethrow_exception(ctx.thrown);
  return code;
}

void Instance::destroy_model() {
  call_backend("destroy_model", [&] { backend.destroy_model(&wrapped.model); });
}

void Instance::destroy() {
  call_backend("destroy", [&] { backend.destroy(&context); });
}

void Instance::must(int32_t code, const char* slot) const {
  if (code == YOKE_OK) return;
  const char* text = err.text[0] != 0 ? err.text : "no text";
  throw Failed(concat(
      slot, " returned ", code, " on rank ", host->rank, " of ", host->world_size, ": ", text));
}

std::vector<Piece> Instance::save(int32_t op) {
  std::vector<Piece> pieces;
  must(checkpoint(op,
                  [&](const YokePiece& piece) {
                    pieces.push_back(Piece::copy(piece));
                    if ((piece.view == nullptr) != (op == YOKE_CHECKPOINT_DESCRIBE))
                      throw Failed("piece " + pieces.back().text() +
                                   (piece.view == nullptr ? " has no view on SAVE"
                                                          : " has a view on DESCRIBE"));
                    return YOKE_OK;
                  }),
       "checkpoint");
  return pieces;
}

void Instance::load(const State& state) {
  must(checkpoint(YOKE_CHECKPOINT_LOAD,
                  [&](const YokePiece& piece) { return fill_piece(state, piece); }),
       "checkpoint");
}

InstrumentedHost& Instance::instrument_host() {
  instrumented_host_ = std::make_unique<InstrumentedHost>(*host);
  init_args.host = &instrumented_host_->host();
  return *instrumented_host_;
}

InstrumentedModel& Instance::instrument(const YokeModel& model) {
  return *instrumented_models_.emplace_back(std::make_unique<InstrumentedModel>(model));
}

// Ranks are numbered with tp innermost, then cp, then the data axes. Ranks that differ only in tp
// or cp have the same data rank and get the same samples.
Split Instance::split(bool uneven) const {
  const YokePlan& p = planned_.plan;
  const int32_t shards = p.degree[YOKE_DP_SHARD];
  const int32_t inner = p.degree[YOKE_CP] * p.degree[YOKE_TP];
  const int32_t data_ranks = p.degree[YOKE_DP_REPLICATE] * shards;
  return {p.global_batch, p.micro_batch, host->rank / inner % data_ranks, data_ranks, uneven};
}

// ---- All ranks ----

namespace {

// The results that one rank reported, with one value for each step.
struct RankResults {
  std::vector<double> loss, weight, norm;
};

RankResults train_rank(Instance& instance, const RunSpec& spec, const RunHooks& hooks) {
  RankResults results;
  for (int64_t step = hooks.first_step; step < hooks.first_step + spec.steps; ++step) {
    Batch batch(instance.split(spec.uneven), step);
    instance.must(instance.step(batch, step, spec.lr(step)), "step");
    results.loss.push_back(instance.result.loss_sum / batch.batch().token_weight);
    results.weight.push_back(instance.result.loss_weight);
    results.norm.push_back(instance.result.grad_norm);
    if (instance.result.loss_weight != batch.batch().token_weight) {
      throw Failed(concat("step ",
                          step,
                          " reports loss_weight ",
                          instance.result.loss_weight,
                          ", but the batch has ",
                          batch.batch().token_weight,
                          " targets"));
    }
  }
  return results;
}

void compare_ranks(const std::vector<RankResults>& seen) {
  for (size_t rank = 1; rank < seen.size(); ++rank) {
    for (size_t s = 0; s < seen[0].loss.size(); ++s) {
      const double a[] = {seen[0].loss[s], seen[0].norm[s]};
      const double b[] = {seen[rank].loss[s], seen[rank].norm[s]};
      for (const int i : {0, 1}) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        throw Failed(concat(i == 0 ? "the loss" : "grad_norm",
                            " of step ",
                            s + 1,
                            " is ",
                            a[i],
                            " on rank 0 and ",
                            b[i],
                            " on rank ",
                            rank,
                            "; results must be the same on every rank"));
      }
    }
  }
}

}  // namespace

void on_ranks(Subject& subject,
              const ParallelBackend& backend,
              const RunSpec& spec,
              const std::function<void(Instance& instance, TestModel& model)>& body) {
  Planned planned(subject, backend, spec);
  planned.accept();
  subject.test_bed.run(planned.plan, [&](const YokeHost& host) {
    const auto model = subject.test_bed.make_model(spec.model, planned.description().torch_tag);
    Instance instance(backend, planned, host);
    body(instance, *model);
  });
}

Trace train(Subject& subject,
            const ParallelBackend& backend,
            const RunSpec& spec,
            const RunHooks& hooks) {
  std::vector<RankResults> seen(spec.world());
  std::vector<std::vector<Piece>> pieces(spec.world());
  on_ranks(subject, backend, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    if (hooks.start != nullptr) instance.load(*hooks.start);
    if (hooks.prepare) hooks.prepare(instance, model.fault_injection());
    seen[instance.host->rank] = train_rank(instance, spec, hooks);
    pieces[instance.host->rank] = instance.save();
    instance.destroy_model();
    instance.destroy();
  });
  compare_ranks(seen);
  return {seen[0].loss, seen[0].weight, seen[0].norm, assemble(pieces)};
}

}  // namespace yoke::conformance
