// Values that users expect, but that this release does not have, or has under another key. They are
// refused with a specific reason, because "allowed: 1" alone would suggest that the user mistyped
// something. A release that implements one deletes its row.
#include "core/config/schema.hpp"

namespace yoke {
namespace {

struct Planned {
  std::string_view key;
  std::string_view value;    // refused text
  std::string_view what;     // reason for the refusal
  std::string_view allowed;  // accepted values
};

constexpr Planned kPlanned[] = {
    {"precision.param",
     "fp8",
     "only products can be in fp8; set precision.product = \"fp8\" and precision.param = \"bf16\"",
     "allowed: fp64, fp32, bf16, fp16"},
    {"precision.reduce",
     "fp8",
     "gradients cannot be reduced in fp8",
     "allowed: fp64, fp32, bf16, fp16"},
};

bool refuses(const Planned& row, const Value& value) {
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
