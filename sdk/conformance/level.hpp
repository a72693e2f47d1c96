// The parts of the table of checks. checks.cpp puts them together.
#pragma once

#include "sdk/conformance/check.hpp"

namespace yoke::conformance {

// Each function appends the rows of its file, e.g. static_checks.cpp.
void add_static_checks(std::vector<Check>& table);
void add_load_checks(std::vector<Check>& table);
void add_argument_checks(std::vector<Check>& table);
void add_size_checks(std::vector<Check>& table);
void add_plan_checks(std::vector<Check>& table);
void add_forecast_checks(std::vector<Check>& table);
void add_lifecycle_checks(std::vector<Check>& table);
void add_cost_checks(std::vector<Check>& table);
void add_value_checks(std::vector<Check>& table);
void add_peer_checks(std::vector<Check>& table);
void add_failure_checks(std::vector<Check>& table);
void add_numeric_checks(std::vector<Check>& table);
void add_precision_checks(std::vector<Check>& table);
void add_invariant_checks(std::vector<Check>& table);
void add_loss_scale_checks(std::vector<Check>& table);
void add_checkpoint_checks(std::vector<Check>& table);

}  // namespace yoke::conformance
