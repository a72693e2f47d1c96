// Finds the rank that slows the others down, from the time that each rank computes per step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace yoke {

// All ranks of a step wait for the slowest one, so the length of a step says nothing about who is
// slow. The time that a rank computes itself, without its waits, does. It is compared over windows
// of at least ten steps, because single steps differ by chance. Only ranks with the same pp rank,
// which compute the same stage of the pipeline, are compared: the factor of a rank is its time per
// step over the median of its stage, of two middle times the lower one. A rank is reported if it
// has the largest factor in two windows in a row, above kFactor each time. A rank that is alone in
// its stage is never reported. The first steps of each start of the run are left out, because they
// fill caches and memory pools.
class StragglerWatch {
 public:
  struct Straggler {
    int32_t rank;
    double factor;  // its time per step over the median of the ranks of its pipeline stage
    int64_t since;  // first step of the first of the windows in a row in which it was found
  };

  explicit StragglerWatch(int32_t ranks) : ranks_(ranks) {}

  // Takes what a rank reports: its pp rank, the step that it is in (0 = none yet), and the seconds
  // that it has computed since its start. rank: below the number of ranks. Returns a straggler when
  // a window ends in which a rank is found that was also found in the window before. Not
  // thread-safe.
  std::optional<Straggler> take(int32_t rank, int64_t pp_rank, int64_t step, double seconds);

  static constexpr double kFactor = 1.5;
  static constexpr int64_t kWarmup = 5;   // steps; as in the comparison of backends
  static constexpr int64_t kWindow = 10;  // steps

 private:
  struct Progress {
    int64_t step = 0;
    double seconds = 0;
  };
  struct Rank {
    int64_t pp_rank = 0;
    int64_t first = 0;   // first step that was reported; 0 = none
    Progress at, since;  // now, and at the beginning of the window; step 0 = in the warm-up
    double per_step() const {
      return (at.seconds - since.seconds) / static_cast<double>(at.step - since.step);
    }
  };
  std::map<int64_t, double> medians() const;

  std::vector<Rank> ranks_;
  int32_t suspect_ = -1;  // the slowest rank of the window before
  int64_t suspect_since_ = 0;
};

}  // namespace yoke
