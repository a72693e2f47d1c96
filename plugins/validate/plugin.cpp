// validate: checks every call between the host and another backend against the contract. Start
// reading here; README.md lists the rules and the other files.
#include <memory>

#include "plugins/validate/plan_rules.hpp"
#include "plugins/validate/wrapped.hpp"
#include "yoke/options.hpp"
#include "yoke/torch.hpp"

namespace yoke::validate {
namespace {

constexpr const char* kName = "validate";

// One rank: the context of the inner backend and all that is watched.
class CheckedContext final : public Context {
 public:
  explicit CheckedContext(const YokeInitArgs& args)
      : CheckedContext(args, Options(args.options, args.num_options)) {}
  ~CheckedContext() override;

  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<CheckedModel>(rank_, context_, model);
  }

 private:
  CheckedContext(const YokeInitArgs& args, const Options& options)
      : host_(*args.host),
        monitor_(
            host_, options.string("on_violation") == "stop", std::string(options.string("trace"))),
        inner_(host_, std::string(options.string("inner")), YOKE_ALL_AXES),
        plan_(*args.plan),
        watched_(host_, YOKE_ALL_AXES, monitor_),
        ranks_(host_),
        description_(described(inner_)),
        rank_{inner_.table(),
              description_,
              plan_,
              monitor_,
              watched_,
              ranks_,
              std::make_shared<ManagedLedger>(monitor_),
              0} {
    copy_arguments();
    check_plan();
    init();
  }
  static YokeDescription described(const InnerBackend& inner) {
    const YokeDescription* description = nullptr;
    call([&](YokeError* err) { return inner.table().describe(&description, err); });
    return copied(*description);
  }
  void copy_arguments();
  void check_plan();
  void check_arguments();
  void init();

  const YokeHost& host_;
  Monitor monitor_;
  const InnerBackend inner_;
  const YokePlan& plan_;
  YokePlan plan_before_{};
  YokeOptimizer optimizer_before_{};
  WatchedHost watched_;
  const Ranks ranks_;
  const YokeDescription description_;
  Rank rank_;
  YokeContext* context_ = nullptr;
};

void CheckedContext::copy_arguments() {
  plan_before_ = copied(plan_);
  optimizer_before_ = copied(*plan_.optimizer);
}

void CheckedContext::check_plan() {
  int64_t product = 1;
  bool complete = plan_.param_dtype != 0 && plan_.reduce_dtype != 0 && plan_.micro_batch > 0;
  for (const int32_t degree : plan_.degree) {
    complete = complete && degree > 0;
    product *= degree;
  }
  const int64_t sequences =
      int64_t{plan_.degree[YOKE_DP_REPLICATE]} * plan_.degree[YOKE_DP_SHARD] * plan_.micro_batch;
  if (complete && product == plan_.world_size && plan_.world_size == host_.world_size &&
      plan_.global_batch % sequences == 0)
    return;
  monitor_.violated(
      Rule::kPlanIsComplete,
      "init",
      concat("the degrees have the product ", product, ", world_size is ", plan_.world_size) +
          concat(", global_batch ", plan_.global_batch, ", micro_batch ", plan_.micro_batch));
  monitor_.require_none();
}

void CheckedContext::init() {
  YokeInitArgs args{};
  args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  args.plan = &plan_;
  args.options = inner_.options().data();
  args.num_options = inner_.options().size();
  args.host = &watched_.host();
  const auto initialise = [&](YokeError* err) {
    const int32_t code = inner_.table().init(&args, &context_, err);
    if ((code == YOKE_OK) == (context_ == nullptr))
      monitor_.violated(Rule::kFailuresAreExplained,
                        "",
                        concat("init returns code ",
                               code,
                               context_ == nullptr ? " without a context" : " and a context"));
    return code;
  };
  try {
    call_backend(monitor_, {.name = "init", .collective = true}, initialise, [&] {
      return Fields().add("backend", inner_.name()).add("world_size", int64_t{host_.world_size});
    });
  } catch (const Error&) {
    inner_.table().destroy(&context_);
    throw;
  }
}

void CheckedContext::check_arguments() {
  const bool same_plan = std::memcmp(&plan_before_.optimizer,
                                     &plan_.optimizer,
                                     plan_before_.header.struct_size - sizeof(YokeHeader)) == 0;
  const bool same_optimizer =
      std::memcmp(&optimizer_before_.kind,
                  &plan_.optimizer->kind,
                  optimizer_before_.header.struct_size - sizeof(YokeHeader)) == 0;
  if (!same_plan || !same_optimizer)
    monitor_.violated(
        Rule::kArgumentsLive,
        "destroy",
        same_plan ? "the optimizer has changed since init" : "the plan has changed since init");
}

// A destructor cannot fail, so a violation here is logged as an error.
CheckedContext::~CheckedContext() {
  guard(nullptr, [&] {
    if (rank_.models > 0)
      monitor_.violated(Rule::kOrderOfCalls, "destroy", concat(rank_.models, " models are left"));
    call_backend(
        monitor_,
        {.name = "destroy"},
        [&](YokeError*) {
          inner_.table().destroy(&context_);
          return YOKE_OK;
        },
        [] { return Fields(); });
  });
  guard(nullptr, [&] {
    rank_.managed->check_released();
    watched_.check_works();
    check_arguments();
    monitor_.log_end(std::string(view(description_.name)));
  });
}

class Validate final : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeOptionInfo rows[] = {
        option_info(YOKE_OPTION_STRING, "inner", "ptd", "", "backend that is checked"),
        option_info(YOKE_OPTION_STRING,
                    "on_violation",
                    "stop",
                    "stop|warn",
                    "whether a violation ends the run or is logged"),
        option_info(YOKE_OPTION_STRING,
                    "trace",
                    "",
                    "",
                    "file for the calls as JSON lines, one file a rank; empty = none"),
    };
    static const auto options = pointers_to(rows);
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16, YOKE_F16};
    static const YokeDescription description = [] {
      YokeDescription d =
          yoke::description(kName,
                            "0.1.0",
                            "checks every call of another backend against the contract",
                            dtypes,
                            (1u << YOKE_NUM_AXES) - 1,
                            0xf);
      d.vendor = view("Yoke");
      d.torch_tag = view(kTorchTag);
      set_options(d, options);
      // What is possible depends on the inner backend. Its plan decides.
      d.traits = YOKE_BY_OPTIONS;
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    const Options options(args.options, args.num_options);
    const std::string name(options.string("inner"));
    if (name.empty() || name == kName)
      return report.refuse("validate.inner",
                           name,
                           "the name of another backend, or its absolute path",
                           "it is the backend that is checked");
    checked_plan(
        InnerBackend(args, name), args, options.string("on_violation") == "warn", plan, report);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    return std::make_unique<CheckedContext>(args);
  }
};

}  // namespace
}  // namespace yoke::validate

YOKE_EXPORT_BACKEND(yoke::validate::Validate)
