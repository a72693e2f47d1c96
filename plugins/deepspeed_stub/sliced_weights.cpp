// Gathering and freeing whole parameters at ZeRO stage 3.
//
// The order of uses is known when a pass begins, so what to prefetch and what to free can be
// computed; unlike in DeepSpeed, nothing is traced. The decisions depend only on the layout, the
// settings and the number of the use. All ranks therefore issue the same gathers in the same order
// without any communication about it.
//
// The limits are those of DeepSpeed, in elements:
//   prefetch_bucket_size         size at which a prefetch takes no further parameters
//   max_live_parameters          most elements that may be whole, except for those in use
//   max_reuse_distance           a parameter stays whole if its next use is no further away
//   param_persistence_threshold  parameters up to this size always stay whole
#include "plugins/deepspeed_stub/sliced_weights.hpp"

#include <algorithm>

namespace yoke::deepspeed_stub {

SlicedWeights::SlicedWeights(const Setup& setup)
    : Weights(setup),
      layout_(setup.spec, true, setup.comms.gather.size()),
      frozen_layout_(setup.spec, false, setup.comms.gather.size()),
      params_(setup.spec.params.size()),
      elements_before_{0},
      binder_(setup) {
  adopt(trainable_, layout_, master_, copy_);
  adopt(frozen_, frozen_layout_, frozen_master_, frozen_copy_);
  choose_persistent();
  const auto blocks = static_cast<int64_t>(setup.spec.blocks.size());
  for (int64_t use = 0; use < 2 * blocks; ++use) {
    const int64_t block = block_of(use);
    elements_before_.push_back(elements_before_.back() + setup.spec.block_elements(block));
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

// Small parameters are not worth a gather, so they stay whole. They are chosen in the order of the
// model; one that would raise their total above model_persistence_threshold is skipped.
void SlicedWeights::choose_persistent() {
  int64_t total = 0;
  for (size_t p = 0; p < params_.size(); ++p) {
    const int64_t numel = setup_.spec.params[p].numel;
    if (numel > setup_.settings.param_persistence_threshold) continue;
    if (numel > setup_.settings.model_persistence_threshold - total) continue;
    total += numel;
    params_[p].persistent = true;
    params_[p].memory = Array(setup_.device, numel, setup_.param_dtype);
    params_[p].state = State::kWhole;
    binder_.bind(static_cast<int64_t>(p), params_[p].memory.span().data);
  }
}

int64_t SlicedWeights::bytes() const {
  int64_t sum = master_.bytes() + frozen_master_.bytes() + copy_.bytes() + frozen_copy_.bytes();
  for (const Param& param : params_) sum += param.persistent ? param.memory.bytes() : 0;
  return sum;
}

// ---- A pass ----

int64_t SlicedWeights::block_of(int64_t use) const {
  const auto blocks = static_cast<int64_t>(setup_.spec.blocks.size());
  return use < blocks ? use : 2 * blocks - 1 - use;
}

void SlicedWeights::begin_pass(bool backward) {
  // If the last pass failed, gathers may be in flight; destroying them waits for them.
  gathers_.clear();
  for (size_t p = 0; p < params_.size(); ++p) free_whole(static_cast<int64_t>(p));
  live_elements_ = 0;
  uses_ = static_cast<int64_t>(setup_.spec.blocks.size()) * (backward ? 2 : 1);
}

void SlicedWeights::acquire(int64_t use) {
  std::vector<int64_t> missing;
  const std::vector<int64_t>& block = setup_.spec.blocks[block_of(use)];
  for (const int64_t p : block) {
    if (params_[p].state == State::kSliced) missing.push_back(p);
  }
  start_gather(std::move(missing));
  // Issue the next gather before waiting for this one, so that it overlaps the block's computation.
  prefetch(use + 1);
  const auto all_whole = [&] {
    return std::all_of(
        block.begin(), block.end(), [&](int64_t p) { return params_[p].state == State::kWhole; });
  };
  while (!all_whole()) finish_gather();
}

// Starts one gather with the parameters of `use` and of the uses after it, until the bucket is full
// or max_live_parameters is reached. Does nothing if the parameters of `use` are all whole or being
// gathered: a later call then starts the next gather, with a fuller bucket.
void SlicedWeights::prefetch(int64_t use) {
  std::vector<int64_t> params;
  int64_t elements = 0;
  for (int64_t ahead = use; ahead < uses_; ++ahead) {
    for (const int64_t p : setup_.spec.blocks[block_of(ahead)]) {
      if (params_[p].state != State::kSliced ||
          std::find(params.begin(), params.end(), p) != params.end())
        continue;
      const int64_t numel = setup_.spec.params[p].numel;
      const bool room = elements < setup_.settings.prefetch_bucket_size &&
                        live_elements_ + elements + numel <= setup_.settings.max_live_parameters;
      if (!room) return start_gather(std::move(params));
      elements += numel;
      params.push_back(p);
    }
    if (ahead == use && params.empty()) return;
  }
  start_gather(std::move(params));
}

// Frees the parameters of a block, except for those that are used again within max_reuse_distance
// while max_live_parameters is not exceeded.
void SlicedWeights::release(int64_t use) {
  for (const int64_t p : setup_.spec.blocks[block_of(use)]) {
    if (params_[p].persistent || params_[p].state != State::kWhole) continue;
    const int64_t next = next_use(p, use);
    const bool keep =
        next >= 0 && live_elements_ <= setup_.settings.max_live_parameters &&
        elements_before_[next] - elements_before_[use + 1] <= setup_.settings.max_reuse_distance;
    if (!keep) free_whole(p);
  }
}

int64_t SlicedWeights::next_use(int64_t param, int64_t use) const {
  const auto blocks = static_cast<int64_t>(setup_.spec.blocks.size());
  int64_t next = -1;
  for (const int64_t block : setup_.spec.params[param].blocks) {
    for (const int64_t other : {block, 2 * blocks - 1 - block}) {
      if (other > use && other < uses_ && (next < 0 || other < next)) next = other;
    }
  }
  return next;
}

void SlicedWeights::free_whole(int64_t param) {
  Param& p = params_[param];
  if (p.persistent || p.state == State::kSliced) return;
  binder_.unbind(param);
  p.memory = Array();
  p.state = State::kSliced;
  live_elements_ -= setup_.spec.params[param].numel;
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

void SlicedWeights::start_gather(std::vector<int64_t> params) {
  if (params.empty()) return;
  Gather& gather = gathers_.emplace_back();
  for (const int64_t p : params) {
    if (params_[p].persistent) continue;
    params_[p].state = State::kGathering;
    live_elements_ += setup_.spec.params[p].numel;
  }
  const Comm& comm = setup_.comms.gather;
  const Span own = own_slices(params, gather.packed);
  gather.params = std::move(params);
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
    Param& param = params_[p];
    const int64_t numel = setup_.spec.params[p].numel, length = slice(p).count;
    if (!param.persistent)
      param.memory = Array::to_be_written(setup_.device, numel, setup_.param_dtype);
    setup_.device.copy_rows(gather.landing.sub(at, length),
                            param.memory.sub(0, length),
                            {numel, length, per_rank, length});
    at += length;
    if (!param.persistent) binder_.bind(p, param.memory.span().data);
    param.state = State::kWhole;
  }
}

// ---- Between passes ----

void SlicedWeights::publish(const Update& update) {
  update(0, trainable_.owned.size);
  gather_persistent(true);
}

void SlicedWeights::publish_frozen() {
  gather_persistent(false);
}

void SlicedWeights::gather_persistent(bool trainable) {
  const SliceLayout& layout = trainable ? layout_ : frozen_layout_;
  std::vector<int64_t> params;
  int64_t elements = 0;
  for (const int64_t p : layout.params()) {
    if (!params_[p].persistent) continue;
    elements += setup_.spec.params[p].numel;
    if (!params.empty() && elements > setup_.settings.allgather_bucket_size) {
      start_gather(std::exchange(params, {}));
      elements = setup_.spec.params[p].numel;
    }
    params.push_back(p);
  }
  start_gather(std::move(params));
  while (!gathers_.empty()) finish_gather();
}

}  // namespace yoke::deepspeed_stub
