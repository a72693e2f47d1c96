// What is compared: cases, from the words of the command line. Does not need LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace yoke::compare {

// The name of the run that the others are judged against, if none of them is.
inline constexpr char kReference[] = "reference";

// One way to run the same job. Names are unique, of letters, digits, '.', '_' and '-'.
struct CaseSpec {
  std::string name;
  std::vector<std::string> overrides;  // key=value
  std::optional<int> nproc;            // ranks to start; unset = the product of the given degrees
  std::string command;                 // of an external program, for /bin/sh; "" = yoke train
  bool external() const { return !command.empty(); }
};

// "NAME:key=value,key=value"; the key nproc is the number of ranks. Throws Error(INVALID_ARGUMENT).
CaseSpec parse_case(const std::string& text);
// "NAME=COMMAND". Throws Error(INVALID_ARGUMENT).
CaseSpec parse_external(const std::string& text);
// Every [[compare.case]] of a run file: name, nproc, external = "COMMAND", and keys of the run.
// Throws Error(INVALID_ARGUMENT) naming file and line.
std::vector<CaseSpec> cases_of_file(const std::string& path);
// Throws Error(INVALID_ARGUMENT) for a name that is not allowed, or given twice.
void check_names(const std::vector<CaseSpec>& cases);

// Both lists; of a key in both, the value of `over`.
std::vector<std::string> merged(const std::vector<std::string>& base,
                                const std::vector<std::string>& over);

// Every key of model, data, seed, batch and optimizer in which the configuration of a case differs
// from the first one's, as text; "" = they train the same. Precision and everything that may change
// when a run is resumed may differ.
std::string incomparable(const CaseSpec& first,
                         const LoadedConfig& a,
                         const CaseSpec& other,
                         const LoadedConfig& b);

}  // namespace yoke::compare
