#include "sdk/conformance/check.hpp"
#include "sdk/conformance/level.hpp"

namespace yoke::conformance {
namespace {

// What a reader of the document must know before the table.
constexpr const char* kIntroduction = R"(# What `yoke backends check` checks

`yoke backends check FILE.so` runs the checks below against a backend and ends with 0 if all of them passed, 1 if one
failed, 2 for a wrong command line and 3 if there is no such file. Static checks read the file and run nothing of it; every
other check has a process of its own with limits of time and memory, so that a crash, a hang or an `exit` is the verdict of
that check. Ranks are threads of that process. `--deep` adds the checks marked so, `--nproc N` sets the most ranks (4),
`--only ID` picks one check or one level.

This file is written by `yoke backends check --list --format md`; a test compares them.

Not checked, because the contract leaves it to the host or has no such thing: unknown options and their types (the host
checks them before `plan`), files of a checkpoint (the host writes them), stores and allocators (there are none), ranks with
different plans (the host compares them), a ZeRO stage by number (a plan asks for degrees). A backend with the trait
`YOKE_LOCAL_UPDATES` is not measured against the update formula: checks that compare with the reference return early for
more than one rank, all others hold.
)";

std::string row(const Check& c) {
  return "| " + std::string(c.id) + (c.deep ? " (deep)" : "") + " | " + c.title + " | " +
         c.requirement + " | " + fault_name(c.fault) + " | " + c.fix + " |\n";
}

}  // namespace

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kPlugin:
      return "backend";
    case Fault::kToolchain:
      return "tool chain";
    case Fault::kHost:
      return "host";
  }
  return "";
}

const std::vector<Check>& checks() {
  static const std::vector<Check> table = [] {
    std::vector<Check> t;
    add_static_checks(t);
    add_load_checks(t);
    add_argument_checks(t);
    add_size_checks(t);
    add_plan_checks(t);
    add_lifecycle_checks(t);
    add_failure_checks(t);
    add_numeric_checks(t);
    add_invariant_checks(t);
    add_checkpoint_checks(t);
    return t;
  }();
  return table;
}

const Check* find_check(std::string_view id) {
  for (const Check& c : checks()) {
    if (id == c.id) return &c;
  }
  return nullptr;
}

const char* level_name(char level) {
  switch (level) {
    case 'S':
      return "static";
    case 'L':
      return "load";
    case 'C':
      return "contract";
    case 'N':
      return "numerics";
    case 'K':
      return "checkpoint";
    default:
      return "";
  }
}

std::string checks_as_markdown() {
  std::string text = kIntroduction;
  char level = 0;
  for (const Check& c : checks()) {
    if (c.id[0] != level) {
      level = c.id[0];
      text += "\n## " + std::string(1, level) + ": " + level_name(level) +
              "\n| id | holds | how it is checked | usually at fault | how to fix "
              "|\n|---|---|---|---|---|\n";
    }
    text += row(c);
  }
  return text;
}

}  // namespace yoke::conformance
