// deepspeed_stub: DeepSpeed's ZeRO stages 0 to 3 on the neutral contract alone, without LibTorch.
// Start reading here; README.md gives the order of the other files.
#include <memory>

#include "plugins/deepspeed_stub/comm.hpp"
#include "plugins/deepspeed_stub/config/ds_config.hpp"
#include "plugins/deepspeed_stub/engine.hpp"
#include "plugins/deepspeed_stub/plan.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {
namespace {

class ZeroContext final : public Context {
 public:
  explicit ZeroContext(const YokeInitArgs& args)
      : plan_(*args.plan), settings_(settings_of(args)), host_(*args.host), device_(host_) {
    const uint32_t axis = YOKE_AXIS_BIT(data_axis(settings_.stage));
    comms_ = {
        Comm(host_, axis, "reduce"), Comm(host_, axis, "gather"), Comm(host_, axis, "scalars")};
  }

  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<Engine>(model, plan_, settings_, comms_, device_, host_);
  }

 private:
  const YokePlan& plan_;
  Settings settings_;
  const YokeHost& host_;
  const Device device_;
  Comms comms_;
};

class DeepspeedStub : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
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

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals) const override {
    complete_plan(args, plan, refusals);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    return std::make_unique<ZeroContext>(args);
  }
};

}  // namespace
}  // namespace yoke::deepspeed_stub

YOKE_EXPORT_BACKEND(yoke::deepspeed_stub::DeepspeedStub)
