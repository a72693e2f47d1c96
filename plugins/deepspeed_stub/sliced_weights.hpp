// ZeRO stage 3: every rank keeps a slice of each parameter; whole ones exist while they are used.
// Those up to the persistence threshold stay whole all the time.
#pragma once

#include <deque>

#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

class SlicedWeights final : public Weights {
 public:
  explicit SlicedWeights(const Setup& setup);
  int64_t bytes() const override;
  void begin_pass(bool backward) override;
  void acquire(int64_t use) override;
  void release(int64_t use) override;
  void publish(const Update& update) override;

 private:
  enum class State { kSliced, kGathering, kWhole };
  struct Param {
    State state = State::kSliced;
    bool persistent = false;
    Array memory;  // whole, while it is here
  };
  // Slices of some parameters on their way: those of rank 0, of rank 1 ...
  struct Gather {
    std::vector<int64_t> params;
    Array packed;  // own slices, unless they lie side by side anyway
    Array landing;
    Work work;
  };

  void publish_frozen() override;
  void adopt(Store& store, const SliceLayout& layout, Array& master, Array& copy);
  void choose_persistent();
  int64_t block_of(int64_t use) const;
  int64_t next_use(int64_t param, int64_t use) const;  // after this one; -1 = none in this pass
  Span slice(int64_t param) const;                     // of this rank, in the model's dtype
  Span own_slices(const std::vector<int64_t>& params, Array& packed) const;
  void start_gather(std::vector<int64_t> params);
  void finish_gather();
  void prefetch(int64_t use);
  void gather_persistent(bool trainable);
  void free_whole(int64_t param);

  SliceLayout layout_, frozen_layout_;
  Array master_, frozen_master_, copy_, frozen_copy_;
  std::vector<Param> params_;
  std::deque<Gather> gathers_;
  std::vector<int64_t> elements_before_;  // by use: of the parameters of all uses before it
  int64_t uses_ = 0;                      // of this pass
  int64_t live_elements_ = 0;             // elements here or coming, persistent ones apart
  Binder binder_;
};

}  // namespace yoke::deepspeed_stub
