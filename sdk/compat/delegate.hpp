// Runs a plan with another backend, which already has what the config of another program asks for.
// That backend is opened through the host's service "yoke.backends/1", gets its options from the
// config, and is then called as by a host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/inner.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::compat {

// An option that the other backend gets, and the setting that asks for it.
struct InnerOption {
  std::string key;
  std::string value;  // text as in a run file, but strings without quotes
  // Texts for messages: where the setting is and what it says, as ForeignConfig::label and shown.
  std::string label, shown;
};

// A backend to delegate to, the options that it gets, and the name of the backend that delegates.
struct Delegation {
  const char* to;
  const char* from;
  std::vector<InnerOption> options;
};

// Returns the label of the setting that decides the degree of an axis, "" if none does.
using DegreeLabel = std::function<std::string(int axis)>;

// Lets the other backend complete a plan. Its notes are passed to the host, its refusals to
// `report`. If it refuses an option or a degree that the config sets, the refusal also names the
// setting. An option for which the other backend's section of the run file gives a different value
// is refused, and so is a backend that cannot be opened.
void plan_with(const Delegation& delegation,
               const DegreeLabel& degree_label,
               const YokePlanArgs& args,
               YokePlan& plan,
               PlanReport& report);

// Returns the context of the other backend for a plan that it has completed. args and its plan must
// outlive it. Collective. Throws Error.
std::unique_ptr<Context> init_with(const Delegation& delegation, const YokeInitArgs& args);

}  // namespace yoke::compat
