// Parameters at ZeRO stages 0 to 2: every rank holds all of them whole, in one flat buffer, and
// keeps the master weights of one slice of it (at stage 0, of all).
#pragma once

#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Parameters stay bound to the flat buffer all the time, so a pass has nothing to gather.
class FlatWeights final : public Weights {
 public:
  explicit FlatWeights(const Setup& setup);
  int64_t bytes() const override;
  void begin_pass(bool) override {}
  void acquire(int64_t) override {}
  void release(int64_t) override {}
  void publish(const Update& update) override;

 private:
  void publish_frozen() override {}  // every rank has the masters of all frozen parameters
  void adopt(Store& store, Owned owned, const Span& computed, Array& master);
  void gather_in_buckets(const Update& update);

  FlatLayout layout_, frozen_layout_;
  Array whole_, frozen_whole_;    // flat buffers, in param_dtype
  Array master_, frozen_master_;  // unused if masters have param_dtype: the buffer itself is used
  Binder binder_;
};

// Elements [begin, end) of the flat buffer.
struct FlatRange {
  int64_t begin, end;
};
// Returns the part that this rank updates: everything at stage 0, else its slice.
FlatRange own_range(const FlatLayout& layout, const Setup& setup);

}  // namespace yoke::deepspeed_stub
