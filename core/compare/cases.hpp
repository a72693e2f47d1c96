// The cases of a comparison, parsed from the command line or a run file. Does not need LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace yoke::compare {

// The name of the reference run, with which all cases are compared.
inline constexpr char kReference[] = "reference";

// CaseSpec is one variant of the run that is compared: `yoke train` with some overrides, or an
// external command.
struct CaseSpec {
  std::string name;                    // unique; letters, digits, '.', '_' and '-'
  std::vector<std::string> overrides;  // texts "key=value"
  std::optional<int> nproc;            // ranks to start; unset = the product of the given degrees
  std::string command;                 // command for /bin/sh; "" = yoke train
  bool external() const { return !command.empty(); }
};

// Parses "NAME:key=value,key=value"; the key nproc is the number of ranks. Throws Error
// (INVALID_ARGUMENT).
CaseSpec parse_case(const std::string& text);
// Parses "NAME=COMMAND". Throws Error (INVALID_ARGUMENT).
CaseSpec parse_external(const std::string& text);
// Returns every [[compare.case]] of a run file. Its keys are name, nproc, external = "COMMAND", and
// any key of the run. Relative paths that exist beside the run file are those; `notes` gets a
// sentence for each that exists in the current folder, too. Throws Error (INVALID_ARGUMENT) with
// file and line.
std::vector<CaseSpec> cases_of_file(const std::string& path, std::vector<std::string>& notes);
// Throws Error (INVALID_ARGUMENT) if a name is not allowed or is given twice.
void check_names(const std::vector<CaseSpec>& cases);

// Returns `base`, without the items whose key is also in `over`, followed by `over`.
std::vector<std::string> merged(const std::vector<std::string>& base,
                                const std::vector<std::string>& over);

// Returns "" if two cases train the same model in the same way. Otherwise returns an error message
// with every key of model, data, seed, batch and optimizer in which `other` differs from `first`.
// Precision, and everything that may change when a run is resumed, may differ.
std::string incomparable(const CaseSpec& first,
                         const LoadedConfig& a,
                         const CaseSpec& other,
                         const LoadedConfig& b);

}  // namespace yoke::compare
