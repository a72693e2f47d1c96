// Event files for TensorBoard, with torchtitan's names of the scalars. Three small messages,
// encoded here: LibTorch carries a protobuf of its own, beside which another one does not live
// well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/files.hpp"
#include "core/metrics/metrics.hpp"

namespace yoke {

struct Scalar {
  std::string tag;
  float value = 0;
};

// What a step or an evaluation says. Values that are not finite are left out.
std::vector<Scalar> scalars(const StepMetrics& metrics);
std::vector<Scalar> scalars(const EvalMetrics& metrics);

// One file of a run. One writer; every event is handed to the system at once.
class EventFile {
 public:
  // Makes a new file in `folder` (made if missing). What earlier files of the folder say about
  // steps after last_step belongs to steps that will be done again: TensorBoard drops it. Throws
  // Error naming the path.
  EventFile(const std::string& folder, int64_t last_step);
  void write(int64_t step, const std::vector<Scalar>& scalars);

 private:
  void append(const std::string& event);

  File file_;
  uint64_t size_ = 0;
};

}  // namespace yoke
