#include "sdk/conformance/layouts.hpp"

#include <algorithm>

#include "sdk/conformance/library.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int kAxes[] = {YOKE_PP, YOKE_DP_REPLICATE, YOKE_DP_SHARD, YOKE_CP, YOKE_TP};

bool is_data(int axis) {
  return axis == YOKE_DP_REPLICATE || axis == YOKE_DP_SHARD;
}

// The data axes train the model with odd sizes. The other axes need a model that can be divided.
RunSpec spec_for(Subject& subject, const ParallelBackend& backend, const Degrees& degrees) {
  RunSpec spec = basic_run(subject, backend);
  const bool data_only = degrees[YOKE_PP] == 1 && degrees[YOKE_CP] == 1 && degrees[YOKE_TP] == 1;
  spec.model.kind = data_only ? ModelSpec::kOdd : ModelSpec::kSequence;
  spec.degrees = degrees;
  for (const int32_t degree : degrees)
    if (degree == 3) spec.global_batch = 6;
  return spec;
}

// With the trait YOKE_BY_OPTIONS, plan may refuse a declared axis or dtype under some options.
// Returns whether `ask` succeeds. A backend without that trait is not asked, and the result is
// true.
template <class F>
bool can(const ParallelBackend& backend, F&& ask) {
  if ((description_of(backend).traits & YOKE_BY_OPTIONS) == 0) return true;
  try {
    ask();
    return true;
  } catch (const NotRun&) {
    return false;
  }
}

// Adds the layout with these degrees, unless plan refuses it. Only check C33 reports such a refusal
// as a failure.
void add_if_accepted(std::vector<RunSpec>& specs,
                     Subject& subject,
                     const ParallelBackend& backend,
                     const Degrees& degrees) {
  try {
    specs.push_back(accepted_variant(subject, backend, spec_for(subject, backend, degrees)));
  } catch (const NotRun&) {
  }
}

std::vector<RunSpec> two_along(Subject& subject, const ParallelBackend& backend, bool data_only) {
  std::vector<RunSpec> specs;
  for (const int axis : declared_axes(subject, backend)) {
    subject.axes_declared |= YOKE_AXIS_BIT(axis);
    if (subject.nproc < 2) continue;
    if (data_only && !is_data(axis)) continue;
    add_if_accepted(specs, subject, backend, along({{axis, 2}}));
  }
  return specs;
}

}  // namespace

std::vector<int> declared_axes(Subject& subject, const ParallelBackend& backend) {
  std::vector<int> axes;
  for (const int axis : kAxes) {
    const bool declared = (description_of(backend).axes & YOKE_AXIS_BIT(axis)) != 0;
    if (declared && can(backend, [&] {
          accepted_variant(subject, backend, spec_for(subject, backend, along({{axis, 2}})));
        }))
      axes.push_back(axis);
  }
  return axes;
}

std::vector<int32_t> declared_dtypes(Subject& subject, const ParallelBackend& backend) {
  const YokeDescription d = description_of(backend);
  std::vector<int32_t> dtypes;
  for (uint64_t i = 0; i < d.num_param_dtypes; ++i) {
    RunSpec spec = basic_run(subject, backend);
    spec.model.dtype = d.param_dtypes[i];
    if (can(backend, [&] { Planned(subject, backend, spec).accept(); }))
      dtypes.push_back(d.param_dtypes[i]);
  }
  return dtypes;
}

std::vector<RunSpec> two_ranks(Subject& subject, const ParallelBackend& backend) {
  return two_along(subject, backend, false);
}

std::vector<RunSpec> two_data_ranks(Subject& subject, const ParallelBackend& backend) {
  return two_along(subject, backend, true);
}

std::vector<RunSpec> four_ranks(Subject& subject, const ParallelBackend& backend) {
  std::vector<RunSpec> specs;
  if (subject.nproc < 4) return specs;
  const std::vector<int> axes = declared_axes(subject, backend);
  for (const int axis : axes) add_if_accepted(specs, subject, backend, along({{axis, 4}}));
  for (size_t i = 0; i < axes.size(); ++i) {
    for (size_t j = i + 1; j < axes.size(); ++j)
      add_if_accepted(specs, subject, backend, along({{axes[i], 2}, {axes[j], 2}}));
  }
  return specs;
}

std::string layout_text(const RunSpec& spec) {
  std::string text = degrees_text(spec.degrees);
  for (const auto& [key, value] : spec.options) text += ", " + key + " = " + value;
  return text;
}

std::vector<RunSpec> small_layouts(Subject& subject, const ParallelBackend& backend) {
  std::vector<RunSpec> specs = two_data_ranks(subject, backend);
  specs.insert(specs.begin(), basic_run(subject, backend));
  return specs;
}

std::vector<RunSpec> one_and_two_ranks(Subject& subject, const ParallelBackend& backend) {
  std::vector<RunSpec> specs = two_ranks(subject, backend);
  specs.insert(specs.begin(), basic_run(subject, backend));
  return specs;
}

std::vector<RunSpec> three_ranks(Subject& subject, const ParallelBackend& backend) {
  std::vector<RunSpec> specs;
  if (subject.nproc < 3) return specs;
  for (const int axis : declared_axes(subject, backend))
    add_if_accepted(specs, subject, backend, along({{axis, 3}}));
  return specs;
}

void require_layouts(const std::vector<RunSpec>& layouts,
                     Subject& subject,
                     const ParallelBackend& backend,
                     int32_t ranks) {
  if (!layouts.empty()) return;
  if (description_of(backend).axes == 0) throw NotRun("it declares no axis");
  if (subject.nproc < ranks) throw NotRun(concat("needs --nproc ", ranks));
  for (const int axis : kAxes) {
    if ((description_of(backend).axes & YOKE_AXIS_BIT(axis)) == 0) continue;
    accepted_variant(subject, backend, spec_for(subject, backend, along({{axis, ranks}})));
  }
  throw NotRun(concat("it declares no data axis for ", ranks, " ranks"));
}

}  // namespace yoke::conformance
