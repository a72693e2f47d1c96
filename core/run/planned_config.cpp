#include "core/run/planned_config.hpp"

#include <map>
#include <utility>

#include "core/config/value.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {

LoadedConfig with_plan(LoadedConfig config, const YokePlan& plan, const std::string& backend) {
  std::map<std::string, std::string> chosen{
      {"train.micro_batch", concat(plan.micro_batch)},
      {"precision.reduce", toml_string(dtype_name(plan.reduce_dtype))}};
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    chosen[yoke_degree_key(axis)] = concat(plan.degree[axis]);
  for (Resolved& item : config.values) {
    const auto value = chosen.find(item.key);
    if (!item.value.empty() || value == chosen.end()) continue;
    item.value = value->second;
    item.origin = "chosen by " + backend;
  }
  return config;
}

}  // namespace yoke
