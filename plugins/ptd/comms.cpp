#include "plugins/ptd/comms.hpp"

namespace yoke::ptd {

Comms Comms::make(const YokePlan& plan,
                  bool shard_over_cp,
                  bool stages_return,
                  const YokeHost& host) {
  const auto along = [&](std::initializer_list<int> axes, const char* purpose) {
    return comm_along(axes, purpose, plan, host);
  };
  const int with_shards = shard_over_cp ? YOKE_CP : YOKE_DP_SHARD;
  const int with_replicas = shard_over_cp ? YOKE_DP_REPLICATE : YOKE_CP;
  Comms comms;
  comms.unshard = along({YOKE_DP_SHARD, with_shards}, "unshard");
  comms.reduce_grad = along({YOKE_DP_SHARD, with_shards}, "reduce");
  comms.all_reduce_grad = along({YOKE_DP_REPLICATE, with_replicas}, "replicas");
  static_cast<ModelComms&>(comms) = ModelComms::make(plan, stages_return, host);
  if (plan.world_size > 1)
    comms.world = Comm(collectives_of(host), YOKE_ALL_AXES, "scalars", device_type(host));
  return comms;
}

}  // namespace yoke::ptd
