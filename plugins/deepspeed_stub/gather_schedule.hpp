// Which parameters are gathered and freed at ZeRO stage 3, and when. The schedule knows neither
// values nor ranks: an Actor carries it out, on the arrays of a rank or only by counting bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plugins/deepspeed_stub/config/settings.hpp"
#include "plugins/deepspeed_stub/layout.hpp"

namespace yoke::deepspeed_stub {

// Returns which parameters always stay whole: those of at most param_persistence_threshold
// elements, in the order of the model, except for one that would raise their total above
// model_persistence_threshold.
std::vector<bool> persistent_params(const ModelSpec& model, const Settings& settings);

// The schedule of one model. Uses of blocks are numbered as in Weights. All methods are
// deterministic, so all ranks gather the same parameters in the same order.
class GatherSchedule {
 public:
  // Carries the schedule out. Gathers are finished in the order in which they were started.
  class Actor {
   public:
    virtual ~Actor() = default;
    virtual void start_gather(const std::vector<int64_t>& params) = 0;  // params: at least one
    virtual void finish_gather() = 0;  // finishes the oldest gather
    virtual void drop_gathers() = 0;   // discards all gathers that a failed pass has left
    // Frees a parameter that is not persistent and is whole, or was part of a discarded gather.
    virtual void free_whole(int64_t param) = 0;
  };

  // All arguments must outlive the schedule.
  GatherSchedule(const ModelSpec& model, const Settings& settings, Actor& actor);

  // As persistent_params().
  bool is_persistent(int64_t param) const { return params_[param].persistent; }

  // As the methods of Weights.
  void begin_pass(bool backward);
  void acquire(int64_t use);
  void release(int64_t use);
  // Gathers those of `params` that are persistent, in buckets, and waits for them.
  void gather_persistent(const std::vector<int64_t>& params);

 private:
  enum class State {
    kSliced,     // only slices exist
    kGathering,  // a gather is in flight
    kWhole,
  };
  struct Param {
    State state = State::kSliced;
    bool persistent = false;
  };

  int64_t block_of(int64_t use) const;
  // Returns the first use of the parameter after `use` in this pass, or -1 if there is none.
  int64_t next_use(int64_t param, int64_t use) const;
  void start(std::vector<int64_t> params);
  void finish();
  void prefetch(int64_t use);
  void free_whole(int64_t param);

  const ModelSpec& model_;
  const Settings& settings_;
  Actor& actor_;
  std::vector<Param> params_;
  std::deque<std::vector<int64_t>> gathers_;  // parameters of each gather in flight, oldest first
  std::vector<int64_t>
      elements_before_;        // total size of the blocks of all earlier uses, for each use
  int64_t uses_ = 0;           // number of uses of this pass
  int64_t live_elements_ = 0;  // elements whole or in flight, except for persistent ones
};

}  // namespace yoke::deepspeed_stub
