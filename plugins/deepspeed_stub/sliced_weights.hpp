// Parameters at ZeRO stage 3: every rank keeps a slice of each parameter, and whole parameters
// exist only while blocks use them. Persistent parameters, which are no larger than the persistence
// threshold, always stay whole.
#pragma once

#include <deque>

#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Gathers parameters block by block, and ahead of their use as far as the limits in the settings
// allow. Sizes and limits count elements. All ranks gather the same parameters in the same order.
class SlicedWeights final : public Weights {
 public:
  explicit SlicedWeights(const Setup& setup);  // collective
  int64_t bytes() const override;
  void begin_pass(bool backward) override;
  void acquire(int64_t use) override;
  void release(int64_t use) override;
  void publish(const Update& update) override;

 private:
  enum class State {
    kSliced,     // only slices exist
    kGathering,  // a gather is in flight
    kWhole,      // whole and bound to the model
  };
  struct Param {
    State state = State::kSliced;
    bool persistent = false;
    Array memory;  // the whole parameter; empty unless kWhole
  };
  // An all-gather of one or more parameters that is in flight.
  struct Gather {
    std::vector<int64_t> params;
    Array packed;   // copies of this rank's slices; unused if the slices are contiguous
    Array landing;  // the result: the slices of rank 0, of rank 1, ...
    Work work;
  };

  void publish_frozen() override;
  void adopt(Store& store, const SliceLayout& layout, Array& master, Array& copy);
  void choose_persistent();
  int64_t block_of(int64_t use) const;
  // Returns the first use of the parameter after `use` in this pass, or -1 if there is none.
  int64_t next_use(int64_t param, int64_t use) const;
  Span slice(int64_t param) const;  // this rank's slice, in param_dtype
  Span own_slices(const std::vector<int64_t>& params, Array& packed) const;
  void start_gather(std::vector<int64_t> params);
  void finish_gather();
  void prefetch(int64_t use);
  void gather_persistent(bool trainable);
  void free_whole(int64_t param);

  SliceLayout layout_, frozen_layout_;
  Array master_, frozen_master_;
  Array copy_, frozen_copy_;  // slices in param_dtype; unused if masters have that dtype
  std::vector<Param> params_;
  std::deque<Gather> gathers_;  // oldest first
  std::vector<int64_t>
      elements_before_;        // total size of the blocks of all earlier uses, for each use
  int64_t uses_ = 0;           // number of uses of this pass
  int64_t live_elements_ = 0;  // elements whole or in flight, except for persistent ones
  Binder binder_;
};

}  // namespace yoke::deepspeed_stub
