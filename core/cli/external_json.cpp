#include "core/cli/external_json.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/model/hf_config.hpp"
#include "core/model/model_dims.hpp"

namespace yoke {
namespace {

// Returns a path, or a list of paths, as absolute paths. An empty path stays empty.
nlohmann::ordered_json absolute_paths(const nlohmann::ordered_json& paths) {
  if (paths.is_string()) {
    const auto path = paths.get<std::string>();
    return path.empty() ? path : std::filesystem::absolute(path).string();
  }
  auto list = nlohmann::ordered_json::array();
  for (const auto& path : paths) list.push_back(absolute_paths(path));
  return list;
}

}  // namespace

std::string external_json(const LoadedConfig& config, int64_t steps) {
  nlohmann::ordered_json run;
  const auto origins = nlohmann::ordered_json::parse(origins_json(config));
  for (const auto& [key, entry] : origins.items()) run[key] = entry.at("value");
  run["train.steps"] = steps;
  for (const char* key : {"data.path", "eval.path"}) run[key] = absolute_paths(run[key]);
  const std::vector<std::string> ours = hf_families();
  const std::string family = model_family(config.run.model);
  if (std::find(ours.begin(), ours.end(), family) != ours.end()) {
    const ModelDims d = model_dims(config.run.model);
    run.update({{"model.family", family},
                {"model.dim", d.dim},
                {"model.layers", d.layers},
                {"model.heads", d.heads},
                {"model.kv_heads", d.kv_heads},
                {"model.ffn_dim", d.ffn_dim},
                {"model.vocab", d.vocab},
                {"model.tied", d.tied},
                {"model.rope_theta", d.rope_theta},
                {"model.norm_eps", d.norm_eps}});
  }
  return run.dump(1) + "\n";
}

}  // namespace yoke
