// A gather in fp8 changes no result, because products round what was gathered to itself
// (yoke/fp8_params.hpp). That holds only if a parameter has one scale, and if no other operator
// reads it. With tp, the products find the scale of a parameter over all ranks of tp, but a shard
// belongs to one of them; so tp is refused.
#include "plugins/ptd/fp8_gather.hpp"

#include <algorithm>

#include "plugins/ptd/rank_plan.hpp"
#include "yoke/fp8_params.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd {

void check_fp8_gather(const YokeModelSummary& model,
                      const YokePlan& plan,
                      const PtdOptions& options,
                      PlanReport& report) {
  if (!options.fp8_gather) return;
  const auto refuse = [&](const std::string& why) {
    report.refuse("ptd.fp8_gather", "true", "false", why);
  };
  const Fp8Params* const fp8 = fp8_params(model);
  const auto has = [&](Fp8Use use) {
    return fp8 != nullptr && std::count(fp8->uses, fp8->uses + model.num_params, use) > 0;
  };
  if (!has(Fp8Use::kOneScale)) {
    refuse(has(Fp8Use::kManyScales)
               ? "this recipe rounds a parameter with more than one scale; set "
                 "precision.fp8_recipe = \"tensorwise\""
               : "no parameter is used by products in fp8 alone; set precision.product = \"fp8\", "
                 "and shorten precision.fp8_skip if it names all matrices");
  }
  if (shards_of(plan, options) == 1)
    refuse("dp_shards = 1 gathers nothing; set dp_shards to 2 or more");
  if (const int tp = plan.degree[YOKE_TP]; tp > 1) {
    refuse(concat("tp_degree = ",
                  tp,
                  " cuts parameters, whose scales must be those of all their parts; set tp_degree "
                  "= 1"));
  }
}

void choose_fp8_gathers(const YokeModelSummary& model, ModelSpec& spec) {
  const Fp8Use* const uses = fp8_params(model)->uses;
  for (size_t p = 0; p < spec.params.size(); ++p) spec.params[p].fp8 = uses[p] == Fp8Use::kOneScale;
}

int64_t scale_bytes(const UnitMap& map, const YokePlan& plan) {
  const int64_t each = std::max(item_size(plan.param_dtype), item_size(YOKE_F32));
  int64_t bytes = 0;
  for (const Unit& unit : map.units)
    bytes += unit.fp8 ? static_cast<int64_t>(unit.params.size()) * each : 0;
  return bytes;
}

}  // namespace yoke::ptd
