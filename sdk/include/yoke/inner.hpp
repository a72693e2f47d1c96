// A backend that stands on another one, through the host's service "yoke.backends/1": while a plan
// is made it asks the inner one, on a rank it calls it as a host would.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "yoke/backend.hpp"

namespace yoke {

// An opened backend and the options that it gets: those of [its name] in the run file, and what the
// outer one sets. Copies share both.
class InnerBackend {
 public:
  // While a plan is made; valid for the call. Any thread.
  InnerBackend(const YokePlanArgs& args, const std::string& name);
  // On a rank; valid until the outer context is destroyed. Its world is the ranks that differ from
  // this one only in `axes`. Collective over the world.
  InnerBackend(const YokeHost& host, const std::string& name, uint32_t axes);

  const std::string& name() const { return state_->name; }
  const YokeHost& host() const { return *state_->opened.host; }  // of its world; on a rank only
  // NULL = it has no such option.
  const YokeOption* find(std::string_view key) const;
  // value: as in a run file, strings without quotes. Throws Error(FAILED_PRECONDITION) if it has no
  // such option.
  void set(std::string_view key, const std::string& value);

  // Lets it fill `plan`; every refusal and note goes to `remark`. Returns its code, and fills *err.
  int32_t plan(const YokePlanArgs& args,
               YokePlan& plan,
               const std::function<void(const YokeRefusal&)>& remark,
               YokeError* err) const;

  // plan: as the inner one left it; lives until the result is destroyed. Collective over its world.
  std::unique_ptr<Context> init(const YokePlan& plan) const;

 private:
  class Model;
  class Rank;
  struct State {
    std::string name;
    YokeInnerBackend opened{};
    std::vector<YokeOption> options;
    std::vector<std::unique_ptr<std::string>> texts;  // behind options
  };
  static const YokeBackends* service(const YokePlanArgs& args);
  InnerBackend(const YokeBackends* service, const std::string& name, uint32_t axes);

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// ---- The handles of the inner backend behind the classes of the outer one ----------------------

class InnerBackend::Model final : public Wrapped {
 public:
  Model(const ParallelBackend& table, YokeContext* context, const YokeModel& model)
      : table_(table) {
    result_.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    call([&](YokeError* err) { return table_.wrap_model(context, &model, &result_, err); });
  }
  ~Model() override { table_.destroy_model(&result_.model); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  YokeWrapResult wrap_result() const override { return result_; }
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

class InnerBackend::Rank final : public Context {
 public:
  Rank(std::shared_ptr<State> state, const YokePlan& plan) : state_(std::move(state)) {
    YokeInitArgs args{};
    args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
    args.plan = &plan;
    args.options = state_->options.data();
    args.num_options = state_->options.size();
    args.host = state_->opened.host;
    call([&](YokeError* err) { return state_->opened.table->init(&args, &context_, err); });
  }
  ~Rank() override { state_->opened.table->destroy(&context_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<Model>(*state_->opened.table, context_, model);
  }

 private:
  const std::shared_ptr<State> state_;
  YokeContext* context_ = nullptr;
};

// ---- Opening -----------------------------------------------------------------------------------

inline const YokeBackends* InnerBackend::service(const YokePlanArgs& args) {
  for (const YokeHeader* h = args.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == YOKE_ID_BACKENDS) return reinterpret_cast<const YokeBackends*>(h);
  }
  return nullptr;
}

inline InnerBackend::InnerBackend(const YokePlanArgs& args, const std::string& name)
    : InnerBackend(service(args), name, YOKE_ALL_AXES) {}

inline InnerBackend::InnerBackend(const YokeHost& host, const std::string& name, uint32_t axes)
    : InnerBackend(reinterpret_cast<const YokeBackends*>(
                       host.get_service(host.ctx, "yoke.backends/1", sizeof(YokeBackends))),
                   name,
                   axes) {}

inline InnerBackend::InnerBackend(const YokeBackends* service,
                                  const std::string& name,
                                  uint32_t axes) {
  if (service == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "backend '" + name +
                    "' is to do the work, for which the host's service yoke.backends/1 is needed; "
                    "this host has none");
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
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const YokeOption& o) { return view(o.key) == key; });
  return at == all.end() ? nullptr : &*at;
}

inline void InnerBackend::set(std::string_view key, const std::string& value) {
  auto* option = const_cast<YokeOption*>(find(key));
  if (option == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "this " + name() + " has no option " + name() + "." + std::string(key));
  }
  state_->texts.push_back(std::make_unique<std::string>(value));
  if (option->type == YOKE_OPTION_INT) option->int_value = std::stoll(value);
  if (option->type == YOKE_OPTION_DOUBLE) option->double_value = std::stod(value);
  if (option->type == YOKE_OPTION_BOOL) option->int_value = value == "true" ? 1 : 0;
  if (option->type == YOKE_OPTION_STRING) option->string_value = view(*state_->texts.back());
  option->given = 1;
}

inline int32_t InnerBackend::plan(const YokePlanArgs& args,
                                  YokePlan& plan,
                                  const std::function<void(const YokeRefusal&)>& remark,
                                  YokeError* err) const {
  YokePlanArgs inner = copied(args);
  inner.options = state_->options.data();
  inner.num_options = state_->options.size();
  inner.refuse_ctx = const_cast<void*>(static_cast<const void*>(&remark));
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
