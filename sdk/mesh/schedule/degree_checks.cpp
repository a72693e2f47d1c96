#include "sdk/mesh/schedule/degree_checks.hpp"

#include <numeric>

#include "yoke/plan.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

constexpr int64_t kMostDivisors = 1024;  // largest degree that a message lists

}  // namespace

void check_tensor_parallel(const YokeModelSummary& model,
                           const YokePlan& plan,
                           PlanReport& report) {
  const int64_t tp = plan.degree[YOKE_TP];
  if (tp <= 1) return;
  int64_t legal = 0;  // every divisor of it is a legal degree
  const YokeParameter* odd = nullptr;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    // One refusal is enough: the fix, hints from the model family, is the same for all of them.
    if (param.tp_cut == 0) {
      report.refuse("tp_degree",
                    concat(tp),
                    "1",
                    concat("the model does not say how parameter '",
                           view(param.name),
                           "' may be cut; give its family tensor-parallel hints "
                           "(BlockList::tp)"));
      return;
    }
    if (param.tp_cut < 0) continue;
    // A degree is legal if it divides tp_parts of every parameter, and so their gcd.
    legal = std::gcd(legal, param.tp_parts);
    if (param.tp_parts % tp != 0 && odd == nullptr) odd = &param;
  }
  if (odd == nullptr) return;
  report.refuse("tp_degree",
                concat(tp),
                list_text(divisors(legal, kMostDivisors)),
                concat("parameter '",
                       view(odd->name),
                       "' consists of ",
                       odd->tp_parts,
                       " parts (heads, rows or columns), each of which must stay on one rank"));
}

// Context parallelism cuts the inputs along the sequence, sequence parallelism the activations.
void check_sequence(const YokeModelSummary& model,
                    const YokePlan& plan,
                    const SequenceCuts& cuts,
                    PlanReport& report) {
  const int64_t cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  const std::string length = concat("data.seq_len = ", model.seq_len);
  if (cp > 1 && model.seq_len == 0) {
    report.refuse("cp_degree",
                  concat(cp),
                  "1",
                  "the inputs of this model are not sequences, so there is nothing to cut");
    return;
  }
  // In head-tail order each rank holds two parts of the sequence, one from the front and one from
  // the back, which gives all ranks equal work under a causal mask.
  const int64_t parts = cuts.head_tail ? 2 : 1;
  if (cp > 1 && model.seq_len % (cp * parts) != 0) {
    report.refuse("cp_degree",
                  concat(cp),
                  model.seq_len % parts == 0
                      ? list_text(divisors(model.seq_len / parts, kMostDivisors))
                      : "1",
                  parts == 2 ? concat("twice the degree must divide ",
                                      length,
                                      cuts.one_part_hint.empty() ? "" : "; ",
                                      cuts.one_part_hint)
                             : concat("the degree must divide ", length));
    return;
  }
  if (tp <= 1 || !cuts.sequence_parallel || model.seq_len == 0) return;
  // Sequence parallelism cuts what context parallelism has left of the sequence.
  if (model.seq_len % (cp * tp) == 0) return;
  report.refuse("tp_degree",
                concat(tp),
                concat("degrees that, times cp_degree, divide ", length),
                concat("change data.seq_len, or ", cuts.whole_sequence_hint));
}

}  // namespace yoke::mesh
