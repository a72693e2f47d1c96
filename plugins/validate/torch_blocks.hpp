// The LibTorch extension of the model that the inner backend gets, with every forward of a block
// checked and traced.
#pragma once

#include <memory>

#include "plugins/validate/monitor.hpp"

namespace yoke::validate {

// Lives as long as the model of the host.
class WatchedTorchModel {
 public:
  virtual ~WatchedTorchModel() = default;
  // The extension that takes the place of the host's, with the same successor in the chain.
  virtual const YokeHeader* header() const = 0;
};

// Returns the extension around that of the model; NULL if the model has none.
std::unique_ptr<WatchedTorchModel> watch_torch_model(const YokeModel& model, Monitor& monitor);

}  // namespace yoke::validate
