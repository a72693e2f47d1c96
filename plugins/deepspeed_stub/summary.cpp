// The layouts and the schedule follow from the model and the settings alone. They are computed once
// more here, instead of asking the arrays of a rank, so the results need no wrapped model.
#include "plugins/deepspeed_stub/summary.hpp"

#include <algorithm>

#include "plugins/deepspeed_stub/gather_schedule.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

std::vector<Bucket> gradient_buckets(const ModelSpec& model, const Settings& settings, int ranks) {
  const int64_t elements = settings.reduce_bucket_size;
  return settings.stage == 3 ? SliceLayout(model, true, ranks).buckets(elements)
                             : FlatLayout(model, true, ranks).buckets(elements);
}

// With DeepSpeed's default threshold of 100000 elements, stage 3 divides no parameter of a small
// model, which a user would not expect of it.
std::string whole_parameters(const ModelSpec& model, const Settings& settings) {
  const std::vector<bool> persistent = persistent_params(model, settings);
  const auto whole = std::count(persistent.begin(), persistent.end(), true);
  const std::string threshold =
      concat("stage3_param_persistence_threshold = ", settings.param_persistence_threshold);
  if (whole > 0 && whole == static_cast<int64_t>(persistent.size()))
    return concat("; none of the ",
                  whole,
                  " parameters is sharded, because none has more elements than ",
                  threshold);
  return concat("; ", whole, " of ", persistent.size(), " parameters stay whole, by ", threshold);
}

// Counts the elements that gathers of stage 3 put together, padding included.
class GatherCounter final : public GatherSchedule::Actor {
 public:
  GatherCounter(const ModelSpec& model, int ranks) : model_(model), ranks_(ranks) {}
  int64_t elements() const { return elements_; }

  void start_gather(const std::vector<int64_t>& params) override {
    // SliceLayout pads every parameter to a multiple of the ranks.
    for (const int64_t p : params)
      elements_ += (model_.params[p].numel + ranks_ - 1) / ranks_ * ranks_;
  }
  void finish_gather() override {}
  void drop_gathers() override {}
  void free_whole(int64_t) override {}

 private:
  const ModelSpec& model_;
  const int ranks_;
  int64_t elements_ = 0;
};

// Returns the elements that stage 3 gathers in a step: in each pass, and after the update.
int64_t gathered_elements(const ModelSpec& model, const Settings& settings, int ranks, int64_t m) {
  GatherCounter counter(model, ranks);
  GatherSchedule schedule(model, settings, counter);
  const auto uses = static_cast<int64_t>(2 * model.blocks.size());
  schedule.begin_pass(true);
  for (int64_t use = 0; use < uses; ++use) {
    schedule.acquire(use);
    schedule.release(use);
  }
  const int64_t pass = counter.elements();
  schedule.gather_persistent(SliceLayout(model, true, ranks).params());
  return counter.elements() + (m - 1) * pass;
}

}  // namespace

std::string summary_line(const ModelSpec& model, const Settings& settings, int ranks) {
  int64_t gradients = 0;
  for (const ModelSpec::Param& param : model.params) gradients += param.trainable ? param.numel : 0;
  return concat("deepspeed_stub: ZeRO stage ",
                settings.stage,
                " over ",
                ranks,
                " rank(s), ",
                gradients,
                " gradients in ",
                gradient_buckets(model, settings, ranks).size(),
                " bucket(s)",
                settings.stage == 3 ? whole_parameters(model, settings) : "");
}

int64_t micros_of(const YokePlan& plan) {
  return plan.micro_batch < 1 ? 0
                              : plan.global_batch / (int64_t{plan.world_size} * plan.micro_batch);
}

// README.md has the formulas. The options that choose between collectives do not change the sum: a
// bucket is reduced whole, and the slices of all ranks are gathered, or broadcast one by one.
int64_t step_traffic(const ModelSpec& model, const Settings& settings, const YokePlan& plan) {
  const int ranks = plan.world_size;
  const int64_t micros = micros_of(plan);
  if (ranks == 1 || micros == 0) return 0;
  const int64_t reductions = settings.stage < 2 ? 1 : micros;
  const int64_t gradient = item_size(plan.reduce_dtype), param = item_size(plan.param_dtype);
  if (settings.stage == 3) {
    const int64_t reduced = SliceLayout(model, true, ranks).size() * ranks;
    return reductions * reduced * gradient +
           gathered_elements(model, settings, ranks, micros) * param;
  }
  const int64_t all = FlatLayout(model, true, ranks).size();
  return reductions * all * gradient + (settings.stage == 0 ? 0 : all * param);
}

}  // namespace yoke::deepspeed_stub
