// The arrays of ZeRO stage 3. gather_schedule.cpp decides what is gathered and freed, and when.
#include "plugins/deepspeed_stub/sliced_weights.hpp"

#include <algorithm>
#include <utility>

namespace yoke::deepspeed_stub {

SlicedWeights::SlicedWeights(const Setup& setup)
    : Weights(setup),
      layout_(setup.spec, true, setup.comms.gather.size()),
      frozen_layout_(setup.spec, false, setup.comms.gather.size()),
      schedule_(setup.spec, setup.settings, *this),
      whole_(setup.spec.params.size()),
      binder_(setup) {
  adopt(trainable_, layout_, master_, copy_);
  adopt(frozen_, frozen_layout_, frozen_master_, frozen_copy_);
  for (size_t p = 0; p < whole_.size(); ++p) {
    const auto param = static_cast<int64_t>(p);
    if (!schedule_.is_persistent(param)) continue;
    whole_[p] = Array(setup.device, setup.spec.params[p].numel, setup.param_dtype);
    binder_.bind(param, whole_[p].span().data);
  }
  refresh();
}

void SlicedWeights::adopt(Store& store, const SliceLayout& layout, Array& master, Array& copy) {
  store.owned = layout.owned(setup_.comms.gather.rank());
  master = Array(setup_.device, store.owned.size, setup_.master_dtype);
  store.master = master.span();
  fill_initial(setup_, store);
  if (setup_.master_dtype == setup_.param_dtype) return;
  copy = Array(setup_.device, store.owned.size, setup_.param_dtype);
  store.copy = copy.span();
}

int64_t SlicedWeights::bytes() const {
  int64_t sum = master_.bytes() + frozen_master_.bytes() + copy_.bytes() + frozen_copy_.bytes();
  for (size_t p = 0; p < whole_.size(); ++p)
    sum += schedule_.is_persistent(static_cast<int64_t>(p)) ? whole_[p].bytes() : 0;
  return sum;
}

void SlicedWeights::publish(const Update& update) {
  update(0, trainable_.owned.size);
  schedule_.gather_persistent(layout_.params());
}

void SlicedWeights::publish_frozen() {
  schedule_.gather_persistent(frozen_layout_.params());
}

// ---- Gathers ----

Span SlicedWeights::slice(int64_t param) const {
  const bool trainable = setup_.spec.params[param].trainable;
  const Store& store = trainable ? trainable_ : frozen_;
  const SliceLayout& layout = trainable ? layout_ : frozen_layout_;
  const Span& values = store.copy.data != nullptr ? store.copy : store.master;
  return values.sub(layout.offset(param), layout.slice(param));
}

// Returns this rank's slices of `params` as one contiguous span. Copies them to `packed` only if
// they are not contiguous in the layout.
Span SlicedWeights::own_slices(const std::vector<int64_t>& params, Array& packed) const {
  Span whole = slice(params.front());
  bool adjacent = true;
  for (size_t i = 1; i < params.size(); ++i) {
    const Span next = slice(params[i]);
    adjacent = adjacent && next.data == whole.at(whole.count);
    whole.count += next.count;
  }
  if (adjacent) return whole;
  packed = Array::to_be_written(setup_.device, whole.count, setup_.param_dtype);
  int64_t at = 0;
  for (const int64_t p : params) {
    const Span from = slice(p);
    setup_.device.copy(from, packed.sub(at, from.count));
    at += from.count;
  }
  return packed.span();
}

void SlicedWeights::start_gather(const std::vector<int64_t>& params) {
  Gather& gather = gathers_.emplace_back();
  const Comm& comm = setup_.comms.gather;
  const Span own = own_slices(params, gather.packed);
  gather.params = params;
  gather.landing = Array::to_be_written(setup_.device, comm.size() * own.count, setup_.param_dtype);
  gather.work = all_gather(setup_, gather.landing.span(), own);
}

void SlicedWeights::finish_gather() {
  // The result contains all slices of rank 0, then all of rank 1, and so on. A whole parameter is
  // assembled from one row per rank; the last row is shorter if the parameter was padded.
  Gather gather = std::move(gathers_.front());
  gathers_.pop_front();
  gather.work.wait();
  const int ranks = setup_.comms.gather.size();
  const int64_t per_rank = gather.landing.span().count / ranks;
  int64_t at = 0;
  for (const int64_t p : gather.params) {
    Array& whole = whole_[p];
    const int64_t numel = setup_.spec.params[p].numel, length = slice(p).count;
    const bool persistent = schedule_.is_persistent(p);
    if (!persistent) whole = Array::to_be_written(setup_.device, numel, setup_.param_dtype);
    setup_.device.copy_rows(
        gather.landing.sub(at, length), whole.sub(0, length), {numel, length, per_rank, length});
    at += length;
    if (!persistent) binder_.bind(p, whole.span().data);
  }
}

void SlicedWeights::drop_gathers() {
  gathers_.clear();  // which waits for them
}

void SlicedWeights::free_whole(int64_t param) {
  binder_.unbind(param);
  whole_[param] = Array();
}

}  // namespace yoke::deepspeed_stub
