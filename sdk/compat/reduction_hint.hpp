// Yoke reduces gradients of 16-bit runs in fp32 by default; most other programs reduce them in the
// dtype of the parameters. This is the text of the notes about the difference.
#pragma once

#include <string>
#include <string_view>

#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {

// program: the subject of the sentence, such as "Accelerate" or "with --use-torch-fsdp2 Megatron".
// dtype: that of the parameters.
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
