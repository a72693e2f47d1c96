// The bound of a dtype tells a wrong formula from rounding. In fp64 that is easy. In fp32 the
// errors of twenty steps are small as well. With 16 bits, AdamW turns the noise of small gradients
// into steps of full length, so single elements say nothing; only losses, norms and whole tensors
// are compared.
#include "sdk/conformance/numbers.hpp"

#include <algorithm>
#include <cmath>

#include "sdk/conformance/diagnosis.hpp"
#include "sdk/conformance/library.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

std::string number(double value) {
  return string_printf("%.12g", value);
}

std::string off(const char* what, size_t step, double value, double expected, double relative) {
  if (std::fabs(value - expected) <= relative * std::max(1e-6, std::fabs(expected))) return "";
  return concat(
      what, " of step ", step + 1, " is ", number(value), ", expected ", number(expected));
}

}  // namespace

Bounds bounds_of(int32_t dtype) {
  if (dtype == YOKE_F64) return {1e-9, 1e-8, 1e-9, 0};
  if (dtype == YOKE_F32) return {2e-4, 2e-3, 2e-4, 0};
  return {5e-2, 1e-1, 0, 1e-1};
}

std::string state_difference(const State& state, const State& expected, const Bounds& bounds) {
  const State a = standard_kinds(state), b = standard_kinds(expected);
  if (bounds.whole == 0) return difference(a, b, bounds.state);
  for (const auto& [key, tensor] : b)
    if (a.count(key) == 0 || a.at(key).shape != tensor.shape) return key + " is missing";
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq", "momentum", "step"}) {
    const double factor = std::string_view(kind) == "param" ? 1 : 4;
    const double off = distance(a, b, kind);
    if (off <= factor * bounds.whole) continue;
    return concat("all tensors of the kind ", kind, " together are off by ", off) +
           concat(" of their norm; allowed: ", factor * bounds.whole);
  }
  return "";
}

std::string difference(const Trace& trace, const Trace& expected, const Bounds& bounds) {
  for (size_t s = 0; s < trace.loss.size(); ++s) {
    std::string text = off("the loss", s, trace.loss[s], expected.loss[s], bounds.loss);
    if (text.empty() && !std::isnan(trace.norm[s]))
      text = off("grad_norm", s, trace.norm[s], expected.norm[s], bounds.norm);
    if (!text.empty()) return text;
  }
  const std::string text = state_difference(trace.state, expected.state, bounds);
  return text.empty() ? "" : concat("after ", trace.loss.size(), " steps, ", text);
}

bool Numbers::predicts(const RunSpec& spec) const {
  const uint32_t traits = description_of(backend_).traits;
  const bool several = spec.degrees[YOKE_DP_REPLICATE] * spec.degrees[YOKE_DP_SHARD] > 1;
  if ((traits & YOKE_LOCAL_UPDATES) != 0) return spec.degrees[YOKE_DP_REPLICATE] == 1;
  return (traits & YOKE_RANKS_CHANGE_UPDATE) == 0 || !several;
}

Trace Numbers::expected(const RunSpec& spec) const {
  if ((description_of(backend_).traits & YOKE_OWN_UPDATE) == 0)
    return reference_trace(subject_, spec);
  RunSpec alone = spec;
  alone.degrees = along({});
  alone.options.clear();
  alone.micro_batch = 0;
  return train(subject_, backend_, alone);
}

void Numbers::expect(const RunSpec& spec) {
  if (!predicts(spec)) {
    left_out_ = degrees_text(spec.degrees);
    return;
  }
  try {
    expect(spec, train(subject_, backend_, spec));
  } catch (const RanksDiffer& e) {
    const Diagnosis diagnosis = diagnose(subject_, backend_, spec);
    throw with_layout(spec, Failed(e.what() + diagnosis.text, {"", diagnosis.fix}));
  } catch (const Failed& e) {
    throw with_layout(spec, e);
  }
}

void Numbers::expect(const RunSpec& spec, const Trace& trace) {
  const std::string text = difference(trace, expected(spec), bounds_of(spec.model.dtype));
  compared_.push_back(layout_text(spec));
  if (text.empty()) return;
  const Diagnosis diagnosis = diagnose(subject_, backend_, spec);
  throw Failed(text + diagnosis.text, {"", diagnosis.fix});
}

std::string Numbers::compared() const {
  if (compared_.empty() && !left_out_.empty())
    throw NotRun("the numbers of " + left_out_ +
                 " cannot be predicted: its ranks update on their own");
  std::string text;
  for (const std::string& layout : compared_)
    if (text.find(layout) == std::string::npos) text += (text.empty() ? "" : "; ") + layout;
  return text;
}

Failed with_layout(const RunSpec& spec, const Failed& failed) {
  Cause cause = failed.cause();
  if (cause.root.empty()) cause.root = root_of(spec.world());
  const std::string text = failed.what();
  if (text.starts_with("with ")) return Failed(text, cause);
  return Failed(concat("with ", layout_text(spec), ": ", text), cause);
}

}  // namespace yoke::conformance
