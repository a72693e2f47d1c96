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

// Returns the error, with what it means and what to do if it is about memory or about a device that
// has failed. local_ranks: ranks on this machine, which share the memory of the CPU.
Error in_terms_of_user(const Job& job, const World& world, int32_t local_ranks, const Error& e);

// Tells the other ranks why this one ends. Returns the text for the user: if this rank has only
// lost its peers, it begins with the first cause, which names the rank that was lost.
std::string explained(World& world, const Error& e);

}  // namespace yoke
