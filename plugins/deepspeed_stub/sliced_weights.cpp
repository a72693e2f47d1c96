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

// Frozen masters are no state of the optimizer: they are where the slices are.
void SlicedWeights::adopt(Store& store, const SliceLayout& layout, State& master, State& copy) {
  store.owned = layout.owned(setup_.comms.gather.rank());
  const int64_t size = store.owned.size;
  const bool apart = masters_are_apart(setup_), trainable = &store == &trainable_;
  StatePlace place = apart && trainable ? optimizer_place(setup_, size) : params_place(setup_);
  if (!trainable) place.overwritten = false;
  master = std::make_unique<StateArrays>(setup_.device, place, 1, size, setup_.master_dtype);
  store.master = Values(*master, 0);
  fill_initial(setup_, store);
  if (!apart) return;
  copy = std::make_unique<StateArrays>(
      setup_.device, params_place(setup_), 1, size, setup_.param_dtype);
  store.copy = Values(*copy, 0);
}

int64_t SlicedWeights::bytes() const {
  int64_t sum = 0;
  for (const State* state : {&master_, &frozen_master_, &copy_, &frozen_copy_})
    sum += *state == nullptr ? 0 : (*state)->bytes();
  for (size_t p = 0; p < whole_.size(); ++p)
    sum += schedule_.is_persistent(static_cast<int64_t>(p)) ? whole_[p].bytes() : 0;
  return sum;
}

void SlicedWeights::publish(const Update& update) {
  update(0, trainable_.owned.size);
  trainable_.finish();
  schedule_.gather_persistent(layout_.params());
}

void SlicedWeights::publish_frozen() {
  schedule_.gather_persistent(frozen_layout_.params());
}

// ---- Gathers ----

SlicedWeights::Slice SlicedWeights::slice(int64_t param) const {
  const bool trainable = setup_.spec.params[param].trainable;
  const Store& store = trainable ? trainable_ : frozen_;
  const SliceLayout& layout = trainable ? layout_ : frozen_layout_;
  return {
      store.copy.empty() ? &store.master : &store.copy, layout.offset(param), layout.slice(param)};
}

// Makes this rank's slices of a gather one contiguous span of device memory. Slices that already
// are one are not copied. Of those in a file, it only starts to read them.
void SlicedWeights::collect(Gather& gather) const {
  const Slice first = slice(gather.params.front());
  int64_t count = 0;
  bool adjacent = true;
  for (const int64_t p : gather.params) {
    const Slice next = slice(p);
    adjacent = adjacent && next.values == first.values && next.begin == first.begin + count;
    count += next.count;
  }
  if (adjacent && first.values->is_in_memory(first.begin, count) &&
      !first.values->is_on_host(first.begin)) {
    gather.own = first.values->window(first.begin, count);
    return;
  }
  gather.packed = Array::to_be_written(setup_.device, count, setup_.param_dtype);
  gather.own = gather.packed.span();
  int64_t at = 0;
  for (const int64_t p : gather.params) {
    const Slice from = slice(p);
    const Span to = gather.own.sub(at, from.count);
    at += from.count;
    if (!from.values->is_in_memory(from.begin, from.count)) {
      if (!setup_.device.is_apart()) {
        read_slice(from, to, gather.reads);
        continue;
      }
      const Array staging = Array::to_be_written(setup_.host, from.count, setup_.param_dtype);
      from.values->state()->read(from.values->array(), from.begin, staging.span());
      setup_.device.upload(staging.span().data, to);
    } else if (from.values->is_on_host(from.begin)) {
      setup_.device.issue_upload(from.values->window(from.begin, from.count).data, to);
    } else {
      setup_.device.copy(from.values->window(from.begin, from.count), to);
    }
  }
}

// Starts to read a slice, of which the first elements may be in memory.
void SlicedWeights::read_slice(const Slice& slice,
                               const Span& to,
                               std::vector<Transfer>& reads) const {
  StateArrays& state = *slice.values->state();
  const int64_t most = setup_.settings.offload.params.buffer_size;
  int64_t at = 0;
  if (state.is_in_memory(slice.begin, 1)) {
    at = state.cut(slice.begin, slice.begin + slice.count) - slice.begin;
    setup_.device.copy(slice.values->window(slice.begin, at), to.sub(0, at));
  }
  for (; at < slice.count; at += most) {
    const int64_t n = std::min(most, slice.count - at);
    state.start_read(slice.values->array(), slice.begin + at, to.sub(at, n), reads);
  }
}

// An earlier gather has had the time of a block to read its slices. It is issued now, so that it
// runs while the slices of this one are read.
void SlicedWeights::start_gather(const std::vector<int64_t>& params) {
  for (Gather& earlier : gathers_) issue(earlier);
  Gather& gather = gathers_.emplace_back();
  gather.params = params;
  collect(gather);
  if (gather.reads.empty() || setup_.settings.offload.params.buffers == 1) issue(gather);
}

void SlicedWeights::issue(Gather& gather) {
  if (gather.is_issued) return;
  for (Transfer& read : gather.reads) read.wait();
  gather.reads.clear();
  gather.landing = Array::to_be_written(
      setup_.device, setup_.comms.gather.size() * gather.own.count, setup_.param_dtype);
  gather.work = all_gather(setup_, gather.landing.span(), gather.own);
  gather.is_issued = true;
}

void SlicedWeights::finish_gather() {
  // The result contains all slices of rank 0, then all of rank 1, and so on. A whole parameter is
  // assembled from one row per rank; the last row is shorter if the parameter was padded.
  Gather gather = std::move(gathers_.front());
  gathers_.pop_front();
  issue(gather);
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
