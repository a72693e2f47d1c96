// A text for notes about runs in 16 bits. They reduce gradients in fp32 by default, and most other
// programs in the dtype of the parameters.
#pragma once

#include <string>
#include <string_view>

#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {

// program: "Accelerate", with what else the difference depends on in front; dtype: that of the
// parameters.
inline std::string reduction_hint(std::string_view program, int32_t dtype) {
  const std::string name = dtype_name(dtype);
  return concat("gradients are reduced in fp32; ",
                program,
                " reduces them in ",
                name,
                ", as precision.reduce = \"",
                name,
                "\" does here");
}

}  // namespace yoke::compat
