// A run calls the functions of the backend's table in the same order as a host: plan, init,
// wrap_model, step, checkpoint, destroy_model, destroy. Planned calls plan; Instance calls the
// others on one rank. train() does both and runs all ranks.
//
// The functions are called directly, without the checks that the real host makes before and after a
// call. A check can therefore pass wrong arguments, or replace the host of one rank.
#include "sdk/conformance/run.hpp"

#include <cmath>
#include <cstring>

#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {

const char* root_of(int32_t ranks) {
  constexpr const char* kChecks[] = {"N1", "N2", "N23"};
  return ranks <= 3 ? kChecks[ranks - 1] : "N3";
}

std::string code_text(int32_t code, const YokeError& err) {
  return concat(code, " ('", err.text, "')");
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
  const int32_t code =
      call_backend("step", [&] { return backend.step(wrapped.model, &args, &result, &err); });
  if (code == YOKE_OK) planned_.stepped();
  return code;
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
  call_backend("destroy", [&] {
    backend.destroy(&context);
    if (instrumented_host_) calls_before_return = instrumented_host_->calls;
  });
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
Split Instance::split(Targets targets) const {
  const YokePlan& p = planned_.plan;
  const int32_t shards = p.degree[YOKE_DP_SHARD];
  const int32_t inner = p.degree[YOKE_CP] * p.degree[YOKE_TP];
  const int32_t data_ranks = p.degree[YOKE_DP_REPLICATE] * shards;
  return {p.global_batch, p.micro_batch, host->rank / inner % data_ranks, data_ranks, targets};
}

// ---- All ranks ----

namespace {

// The results that one rank reported, with one value for each step, and its state at the end.
struct RankResults {
  std::vector<double> loss, weight, norm;
  std::vector<Piece> pieces;
};

// Trains on one rank, from init to destroy.
RankResults train_rank(Instance& instance,
                       TestModel& model,
                       const RunSpec& spec,
                       const RunHooks& hooks) {
  instance.must(instance.init(), "init");
  instance.must(instance.wrap(model.model()), "wrap_model");
  if (hooks.start != nullptr) instance.load(*hooks.start);
  if (hooks.prepare) hooks.prepare(instance, model.fault_injection());
  RankResults results;
  for (int64_t step = hooks.first_step; step < hooks.first_step + spec.steps; ++step) {
    Batch batch(instance.split(spec.targets), step);
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
    if (!std::isnan(instance.result.grad_norm) && !(instance.result.grad_norm >= 0))
      throw Failed(concat("step ", step, " reports grad_norm ", instance.result.grad_norm) +
                   "; allowed: 0 or more, or NaN for unknown");
  }
  results.pieces = instance.save();
  instance.destroy_model();
  instance.destroy();
  return results;
}

void compare_ranks(const std::vector<RankResults>& seen) {
  for (size_t rank = 1; rank < seen.size(); ++rank) {
    for (size_t s = 0; s < seen[0].loss.size(); ++s) {
      const double a[] = {seen[0].loss[s], seen[0].norm[s]};
      const double b[] = {seen[rank].loss[s], seen[rank].norm[s]};
      for (const int i : {0, 1}) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
        throw RanksDiffer(concat(i == 0 ? "the loss" : "grad_norm",
                                 " of step ",
                                 s + 1,
                                 " is ",
                                 a[i],
                                 " on rank 0 and ",
                                 b[i],
                                 " on rank ",
                                 rank,
                                 "; results must be the same on every rank"),
                          {root_of(static_cast<int32_t>(seen.size())), ""});
      }
    }
  }
}

}  // namespace

std::string missing_key(const State& state,
                        const ParallelBackend& backend,
                        const RunSpec& spec,
                        const YokeModelSummary& model) {
  const bool own = (description_of(backend).traits & YOKE_OWN_UPDATE) != 0;
  if (state.count("optimizer/step") == 0) return "optimizer/step";
  for (uint64_t i = 0; i < model.num_params; ++i) {
    const std::string name(view(model.params[i]->name));
    if (state.count(name + "/param") == 0) return name + "/param";
    if (own) continue;
    for (const std::string& kind : spec.moments_of(model, i))
      if (state.count(name + "/" + kind) == 0) return name + "/" + kind;
  }
  return "";
}

namespace {

// Puts the states of all ranks together. Throws Failed if anything is missing, which check K8
// examines.
State whole_state(const ParallelBackend& backend,
                  const TestModel& model,
                  const RunSpec& spec,
                  const std::vector<RankResults>& ranks) {
  std::vector<std::vector<Piece>> pieces;
  for (const RankResults& r : ranks) pieces.push_back(r.pieces);
  State state;
  try {
    state = assemble(pieces);
  } catch (const Failed& e) {
    throw Failed(e.what(), {"K8", ""});
  }
  const std::string missing = missing_key(state, backend, spec, *model.model().summary);
  if (!missing.empty()) throw Failed("no rank shows " + missing + " to checkpoint", {"K8", ""});
  return state;
}

Trace trace_of(Subject& subject,
               const ParallelBackend& backend,
               const RunSpec& spec,
               const std::vector<RankResults>& ranks) {
  const auto model = subject.test_bed.make_model(spec.model, YokeString{"", 0});
  return {ranks[0].loss, ranks[0].weight, ranks[0].norm, whole_state(backend, *model, spec, ranks)};
}

std::string to_bytes(const RankResults& results) {
  std::string bytes;
  for (const auto* values : {&results.loss, &results.weight, &results.norm})
    bytes.append(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(double));
  return bytes + to_bytes(results.pieces);
}

RankResults results_from(std::string_view bytes, int steps) {
  RankResults results;
  const size_t size = static_cast<size_t>(steps) * sizeof(double);
  if (bytes.size() < 3 * size) throw Failed("a rank gave no results");
  for (auto* values : {&results.loss, &results.weight, &results.norm}) {
    values->resize(static_cast<size_t>(steps));
    std::memcpy(values->data(), bytes.data(), size);
    bytes.remove_prefix(size);
  }
  results.pieces = from_bytes(bytes);
  return results;
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
  on_ranks(subject, backend, spec, [&](Instance& instance, TestModel& model) {
    seen[instance.host->rank] = train_rank(instance, model, spec, hooks);
  });
  if (!hooks.ranks_may_differ) compare_ranks(seen);
  return trace_of(subject, backend, spec, seen);
}

Trace train_in_processes(Subject& subject, const ParallelBackend& backend, const RunSpec& spec) {
  Planned planned(subject, backend, spec);
  planned.accept();
  std::vector<RankResults> seen;
  for (const std::string& bytes :
       subject.test_bed.run_processes(planned.plan, [&](const YokeHost& host) {
         const auto model =
             subject.test_bed.make_model(spec.model, planned.description().torch_tag);
         Instance instance(backend, planned, host);
         return to_bytes(train_rank(instance, *model, spec, {}));
       }))
    seen.push_back(results_from(bytes, spec.steps));
  planned.stepped();
  compare_ranks(seen);
  return trace_of(subject, backend, spec, seen);
}

}  // namespace yoke::conformance
