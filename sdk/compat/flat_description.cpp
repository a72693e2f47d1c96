#include "sdk/compat/flat_description.hpp"

#include "yoke/torch.hpp"

namespace yoke::compat {

YokeDescription flat_description(const char* name,
                                 const char* version,
                                 const char* summary,
                                 const std::vector<const YokeOptionInfo*>& options) {
  static constexpr int32_t kDtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
  YokeDescription d = description(name,
                                  version,
                                  summary,
                                  kDtypes,
                                  YOKE_AXIS_BIT(YOKE_PP) | YOKE_AXIS_BIT(YOKE_DP_REPLICATE) |
                                      YOKE_AXIS_BIT(YOKE_DP_SHARD) | YOKE_AXIS_BIT(YOKE_CP) |
                                      YOKE_AXIS_BIT(YOKE_TP),
                                  1u << 0 | 1u << 1);
  d.vendor = view("Yoke");
  d.torch_tag = view(kTorchTag);
  d.devices |= 1u << YOKE_DEVICE_CUDA;
  set_options(d, options);
  return d;
}

}  // namespace yoke::compat
