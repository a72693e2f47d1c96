// Parameters at ZeRO stages 0 to 2. Every rank keeps all parameters in one flat buffer. It also
// keeps master weights: for the entire buffer at stage 0, for one slice of it at stages 1 and 2.
#pragma once

#include <memory>

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
  void publish_frozen() override {}  // every rank already has all frozen parameters
  void adopt(Store& store,
             Owned owned,
             const Span& computed,
             const StatePlace& place,
             std::unique_ptr<StateArrays>& master);
  void gather_in_buckets(const Update& update);

  FlatLayout layout_, frozen_layout_;
  Array whole_, frozen_whole_;                           // flat buffers, in param_dtype
  std::unique_ptr<StateArrays> master_, frozen_master_;  // NULL if masters are in the flat buffer
  Binder binder_;
};

// Elements [begin, end) of the flat buffer.
struct FlatRange {
  int64_t begin, end;
};
// Returns the range that this rank updates: everything at stage 0, else its slice.
FlatRange own_range(const FlatLayout& layout, const Setup& setup);

}  // namespace yoke::deepspeed_stub
