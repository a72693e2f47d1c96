// A backend that builds on another one, through the host's service "yoke.backends/1". In plan, the
// outer backend calls plan of the inner one. On a rank, it acts as the host of the inner one.
// Does not need LibTorch.
//
//   void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
//     const auto pass_on = [&](const YokeRefusal& r) {
//       args.refuse(args.refuse_ctx, &r);                     // unchanged, or with a different key
//       if (r.note == 0) report.add(1);
//     };
//     yoke::InnerBackend inner(args, "replicas");
//     YokeError err = yoke::make_error();
//     yoke::check(inner.plan(args, plan, pass_on, &err), err);
//   }
//   MyContext(const YokeInitArgs& args)
//       : inner_(yoke::InnerBackend(*args.host, "replicas", kAxes).init(*args.plan)) {}
//
// The inner world may consist of only some of the ranks. With dp_degree 2, dp_shards 2 and an outer
// backend that uses dp_replicate itself, the inner backend is opened along all other axes:
//
//   rank            0  1  2  3
//   dp_replicate    0  0  1  1     the axis of the outer backend
//   dp_shard        0  1  0  1     the inner worlds: ranks {0, 1} and ranks {2, 3}
//   inner rank      0  1  0  1     of world_size 2
//
// The plan that the inner backend receives must describe its own world: the outer backend divides
// world_size and global_batch, sets the degrees of its own axes to 1, and restores them afterwards.
//
// Errors of the inner backend are thrown as yoke::Error with its code, text, rank and step, so they
// reach the host as if the outer backend had failed.
//
// Order of destruction: inner models, then inner contexts, then the outer context.
//
// init returns the inner backend as a Context, whose wrap_model returns a Wrapped: the same classes
// that the outer backend implements, so calls can be forwarded one to one. sdk/examples/diloco.cpp
// is a complete backend.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "yoke/backend.hpp"
#include "yoke/text.hpp"

namespace yoke {

// An opened backend together with the options that it receives: those of its own section in the run
// file, or what the outer backend sets. A handle: its copies share both. One thread at a time.
class InnerBackend {
 public:
  // Opens a backend within plan. name: as for the key parallel_backend of a run file. Valid for the
  // duration of plan. May be called from any thread; not collective.
  //
  // Both constructors throw Error: FAILED_PRECONDITION if the host cannot open other backends, or
  // the error of finding the backend, loading it or checking its options.
  InnerBackend(const YokePlanArgs& args, const std::string& name);
  // Opens a backend on a rank, within init. Its world consists of the ranks that differ from this
  // one only on `axes`, a mask of YOKE_AXIS_BIT. Valid until the outer context is destroyed.
  // Collective over the outer world.
  InnerBackend(const YokeHost& host, const std::string& name, uint32_t axes);

  // Returns the name that was passed to the constructor.
  const std::string& name() const { return state_->name; }

  // Returns the functions of the inner backend, and the options that it receives, for an outer
  // backend that calls the functions itself. init needs both, see YokeInitArgs.
  const ParallelBackend& table() const { return *state_->opened.table; }
  const std::vector<YokeOption>& options() const { return state_->options; }

  // Returns the host of the inner world, with the inner rank, size and collectives. Not available
  // in plan.
  const YokeHost& host() const { return *state_->opened.host; }

  // Returns the current value of an option of the inner backend, or NULL if there is no such
  // option. Valid until the next set().
  const YokeOption* find(std::string_view key) const;
  // Sets an option of the inner backend, which then counts as set by the user. value: as in a run
  // file, strings without quotes. Throws Error(FAILED_PRECONDITION) if there is no such option.
  // Range and choice are not checked again.
  void set(std::string_view key, const std::string& value);

  // Lets the inner backend fill `plan`, which may be a changed copy of the outer one. Each of its
  // refusals and notes is passed to `refuse`, on this thread; exceptions of `refuse` are dropped.
  // Returns the inner backend's code and fills *err, which may be NULL. Does not throw.
  // with_forecasts: whether the inner backend reports forecasts to the host. Set it only if this
  // backend adds nothing to the memory and the traffic of the inner one, and calls plan once.
  int32_t plan(const YokePlanArgs& args,
               YokePlan& plan,
               const std::function<void(const YokeRefusal&)>& refuse,
               YokeError* err,
               bool with_forecasts = false) const;

  // Creates the inner backend's context of this rank. plan: as filled by the inner backend; it must
  // outlive the result. Destroy the result before the outer context. Collective over the inner
  // world. Throws the inner backend's Error.
  std::unique_ptr<Context> init(const YokePlan& plan) const;

 private:
  class Model;
  class Rank;
  // The state that copies of the handle share and that contexts keep alive.
  struct State {
    std::string name;
    YokeInnerBackend opened{};
    std::vector<YokeOption> options;                  // copied from the host; set() changes them
    std::vector<std::unique_ptr<std::string>> texts;  // strings that options point to
  };

  // Returns the service from the extensions of plan's arguments, or NULL.
  static const YokeBackends* service(const YokePlanArgs& args);
  InnerBackend(const YokeBackends* service, const std::string& name, uint32_t axes);

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// ---- The inner backend's handles as Wrapped and Context ----

// The inner backend's model. Calls are forwarded to the inner table; an error code is thrown.
class InnerBackend::Model final : public Wrapped {
 public:
  Model(const ParallelBackend& table, YokeContext* context, const YokeModel& model)
      : table_(table) {
    result_.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    // The result is kept: its handle for the calls below, its byte counts for wrap_result().
    call([&](YokeError* err) { return table_.wrap_model(context, &model, &result_, err); });
  }
  // Destroys the inner model, before the inner context.
  ~Model() override { table_.destroy_model(&result_.model); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the inner byte counts; the outer backend may add its own before it reports them.
  YokeWrapResult wrap_result() const override { return result_; }
  // The result covers the inner world only; the outer backend combines those of several worlds.
  YokeStepResult step(const YokeStepArgs& args) override {
    YokeStepResult out{};
    out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
    call([&](YokeError* err) { return table_.step(result_.model, &args, &out, err); });
    return out;
  }
  void checkpoint(const YokeCheckpointArgs& args) override {
    call([&](YokeError* err) { return table_.checkpoint(result_.model, &args, err); });
  }

 private:
  const ParallelBackend& table_;
  YokeWrapResult result_{};
};

// The inner backend's context. Keeps the options alive, to which init's arguments point.
class InnerBackend::Rank final : public Context {
 public:
  Rank(std::shared_ptr<State> state, const YokePlan& plan) : state_(std::move(state)) {
    // The plan and the options must outlive the context.
    YokeInitArgs args{};
    args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
    args.plan = &plan;
    args.options = state_->options.data();
    args.num_options = state_->options.size();
    args.host = state_->opened.host;
    call([&](YokeError* err) { return state_->opened.table->init(&args, &context_, err); });
  }
  // All models of this context must have been destroyed before.
  ~Rank() override { state_->opened.table->destroy(&context_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The model may be the host's own, with its extensions, if both backends have the same torch_tag.
  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<Model>(*state_->opened.table, context_, model);
  }

 private:
  const std::shared_ptr<State> state_;
  YokeContext* context_ = nullptr;
};

// ---- Opening ----

inline const YokeBackends* InnerBackend::service(const YokePlanArgs& args) {
  for (const YokeHeader* h = args.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == YOKE_ID_BACKENDS) return reinterpret_cast<const YokeBackends*>(h);
  }
  return nullptr;
}

// There are no ranks in plan, so the axes do not matter.
inline InnerBackend::InnerBackend(const YokePlanArgs& args, const std::string& name)
    : InnerBackend(service(args), name, YOKE_ALL_AXES) {}

inline InnerBackend::InnerBackend(const YokeHost& host, const std::string& name, uint32_t axes)
    : InnerBackend(reinterpret_cast<const YokeBackends*>(
                       host.get_service(host.ctx, "yoke.backends/1", sizeof(YokeBackends))),
                   name,
                   axes) {}

// The options are copied, because the host's array is constant and set() changes values.
inline InnerBackend::InnerBackend(const YokeBackends* service,
                                  const std::string& name,
                                  uint32_t axes) {
  if (service == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                concat("backend '",
                       name,
                       "' cannot be opened: this host does not have the service yoke.backends/1"));
  }
  state_->name = name;
  state_->opened.header = YOKE_HEADER(YokeInnerBackend, YOKE_ID_INNER_BACKEND);
  call([&](YokeError* err) {
    return service->open(service->ctx, name.c_str(), axes, &state_->opened, err);
  });
  state_->options.assign(state_->opened.options,
                         state_->opened.options + state_->opened.num_options);
}

inline const YokeOption* InnerBackend::find(std::string_view key) const {
  const auto& all = state_->options;
  // A backend has few options, so a linear search is enough.
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const YokeOption& o) { return view(o.key) == key; });
  return at == all.end() ? nullptr : &*at;
}

inline void InnerBackend::set(std::string_view key, const std::string& value) {
  auto* option = const_cast<YokeOption*>(find(key));
  if (option == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                concat("this version of ", name(), " has no option ", name(), ".", key));
  }
  // The type is the one that the inner backend has declared; a FILE or VARIABLES cannot be set
  // here. A YokeOption borrows its string, so each string is kept at an address that does not
  // change.
  state_->texts.push_back(std::make_unique<std::string>(value));
  if (option->type == YOKE_OPTION_INT) option->int_value = std::stoll(value);
  if (option->type == YOKE_OPTION_DOUBLE) option->double_value = std::stod(value);
  if (option->type == YOKE_OPTION_BOOL) option->int_value = value == "true" ? 1 : 0;
  if (option->type == YOKE_OPTION_STRING) option->string_value = view(*state_->texts.back());
  option->given = 1;
}

inline int32_t InnerBackend::plan(const YokePlanArgs& args,
                                  YokePlan& plan,
                                  const std::function<void(const YokeRefusal&)>& refuse,
                                  YokeError* err,
                                  bool with_forecasts) const {
  // The inner backend receives the same model, its own options, and a callback that calls `refuse`.
  YokePlanArgs inner = copied(args);
  inner.options = state_->options.data();
  inner.num_options = state_->options.size();
  inner.refuse_ctx = const_cast<void*>(static_cast<const void*>(&refuse));
  // The host asks for forecasts by the first extension of the chain.
  const YokeHeader* first = inner.header.next;
  if (!with_forecasts && first != nullptr && first->struct_id == YOKE_ID_FORECASTS)
    inner.header.next = first->next;
  // An exception must not pass through the inner backend, which may be written in C.
  inner.refuse = [](void* ctx, const YokeRefusal* r) {
    guard(nullptr,
          [&] { (*static_cast<const std::function<void(const YokeRefusal&)>*>(ctx))(*r); });
  };
  return state_->opened.table->plan(&inner, &plan, err);
}

inline std::unique_ptr<Context> InnerBackend::init(const YokePlan& plan) const {
  return std::make_unique<Rank>(state_, plan);
}

}  // namespace yoke
