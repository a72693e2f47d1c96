// With a pipeline, units hold other parameters than on a single rank, so an element has another
// offset in its buffer. Sums over a shard and ring all-reduces add in an order that depends on the
// offset, so both are refused. Floating-point addition is commutative but not associative: two
// addends have the same sum in every order, three need not. Therefore at most two ranks may hold a
// parameter, and at most two blocks may use it.
#include "plugins/ptd/exact_sums.hpp"

#include <string>
#include <vector>

#include "yoke/text.hpp"

namespace yoke::ptd {
namespace {

// Returns the first parameter that more than two blocks use; nullptr if there is none.
const YokeParameter* most_shared(const YokeModelSummary& model) {
  std::vector<int> users(model.num_params, 0);
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) {
      const int64_t param = block.params[i];
      if (++users[param] > 2 && model.params[param]->trainable != 0) return model.params[param];
    }
  }
  return nullptr;
}

}  // namespace

void check_exact_sums(const YokeModelSummary& model,
                      const YokePlan& plan,
                      const PtdOptions& options,
                      PlanReport& report) {
  if (!options.exact_sums) return;
  const auto refuse = [&](const std::string& why) {
    report.refuse("ptd.exact_sums", "true", "false", why);
  };
  const int shards = plan.degree[YOKE_DP_SHARD], replicas = plan.degree[YOKE_DP_REPLICATE];
  const int cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  if (shards > 1)
    refuse(concat("dp_shards = ", shards, " cuts parameters; set dp_shards = 1, or use dp_degree"));
  if (tp > 1) refuse(concat("tp_degree = ", tp, " cuts parameters; set tp_degree = 1"));
  if (cp > 1 && options.shard_over_cp)
    refuse(
        concat("cp_degree = ", cp, " cuts parameters; ptd.shard_over_cp = false keeps them whole"));
  if (replicas * cp > 2)
    refuse(concat("dp_degree ",
                  replicas,
                  " x cp_degree ",
                  cp,
                  " = ",
                  replicas * cp,
                  " ranks sum their gradients, and the rounding of a sum over more than 2 ranks "
                  "depends on the pipeline; use dp_degree x cp_degree of at most 2"));
  if (const YokeParameter* param = most_shared(model); param != nullptr)
    refuse(concat("more than two blocks use parameter '", view(param->name), "'"));
}

}  // namespace yoke::ptd
