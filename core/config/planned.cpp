// What the design promises and this release does not do yet.
#include "core/config/schema.hpp"

namespace yoke {
namespace {

struct Planned {
  std::string_view key;
  std::string_view value;  // refused text; ">1" = integers above 1
  std::string_view what;
  std::string_view allowed;  // or what to do instead
};

constexpr Planned kPlanned[] = {
    {"pp_degree", ">1", "pipeline parallelism is not built yet", "allowed: 1"},
    {"precision.param", "fp8", "fp8 is not built yet", "allowed: fp64, fp32, bf16"},
    {"precision.reduce", "fp8", "fp8 is not built yet", "allowed: fp64, fp32, bf16"},
};

bool refuses(const Planned& row, const Value& value) {
  if (row.value == ">1") {
    const auto* number = std::get_if<int64_t>(&value.data);
    return number != nullptr && *number > 1;
  }
  const auto* text = std::get_if<std::string>(&value.data);
  return text != nullptr && *text == row.value;
}

}  // namespace

std::string planned(std::string_view name, const Value& value) {
  for (const Planned& row : kPlanned) {
    if (row.key == name && refuses(row, value)) {
      return std::string(row.what) + "; " + std::string(row.allowed);
    }
  }
  return "";
}

}  // namespace yoke
