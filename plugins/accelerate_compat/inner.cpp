#include "plugins/accelerate_compat/inner.hpp"

#include <algorithm>

namespace yoke::accelerate_compat {
namespace {

const YokeBackends* service_of(const YokePlanArgs& args) {
  for (const YokeHeader* h = args.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == YOKE_ID_BACKENDS) return reinterpret_cast<const YokeBackends*>(h);
  }
  return nullptr;
}

const YokeBackends* service_of(const YokeHost& host) {
  return reinterpret_cast<const YokeBackends*>(
      host.get_service(host.ctx, "yoke.backends/1", sizeof(YokeBackends)));
}

std::string as_text(const YokeOption& option) {
  if (option.type == YOKE_OPTION_BOOL) return option.int_value != 0 ? "true" : "false";
  if (option.type == YOKE_OPTION_INT) return std::to_string(option.int_value);
  return std::string(view(option.string_value));
}

// "; it is ddp.yaml:3: ...", if the refused key is a degree that the config sets.
std::string said_by(const YokeString& key,
                    const Strategy& strategy,
                    const AccelerateConfig& config) {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (view(key) == kDegreeKeys[axis] && config.is_given(strategy.from[axis]))
      return "; it is " + config.label(strategy.from[axis]);
  }
  return "";
}

// The handles of the inner backend behind the classes of the author's kit.
class InnerModel final : public Wrapped {
 public:
  InnerModel(const ParallelBackend& table, YokeContext* context, const YokeModel& model)
      : table_(table) {
    result_.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    YokeError err = make_error();
    check(table_.wrap_model(context, &model, &result_, &err), err);
  }
  ~InnerModel() override { table_.destroy_model(&result_.model); }

  YokeWrapResult wrap_result() const override { return result_; }
  YokeStepResult step(const YokeStepArgs& args) override {
    YokeStepResult out{};
    out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
    YokeError err = make_error();
    check(table_.step(result_.model, &args, &out, &err), err);
    return out;
  }
  void checkpoint(const YokeCheckpointArgs& args) override {
    YokeError err = make_error();
    check(table_.checkpoint(result_.model, &args, &err), err);
  }

 private:
  const ParallelBackend& table_;
  YokeWrapResult result_{};
};

class InnerContext final : public Context {
 public:
  InnerContext(const ParallelBackend& table, const YokeInitArgs& args) : table_(table) {
    YokeError err = make_error();
    check(table_.init(&args, &context_, &err), err);
  }
  ~InnerContext() override { table_.destroy(&context_); }
  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<InnerModel>(table_, context_, model);
  }

 private:
  const ParallelBackend& table_;
  YokeContext* context_ = nullptr;
};

}  // namespace

Inner::Inner(const YokePlanArgs& args) : Inner(service_of(args)) {}
Inner::Inner(const YokeHost& host) : Inner(service_of(host)) {}

Inner::Inner(const YokeBackends* backends) {
  if (backends == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                std::string("all but DDP is done by ") + kName +
                    ", for which the host's service yoke.backends/1 is needed; this host has none");
  }
  opened_.header = YOKE_HEADER(YokeInnerBackend, YOKE_ID_INNER_BACKEND);
  YokeError err = make_error();
  check(backends->open(backends->ctx, kName, YOKE_ALL_AXES, &opened_, &err), err);
  options_.assign(opened_.options, opened_.options + opened_.num_options);
}

void Inner::set(const std::vector<InnerOption>& options,
                const AccelerateConfig& config,
                std::vector<Finding>& findings) {
  for (const InnerOption& wanted : options) {
    const auto option = std::find_if(options_.begin(), options_.end(), [&](const YokeOption& o) {
      return view(o.key) == wanted.key;
    });
    const std::string key = std::string(kName) + "." + wanted.key;
    if (option == options_.end())
      throw Error(YOKE_FAILED_PRECONDITION, "this " + std::string(kName) + " has no option " + key);
    if (option->given != 0 && as_text(*option) != wanted.value) {
      findings.push_back({key,
                          as_text(*option),
                          wanted.value + " or unset",
                          config.label(wanted.from) + " = " + config.shown(wanted.from) +
                              " says otherwise; change one of them"});
    }
    texts_.push_back(std::make_unique<std::string>(wanted.value));
    if (option->type == YOKE_OPTION_INT) option->int_value = std::stoll(wanted.value);
    if (option->type == YOKE_OPTION_BOOL) option->int_value = wanted.value == "true" ? 1 : 0;
    if (option->type == YOKE_OPTION_STRING) option->string_value = view(*texts_.back());
  }
}

void Inner::plan(const YokePlanArgs& args,
                 const Strategy& strategy,
                 const AccelerateConfig& config,
                 YokePlan& plan,
                 Refusals& refusals) const {
  struct Forward {
    const YokePlanArgs& args;
    const Strategy& strategy;
    const AccelerateConfig& config;
    Refusals& refusals;
  } forward{args, strategy, config, refusals};
  YokePlanArgs inner = args;
  inner.options = options_.data();
  inner.num_options = options_.size();
  inner.refuse_ctx = &forward;
  inner.refuse = [](void* ctx, const YokeRefusal* r) {
    auto& to = *static_cast<Forward*>(ctx);
    if (r->note != 0) return to.args.refuse(to.args.refuse_ctx, r);
    to.refusals.refuse(view(r->key),
                       view(r->given),
                       view(r->allowed),
                       std::string(view(r->hint)) + said_by(r->key, to.strategy, to.config));
  };
  const int before = refusals.count();
  YokeError err = make_error();
  const int32_t code = opened_.table->plan(&inner, &plan, &err);
  if (refusals.count() == before) check(code, err);
}

std::unique_ptr<Context> Inner::init(const YokeInitArgs& args) const {
  YokeInitArgs inner = args;
  inner.options = options_.data();
  inner.num_options = options_.size();
  inner.host = opened_.host;
  return std::make_unique<InnerContext>(*opened_.table, inner);
}

}  // namespace yoke::accelerate_compat
