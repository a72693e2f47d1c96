// Event files for TensorBoard. The scalars have torchtitan's names, so that curves of both programs
// can be compared in one window.
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

// Return the scalars of a step or of an evaluation. Values that are not finite are left out.
std::vector<Scalar> scalars(const StepMetrics& metrics);
std::vector<Scalar> scalars(const EvalMetrics& metrics);

// EventFile is one event file of a run. One thread of one rank may use it. Every event is passed to
// the operating system immediately.
class EventFile {
 public:
  // Creates a new file in `folder`, which is created if missing. Earlier files of the folder may
  // have events of steps after last_step, which will be trained again: TensorBoard is instructed to
  // drop them. Throws Error with the path.
  EventFile(const std::string& folder, int64_t last_step);
  void write(int64_t step, const std::vector<Scalar>& scalars);

 private:
  // continues: the folder may have earlier files.
  EventFile(const std::string& folder, int64_t last_step, bool continues);
  void append(const std::string& event);

  File file_;
  uint64_t size_ = 0;
};

}  // namespace yoke
