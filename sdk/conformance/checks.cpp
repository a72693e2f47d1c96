#include "sdk/conformance/check.hpp"
#include "sdk/conformance/level.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// The text of the document before the tables.
constexpr const char* kIntroduction = R"(# The checks of `yoke backends check`

`yoke backends check FILE.so` runs the checks below on a backend. Each of them passes, fails or is not run. A check is
not run if the backend lacks what it examines, if `plan` refuses its run, or if it needs more ranks than `--nproc`
allows; the reason is printed, and the check does not count as passed. The exit code is

- 0 if no check failed,
- 1 if one failed, if none passed, or if no check could run more than one rank along an axis that `describe` declares
  (this is not examined with `--only`),
- 2 for a wrong command line, and 3 if there is no such file.

Static checks read the file and run none of its code. Every other check runs in a process of its own, with limits of
time and memory, so a crash, a hang or an `exit` fails that check only. The ranks are threads of this process, but for
N24, where they are processes.

The runs use what the backend can do. Their dtype is fp64 if the backend declares it and `plan` accepts it, else fp32,
bf16 or fp16. The optimizer is AdamW if `plan` accepts it, else SGD or another one.

One reason is reported once. Failures that follow from another one, such as those of N5 and N9 from that of N2, are
listed below it. For wrong numbers the reference repeats the run with one usual mistake after the other; if one of them
gives the numbers of the backend, it is named. For a crash the functions on the stack are shown.

- `--deep` adds the checks that are marked with (deep).
- `--nproc N` sets the largest number of ranks. The default is 4.
- `--only ID` selects one check or one level.

`yoke backends check --list --format md` writes this file, and a test compares the two.

Some things are not checked, because the host handles them or because the contract does not have them:

- unknown options and options of the wrong type: the host checks them before it calls `plan`
- the files of a checkpoint: the host writes them
- ranks with different plans: the host compares them
- stores and allocators: the contract has none
- the number of a ZeRO stage: a plan contains degrees, not stages

A backend with the trait `YOKE_LOCAL_UPDATES` does not follow the update formula on several ranks, and checks leave out
a comparison of these layouts with the reference. A backend with `YOKE_OWN_UPDATE` is compared with its own run on one
rank instead; with `YOKE_RANKS_CHANGE_UPDATE`, its layouts of several data ranks are not compared. All other checks
apply.
)";

std::string row(const Check& c) {
  const char* mark = c.deep ? " (deep)" : "";
  const char* fault = fault_name(c.fault);
  return concat(
      "| ", c.id, mark, " | ", c.title, " | ", c.requirement, " | ", fault, " | ", c.fix, " |\n");
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
    add_forecast_checks(t);
    add_lifecycle_checks(t);
    add_cost_checks(t);
    add_value_checks(t);
    add_failure_checks(t);
    add_peer_checks(t);
    add_numeric_checks(t);
    add_precision_checks(t);
    add_invariant_checks(t);
    add_loss_scale_checks(t);
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
      text += concat("\n## ", level, ": ", level_name(level), "\n");
      text +=
          "| id | requirement | how it is checked | usually at fault | how to fix |\n"
          "|---|---|---|---|---|\n";
    }
    text += row(c);
  }
  return text;
}

}  // namespace yoke::conformance
