// A model without computation, for tests of code that only needs its parameters.
#pragma once

#include <algorithm>

#include "yoke/error.hpp"

namespace yoke::testing {

// Returns a model whose parameters are zero. The summary must outlive it.
inline YokeModel empty_model(const YokeModelSummary& summary) {
  YokeModel model{};
  model.summary = &summary;
  model.init_param = [](void*, int64_t, int64_t, int64_t count, float* dst, YokeError*) -> int32_t {
    std::fill_n(dst, count, 0.0F);
    return YOKE_OK;
  };
  model.bind_param = [](void*, int64_t, const YokeTensor*, YokeError*) -> int32_t {
    return YOKE_OK;
  };
  return model;
}

}  // namespace yoke::testing
