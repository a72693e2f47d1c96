// deepspeed_stub: DeepSpeed's ZeRO stages 0 to 3 on the C contract alone, without LibTorch.
//
// Start reading here; README.md lists the other files in reading order.
#include <memory>

#include "plugins/deepspeed_stub/config/inline_options.hpp"
#include "plugins/deepspeed_stub/engine.hpp"
#include "plugins/deepspeed_stub/plan.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {
namespace {

class DeepspeedStub : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16, YOKE_F16};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description(
          "deepspeed_stub",
          "0.1.0",
          "DeepSpeed's ZeRO stages 0 to 3 from a ds_config.json, without LibTorch",
          dtypes,
          YOKE_AXIS_BIT(YOKE_DP_REPLICATE) | YOKE_AXIS_BIT(YOKE_DP_SHARD),
          1u << 0 | 1u << 1 | 1u << 2 | 1u << 3);
      d.vendor = view("Yoke");
      if (cuda_platform() != nullptr) d.devices |= 1u << YOKE_DEVICE_CUDA;
      set_options(d, option_infos());
      return d;
    }();
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
}  // namespace yoke::deepspeed_stub

YOKE_EXPORT_BACKEND(yoke::deepspeed_stub::DeepspeedStub)
