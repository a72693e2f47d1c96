// megatron_compat: Megatron-LM's command lines and semantics as a backend.
//
// Start reading here; README.md lists the other files in reading order.
#include <memory>

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/engine.hpp"
#include "plugins/megatron_compat/fsdp.hpp"
#include "plugins/megatron_compat/plan.hpp"
#include "sdk/compat/flat_description.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {
namespace {

class MegatronCompat : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeDescription description = [] {
      YokeDescription d = compat::flat_description(
          "megatron_compat",
          "0.1.0",
          "Megatron-LM's arguments: buckets, distributed optimizer, overlap; FSDP by ptd",
          option_infos());
      d.zero_stages |= 1u << 3;
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    complete_plan(args, plan, report);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    const Settings settings = settings_of(args);
    if (settings.fsdp) return fsdp_context(args, settings);
    return context_of<Engine, Environment>(args);
  }
};

}  // namespace
}  // namespace yoke::megatron_compat

YOKE_EXPORT_BACKEND(yoke::megatron_compat::MegatronCompat)
