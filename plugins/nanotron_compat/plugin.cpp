// nanotron_compat: nanotron's configuration files and semantics as a backend.
//
// Start reading here; README.md lists the other files in reading order.
#include <memory>

#include "plugins/nanotron_compat/config/config.hpp"
#include "plugins/nanotron_compat/engine.hpp"
#include "plugins/nanotron_compat/plan.hpp"
#include "sdk/compat/flat_description.hpp"
#include "yoke/backend.hpp"

namespace yoke::nanotron_compat {
namespace {

class NanotronCompat : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeDescription description = compat::flat_description(
        "nanotron_compat",
        "0.1.0",
        "nanotron's YAML files: ZeRO over slices of every parameter, fp32 accumulation",
        option_infos());
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    complete_plan(args, plan, report);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    return context_of<Engine, Environment>(args);
  }
};

}  // namespace
}  // namespace yoke::nanotron_compat

YOKE_EXPORT_BACKEND(yoke::nanotron_compat::NanotronCompat)
