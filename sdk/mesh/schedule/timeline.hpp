// When each action of a pipeline runs, if the durations of computations and messages are given.
// Pure.
#pragma once

#include <functional>
#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

struct ActionTime {
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<ActionTime>> ranks;  // one entry for each action of each rank's list
  double end = 0;                              // when the last rank has done its last action
};

// Runs the lists of all ranks of pp side by side, each rank one action after the other. duration:
// time of a computation, in any unit, given the rank and the action; all other actions take no
// time, except that they may wait. message: time from the start of a send until the message has
// arrived. Collectives take no time; ranks wait for each other only at those at the end of the
// step. The lists must have passed check_ranks().
Timeline timeline_of(const std::vector<std::vector<Action>>& lists,
                     const std::function<double(int rank, const Action& action)>& duration,
                     double message = 0);

// Returns, for each rank, the time before the end of the step in which it does not compute.
std::vector<double> idle_times(const Timeline& timeline,
                               const std::vector<std::vector<Action>>& lists);

}  // namespace yoke::mesh
