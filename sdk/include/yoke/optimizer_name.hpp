// What a run file calls an optimizer, for messages. Does not need LibTorch.
#pragma once

#include <string>

#include "yoke/parallel_backend.h"

namespace yoke {

// Returns the name of a YokeOptimizer.kind: "adamw", "lion" ...
inline std::string optimizer_name(int32_t kind) {
  switch (kind) {
    case YOKE_SGD:
      return "sgd";
    case YOKE_ADAMW:
      return "adamw";
    case YOKE_ADAM:
      return "adam";
    case YOKE_ADAMW_UNCORRECTED:
      return "adamw without bias correction";
    case YOKE_ADAM_UNCORRECTED:
      return "adam without bias correction";
    case YOKE_LION:
      return "lion";
    case YOKE_MUON:
      return "muon";
    default:
      return "unknown kind " + std::to_string(kind);
  }
}

}  // namespace yoke
