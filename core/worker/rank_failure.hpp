// How a rank reports the error that ends it.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/world.hpp"
#include "core/run/job.hpp"
#include "yoke/error.hpp"

namespace yoke {

// Returns the exit code of a rank that ends with an error; see core/base/exit_code.hpp.
int exit_code_of(const Error& e);

// Returns what a user does to continue a run that has ended early: "; to continue, ...". Returns ""
// if the run saves no checkpoints.
std::string how_to_continue(const Job& job);

// Returns the error with an explanation and advice if this rank has run out of memory or its device
// has failed. An error that reports the failure of another rank is returned unchanged, because that
// rank has explained it. local_ranks: ranks on this machine, which share its memory. Never throws.
Error in_terms_of_user(const Job& job, const World& world, int32_t local_ranks, const Error& e);

// Reports the failure of this rank to the others. Returns the text for the user. If this rank fails
// only because others were lost, the text begins with the first failure of the run. If the error
// names a rank, it begins with that rank, its host and its process.
std::string explained(World& world, const Error& e);

}  // namespace yoke
