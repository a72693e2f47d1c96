// Parameters at ZeRO stage 3: every rank keeps a slice of each parameter, and whole parameters
// exist only while blocks use them. Persistent parameters, which are no larger than the persistence
// threshold, always stay whole.
#pragma once

#include <deque>
#include <memory>

#include "plugins/deepspeed_stub/gather_schedule.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Gathers parameters block by block, and ahead of their use as far as the limits in the settings
// allow. All ranks gather the same parameters in the same order.
class SlicedWeights final : public Weights, private GatherSchedule::Actor {
 public:
  explicit SlicedWeights(const Setup& setup);  // collective
  int64_t bytes() const override;
  void begin_pass(bool backward) override { schedule_.begin_pass(backward); }
  void acquire(int64_t use) override { schedule_.acquire(use); }
  void release(int64_t use) override { schedule_.release(use); }
  void publish(const Update& update) override;

 private:
  // An all-gather of one or more parameters. If slices are in a file, they are read first, and the
  // all-gather is issued when the next one starts or the result is needed.
  struct Gather {
    std::vector<int64_t> params;
    Span own;      // this rank's slices
    Array packed;  // memory of `own`; unused if the slices are contiguous in memory
    std::vector<Transfer> reads;
    Array landing;  // the result: the slices of rank 0, of rank 1, ...
    Work work;
    bool is_issued = false;
  };

  void publish_frozen() override;
  using State = std::unique_ptr<StateArrays>;
  void adopt(Store& store, const SliceLayout& layout, State& master, State& copy);
  // A range of a rank's slices in param_dtype.
  struct Slice {
    const Values* values;
    int64_t begin, count;
  };
  Slice slice(int64_t param) const;
  void collect(Gather& gather) const;
  void read_slice(const Slice& slice, const Span& to, std::vector<Transfer>& reads) const;
  void issue(Gather& gather);

  void start_gather(const std::vector<int64_t>& params) override;
  void finish_gather() override;
  void drop_gathers() override;
  void free_whole(int64_t param) override;

  SliceLayout layout_, frozen_layout_;
  GatherSchedule schedule_;
  State master_, frozen_master_;
  State copy_, frozen_copy_;    // slices in param_dtype; NULL unless masters are apart
  std::vector<Array> whole_;    // one per parameter: all of it, bound to the model; empty if sliced
  std::deque<Gather> gathers_;  // oldest first
  Binder binder_;
};

}  // namespace yoke::deepspeed_stub
