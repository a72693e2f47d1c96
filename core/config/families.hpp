// The names that model.family may have without a worker of the user's own, and the keys of [model]
// that are not left to such a worker.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace yoke {

// "auto" stands for one of the others. core/model/hf_config.cpp has the families themselves.
inline constexpr std::array<std::string_view, 6> kBuiltinFamilies = {
    "auto", "gpt2", "llama", "mistral", "qwen2", "qwen3"};

inline bool is_builtin_family(std::string_view name) {
  return std::find(kBuiltinFamilies.begin(), kBuiltinFamilies.end(), name) !=
         kBuiltinFamilies.end();
}

// Returns true for the names of keys in [model] that the host applies to the models of any family.
inline bool is_key_of_any_family(std::string_view name) {
  return name == "family" || name == "freeze";
}

}  // namespace yoke
