#include "sdk/conformance/layouts.hpp"

#include <algorithm>

#include "sdk/conformance/library.hpp"

namespace yoke::conformance {
namespace {

constexpr int kAxes[] = {YOKE_PP, YOKE_DP_REPLICATE, YOKE_DP_SHARD, YOKE_CP, YOKE_TP};

bool is_data(int axis) {
  return axis == YOKE_DP_REPLICATE || axis == YOKE_DP_SHARD;
}

// The data axes train the model with odd sizes. The other axes need a model that can be divided.
RunSpec spec_for(const ParallelBackend& backend, const Degrees& degrees) {
  RunSpec spec;
  const bool data_only = degrees[YOKE_PP] == 1 && degrees[YOKE_CP] == 1 && degrees[YOKE_TP] == 1;
  spec.model.kind = data_only ? ModelSpec::kOdd : ModelSpec::kSequence;
  spec.model.dtype = best_dtype(backend);
  spec.degrees = degrees;
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
  } catch (const Failed&) {
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
    specs.push_back(accepted_variant(subject, backend, spec_for(backend, degrees)));
  } catch (const Failed&) {
  }
}

std::vector<RunSpec> two_along(Subject& subject, const ParallelBackend& backend, bool data_only) {
  std::vector<RunSpec> specs;
  if (subject.nproc < 2) return specs;
  for (const int axis : declared_axes(subject, backend)) {
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
          accepted_variant(subject, backend, spec_for(backend, along({{axis, 2}})));
        }))
      axes.push_back(axis);
  }
  return axes;
}

std::vector<int32_t> declared_dtypes(Subject& subject, const ParallelBackend& backend) {
  const YokeDescription d = description_of(backend);
  std::vector<int32_t> dtypes;
  for (uint64_t i = 0; i < d.num_param_dtypes; ++i) {
    RunSpec spec;
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

int32_t best_dtype(const ParallelBackend& backend) {
  const YokeDescription d = description_of(backend);
  const int32_t* end = d.param_dtypes + d.num_param_dtypes;
  for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16})
    if (std::find(d.param_dtypes, end, dtype) != end) return dtype;
  return d.param_dtypes[0];
}

std::string layout_text(const RunSpec& spec) {
  std::string text = degrees_text(spec.degrees);
  for (const auto& [key, value] : spec.options) text += ", " + key + " = " + value;
  return text;
}

RunSpec single_rank(const ParallelBackend& b, int steps) {
  RunSpec spec;
  spec.model.dtype = best_dtype(b);
  spec.steps = steps;
  return spec;
}

std::vector<RunSpec> small_layouts(Subject& subject, const ParallelBackend& b) {
  std::vector<RunSpec> specs = two_data_ranks(subject, b);
  specs.insert(specs.begin(), single_rank(b));
  return specs;
}

// In fp64, wrong formulas differ by far more than rounding errors. The other bounds only exclude
// large errors.
double tolerance(int32_t dtype) {
  return dtype == YOKE_F64 ? 1e-9 : dtype == YOKE_F32 ? 2e-4 : 5e-2;
}

}  // namespace yoke::conformance
