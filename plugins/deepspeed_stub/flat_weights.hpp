// ZeRO stages 0 to 2: every rank holds every parameter whole, in one flat buffer, and keeps the
// master copy of one slice of it (stage 0: of all).
#pragma once

#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

class FlatWeights final : public Weights {
 public:
  explicit FlatWeights(const Setup& setup);
  int64_t bytes() const override;
  void begin_pass(bool) override {}
  void acquire(int64_t) override {}
  void release(int64_t) override {}
  void publish(const Update& update) override;

 private:
  void publish_frozen() override {}  // every rank has written its own
  void adopt(Store& store, Owned owned, const Span& computed, Array& master);
  void gather_in_buckets(const Update& update);

  FlatLayout layout_, frozen_layout_;
  Array whole_, frozen_whole_;    // in the dtype of the model
  Array master_, frozen_master_;  // if that is not the dtype of masters
  Binder binder_;
};

// Elements [begin, end) of the flat buffer that this rank updates.
struct FlatRange {
  int64_t begin, end;
};
FlatRange own_range(const FlatLayout& layout, const Setup& setup);

}  // namespace yoke::deepspeed_stub
