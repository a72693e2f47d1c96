// Check N22, and the part of N4 on gradients: the precision in which gradients are added up.
//
// Losses say little about it: a gradient that is cut to 8 bits changes them by less than the bound
// of fp32. So the gradient itself is compared. It is what the optimizer has after one step without
// clipping: the first moment, up to a factor.
#include "sdk/conformance/precision_checks.hpp"

#include <algorithm>
#include <cmath>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Returns the largest relative distance between the gradient of a tensor and the one in the state,
// and the name of the tensor. |x| is the Euclidean norm.
std::pair<double, std::string> worst_gradient(const RunSpec& spec,
                                              const State& state,
                                              const State& gradients) {
  const double factor = spec.gradient_factor();
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [key, gradient] : gradients) {
    const std::string name = key.substr(0, key.rfind('/'));
    const auto found = state.find(name + "/" + spec.moments().front());
    if (found == state.end()) throw Failed("no rank shows the moments of " + name, {"K8", ""});
    const WholeTensor& moment = found->second;
    double squares = 0, distance = 0;
    for (int64_t i = 0; i < gradient.count(); ++i) {
      squares += std::pow(gradient.at(i), 2);
      distance += std::pow(factor * moment.at(i) - gradient.at(i), 2);
    }
    if (squares > 0) worst = std::max(worst, {std::sqrt(distance / squares), name});
  }
  return worst;
}

bool keeps_gradients(const ParallelBackend& b, const RunSpec& spec) {
  const uint32_t traits = description_of(b).traits;
  return !spec.moments().empty() && (traits & (YOKE_OWN_UPDATE | YOKE_LOCAL_UPDATES)) == 0;
}

std::string accumulates_wide(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const std::vector<int32_t> dtypes = declared_dtypes(subject, b);
  std::string tried;
  for (const auto& [dtype, reduce, factor, bound] :
       {std::tuple{YOKE_F32, YOKE_F64, int64_t{1} << 20, 1e-4},
        std::tuple{YOKE_BF16, YOKE_F32, int64_t{1} << 12, 5e-2},
        std::tuple{YOKE_BF16, YOKE_F64, int64_t{1} << 12, 5e-2}}) {
    RunSpec spec = basic_run(subject, b, 1);
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end() || !keeps_gradients(b, spec))
      continue;
    spec.model.dtype = dtype;
    spec.reduce_dtype = reduce;
    spec.micro_batch = 2;
    spec.clip = spec.weight_decay = 0;
    if (!Planned(subject, b, spec).accepts()) continue;
    const std::string what = concat(dtype_name(dtype), " reduced in ", dtype_name(reduce));
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      model.fault_injection().loss_factor_in_positions = true;
      Batch batch(instance.split(), 1);
      batch.cancel(0, 3, factor);
      const State expected = reference_gradient(subject, spec.model, batch.batch());
      instance.must(instance.step(batch, 1, spec.lr(1)), "step");
      const auto [off, name] = worst_gradient(spec, assemble({instance.save()}), expected);
      if (!(off <= bound))
        throw Failed(concat("with ", what, ", the gradient of ", name, " is off by ", off) +
                     concat(" of its norm if those of two micro-batches cancel; allowed: ", bound));
    });
    tried += (tried.empty() ? "" : ", ") + what;
  }
  if (tried.empty()) throw NotRun("plan accepts no reduce_dtype that is wider than param_dtype");
  return tried;
}

constexpr Check kRows[] = {
    {"N22",
     "gradients are added up in reduce_dtype",
     "The gradients of two large micro-batches cancel, and those of two small ones remain. In "
     "every "
     "dtype, with a reduce_dtype that is wider, the sum is that of the small ones.",
     "accumulate and reduce in plan->reduce_dtype",
     accumulates_wide},
};

}  // namespace

void expect_gradients(Subject& subject, const ParallelBackend& b, RunSpec spec) {
  if (!keeps_gradients(b, spec) || spec.model.dtype != YOKE_F32) return;
  constexpr double kBound = 1e-5;
  spec.steps = 1;
  spec.clip = spec.weight_decay = 0;
  Batch batch({spec.global_batch, spec.global_batch}, 1);
  const State expected = reference_gradient(subject, spec.model, batch.batch());
  const auto [off, name] = worst_gradient(spec, train(subject, b, spec).state, expected);
  if (off <= kBound) return;
  const std::string text = concat("the gradient of ", name, " is off by ", off) +
                           concat(" of its norm in fp32; allowed: ", kBound);
  throw Failed(concat("with ", layout_text(spec), ", ", text));
}

void add_precision_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
