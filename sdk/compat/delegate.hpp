// Another backend that runs a plan as a whole, because it already has what a config of another
// program asks for. It is opened through the host's service "yoke.backends/1", gets its options
// from that config, and is then called as by a host.
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

// The constructors throw Error if the host cannot open backends, or cannot open this one. The first
// constructor is used to make a plan. The second one is used on a rank of a run, and is collective.
class Delegate {
 public:
  Delegate(const YokePlanArgs& args, const char* name) : inner_(args, name) {}
  Delegate(const YokeHost& host, const char* name) : inner_(host, name, YOKE_ALL_AXES) {}

  // Sets the options. If the backend's section of the run file gives a different value for one of
  // them, adds a refusal to `messages`.
  void set(const std::vector<InnerOption>& options, PlanMessages& messages);

  // Lets the backend complete the plan. Its notes are passed to the host, its refusals to `report`.
  // If it refuses an option or a degree that the config sets, the refusal also names the setting.
  // degree_label: returns the label of the setting that decides the degree of an axis, "" if none
  // does. Throws Error if the backend fails without a refusal.
  void plan(const YokePlanArgs& args,
            const std::function<std::string(int axis)>& degree_label,
            YokePlan& plan,
            PlanReport& report) const;

  // Returns the context of the backend. plan must outlive it. Collective.
  std::unique_ptr<Context> init(const YokePlan& plan) const { return inner_.init(plan); }

 private:
  std::string label_of(std::string_view key,
                       const std::function<std::string(int axis)>& degree_label) const;

  InnerBackend inner_;
  std::vector<InnerOption> options_;
};

}  // namespace yoke::compat
