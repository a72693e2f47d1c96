// Finds the rank that slows the others down, from the time that each rank computes per step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace yoke {

// All ranks of a step wait for the slowest one, so the length of a step says nothing about who is
// slow. The time that a rank computes itself, without its waits, does. It is compared over windows
// of ten steps, because single steps differ by chance; a rank is reported if it is the slowest in
// two windows in a row.
class StragglerWatch {
 public:
  struct Straggler {
    int32_t rank;
    double factor;  // its time per step over the median of all ranks
    int64_t since;  // first step of the two windows
  };

  explicit StragglerWatch(int32_t ranks) : at_(ranks), since_(ranks) {}

  // Takes what a rank reports: the steps that it has completed, and the seconds that it has
  // computed for them. Returns a straggler when a window ends in which there is one.
  std::optional<Straggler> take(int32_t rank, int64_t step, double seconds);

  static constexpr double kFactor = 1.5;
  static constexpr int64_t kWindow = 10;  // steps

 private:
  struct Progress {
    int64_t step = 0;
    double seconds = 0;
  };
  std::vector<Progress> at_, since_;  // now, and at the beginning of the window
  int32_t suspect_ = -1;              // the slowest rank of the window before
  int64_t suspect_since_ = 0;
};

}  // namespace yoke
