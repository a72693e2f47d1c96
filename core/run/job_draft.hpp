// A job under construction, shared by the files that make jobs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/run/job.hpp"

namespace yoke {

// The model family of the run.
struct DraftModel {
  Family family;
  OptionList options;
  ModelInfo info;
};

// A job under construction. A member is empty until its value is known, and stays empty after a
// fault.
struct Draft {
  LoadedConfig config;
  LoadedBackend backend;
  std::unique_ptr<InnerBackends> inner;
  int32_t world_size;
  std::optional<OptionList> options{};
  std::optional<DraftModel> model{};
  std::optional<DataSet> data{};
  Samples samples{};
  Shapes stored_shapes{};
  std::unique_ptr<RunPlan> plan{};
  bool on_cuda = false;
  std::vector<std::string> notes = config.notes;
  std::vector<std::string> faults{};

  // Runs f and turns what it throws into faults.
  template <class F>
  void attempt(F&& f) {
    try {
      f();
    } catch (const Refused&) {
      throw;  // nothing else can be checked
    } catch (const ConfigError& e) {
      faults.insert(faults.end(), e.faults().begin(), e.faults().end());
    } catch (const Error& e) {
      faults.push_back(e.what());
    }
  }
};

// Returns the arguments of the family's functions.
FamilyArgs family_args(const RunConfig& run, const OptionList& options, int32_t param_dtype);

// If the backend reads the config of another program, lets it plan, and returns what that config
// says about keys of training which the run leaves unset. Returns nothing if the draft has a fault,
// which the plan that follows reports, or if the run asks for none.
std::vector<OtherValue> values_of_other_config(Draft& draft);

// Lets the backend fill in the plan, then checks the completed plan against the rules for mesh and
// batch. The draft has options and a model.
void make_plan(Draft& draft);

}  // namespace yoke
