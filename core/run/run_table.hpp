// The table that is printed before the first step: the settings of the run and its expected costs.
#pragma once

#include <string>
#include <vector>

#include "core/run/job.hpp"
#include "core/run/stage_costs.hpp"

namespace yoke {

// Returns the lines of the table that say what is trained, and how: model, backend, precision,
// batch.
std::vector<std::string> job_table(const Job& job);

// Returns the lines of the whole table: those of job_table(), data, how often the whole run reads
// each source of it (epochs), memory per rank, traffic per rank, run. Memory and traffic are those
// of the rank that needs the most memory; a pipeline has a line for each coordinate along pp.
// first_step: number of steps that the run has already done.
std::vector<std::string> run_table(const Job& job,
                                   const std::vector<StageCosts>& stages,
                                   const std::string& run_dir,
                                   int64_t first_step);

// Returns "memory: predicted 44.3 MiB a rank, measured 63.6 MiB", and what was measured. measured:
// the most of any rank in bytes, of tensors on a device, or by which a process grew.
std::string used_memory_text(const std::vector<StageCosts>& stages,
                             int64_t measured,
                             bool on_device);

// Returns "trained on 4,800 sequences (614,400 tokens): 0.0803 epochs of data/novels.txt" for the
// first `samples` samples of a run.
std::string trained_text(const Job& job, int64_t samples);

}  // namespace yoke
