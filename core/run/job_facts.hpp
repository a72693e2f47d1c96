// What must be equal on all ranks of a run: programs, data, weights and the configuration.
#pragma once

#include <string>

#include "core/control/introduction.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Returns the facts about this rank's job. Files are described by their sizes and by a checksum of
// at most 4 MiB sampled over them, which takes a millisecond. `versions`: facts about this program
// that come first. Throws Error if a file cannot be read.
Introduction job_facts(const Job& job, const Introduction& versions);
// Returns the description of the training data among them: "20000 bytes, sample 1a2b3c4d". Throws
// Error if a file cannot be read.
std::string data_contents(const Job& job);

}  // namespace yoke
