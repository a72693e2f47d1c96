#include "tests/unit/accelerate_compat/plan_request.hpp"

#include <gtest/gtest.h>

#include "plugins/accelerate_compat/config/options.hpp"
#include "plugins/accelerate_compat/plan.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

// A backend that makes plans like the plugin, but lacks its LibTorch part.
class PlanOnly : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeDescription description = [] {
      YokeDescription d{};
      d.header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION);
      d.name = view("accelerate_compat");
      d.options = option_infos().data();
      d.num_options = option_infos().size();
      return d;
    }();
    return description;
  }
  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals) const override {
    complete_plan(args, plan, refusals);
  }
  std::unique_ptr<Context> init(const YokeInitArgs&) const override {
    throw Error(YOKE_UNIMPLEMENTED, "not here");
  }
};

// The request in progress. Tests have one thread.
PlanRequest* current = nullptr;

int32_t inner_plan(const YokePlanArgs* args, YokePlan* plan, YokeError*) {
  current->inner_planned = true;
  for (uint64_t i = 0; i < args->num_options; ++i) {
    const YokeOption& option = args->options[i];
    current->inner_options[std::string(view(option.key))] =
        option.type == YOKE_OPTION_STRING ? std::string(view(option.string_value))
                                          : std::to_string(option.int_value);
  }
  if (plan->reduce_dtype == 0) plan->reduce_dtype = YOKE_F32;
  if (!current->inner_refuses) return YOKE_OK;
  PlanReport(*args).refuse("tp_degree", "3", "1, 2", "of the heads");
  return YOKE_INVALID_ARGUMENT;
}

int32_t open_inner(void*, const char* name, uint32_t, YokeInnerBackend* out, YokeError* err) {
  if (!current->inner_exists) return fill(err, YOKE_NOT_FOUND, "backend 'ptd' not found");
  static ParallelBackend table{};
  table.plan = inner_plan;
  static std::vector<YokeOption> options;
  options.clear();
  const std::pair<const char*, int32_t> known[] = {{"unit_bytes", YOKE_OPTION_INT},
                                                   {"reshard_after_forward", YOKE_OPTION_BOOL},
                                                   {"activation_checkpoint", YOKE_OPTION_STRING},
                                                   {"cp_attention", YOKE_OPTION_STRING},
                                                   {"fp8_gather", YOKE_OPTION_BOOL}};
  const std::map<std::string, std::string> defaults = {{"unit_bytes", "1048576"},
                                                       {"reshard_after_forward", "1"},
                                                       {"activation_checkpoint", "none"},
                                                       {"cp_attention", "ring"},
                                                       {"fp8_gather", "0"}};
  for (const auto& [key, type] : known) {
    const auto given = current->inner_given.find(key);
    const std::string& text =
        given == current->inner_given.end() ? defaults.at(key) : given->second;
    YokeOption option{};
    option.key = view(key);
    option.type = type;
    option.given = given != current->inner_given.end();
    option.string_value = view(text);
    if (type != YOKE_OPTION_STRING) option.int_value = std::stoll(text);
    options.push_back(option);
  }
  EXPECT_STREQ(name, "ptd");
  out->table = &table;
  out->options = options.data();
  out->num_options = options.size();
  return YOKE_OK;
}

const YokeBackends kBackends = {YOKE_HEADER(YokeBackends, YOKE_ID_BACKENDS), nullptr, open_inner};

}  // namespace

PlanRequest::PlanRequest(int world, const std::string& yaml) {
  plan.plan.world_size = world;
  plan.plan.param_dtype = YOKE_F32;
  plan.plan.reduce_dtype = 0;
  plan.extensions = &kBackends.header;
  if (!yaml.empty()) plan.options["config_file"] = yaml;
}

std::vector<std::string> PlanRequest::ask() {
  current = this;
  YokeError err = yoke::make_error();
  plan.ask(detail::Table<PlanOnly>::kTable, model.summary(), &err);
  std::vector<std::string> texts;
  lines.clear();
  for (const auto& r : plan.refusals) {
    if (r.note && r.allowed.starts_with('#')) {
      comments.push_back(r.key + " = " + r.given + r.allowed);
      continue;
    }
    if (r.note && !r.allowed.empty()) {
      lines.push_back(r.key + " = " + r.given + " -> " + r.allowed);
      continue;
    }
    std::string text = (r.note ? "note: " : "") + r.key + " = " + r.given;
    if (!r.allowed.empty()) text += "; allowed: " + r.allowed;
    texts.push_back(text + "; " + r.hint);
  }
  return texts;
}

std::vector<std::string> ask(const std::string& yaml, int world) {
  return PlanRequest(world, yaml).ask();
}

}  // namespace yoke::accelerate_compat::testing
