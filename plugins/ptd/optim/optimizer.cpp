#include "plugins/ptd/optim/optimizer.hpp"

#include <string>

namespace yoke::ptd {

std::unique_ptr<Optimizer> make_optimizer(const YokeOptimizer& config, const ShardState& state) {
  switch (config.kind) {
    case YOKE_ADAMW:
      return make_adamw(config, state);
    case YOKE_SGD:
      return make_sgd(config, state);
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  "ptd has no optimizer of kind " + std::to_string(config.kind) +
                      "; it has YOKE_SGD (1) and YOKE_ADAMW (2)");
  }
}

}  // namespace yoke::ptd
