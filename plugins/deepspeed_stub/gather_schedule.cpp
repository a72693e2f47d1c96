// Decides what stage 3 gathers and frees.
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
#include "plugins/deepspeed_stub/gather_schedule.hpp"

#include <algorithm>
#include <utility>

namespace yoke::deepspeed_stub {

// Small parameters are not worth a gather.
std::vector<bool> persistent_params(const ModelSpec& model, const Settings& settings) {
  std::vector<bool> persistent(model.params.size());
  int64_t total = 0;
  for (size_t p = 0; p < persistent.size(); ++p) {
    const int64_t numel = model.params[p].numel;
    if (numel > settings.param_persistence_threshold) continue;
    if (numel > settings.model_persistence_threshold - total) continue;
    total += numel;
    persistent[p] = true;
  }
  return persistent;
}

GatherSchedule::GatherSchedule(const ModelSpec& model, const Settings& settings, Actor& actor)
    : model_(model),
      settings_(settings),
      actor_(actor),
      params_(model.params.size()),
      elements_before_{0} {
  const std::vector<bool> persistent = persistent_params(model, settings);
  for (size_t p = 0; p < params_.size(); ++p) {
    params_[p].persistent = persistent[p];
    if (persistent[p]) params_[p].state = State::kWhole;
  }
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  for (int64_t use = 0; use < 2 * blocks; ++use)
    elements_before_.push_back(elements_before_.back() + model.block_elements(block_of(use)));
}

int64_t GatherSchedule::block_of(int64_t use) const {
  const auto blocks = static_cast<int64_t>(model_.blocks.size());
  return use < blocks ? use : 2 * blocks - 1 - use;
}

void GatherSchedule::begin_pass(bool backward) {
  actor_.drop_gathers();
  gathers_.clear();
  for (size_t p = 0; p < params_.size(); ++p) free_whole(static_cast<int64_t>(p));
  live_elements_ = 0;
  uses_ = static_cast<int64_t>(model_.blocks.size()) * (backward ? 2 : 1);
}

void GatherSchedule::acquire(int64_t use) {
  std::vector<int64_t> missing;
  const std::vector<int64_t>& block = model_.blocks[block_of(use)];
  for (const int64_t p : block) {
    if (params_[p].state == State::kSliced) missing.push_back(p);
  }
  start(std::move(missing));
  // Issue the next gather before waiting for this one, so that it overlaps the block's computation.
  prefetch(use + 1);
  const auto all_whole = [&] {
    return std::all_of(
        block.begin(), block.end(), [&](int64_t p) { return params_[p].state == State::kWhole; });
  };
  while (!all_whole()) finish();
}

// Starts one gather with the parameters of `use` and of the uses after it, until the bucket is full
// or max_live_parameters is reached. Does nothing if the parameters of `use` are all whole or being
// gathered: a later call then starts the next gather, with a fuller bucket.
void GatherSchedule::prefetch(int64_t use) {
  std::vector<int64_t> params;
  int64_t elements = 0;
  for (int64_t ahead = use; ahead < uses_; ++ahead) {
    for (const int64_t p : model_.blocks[block_of(ahead)]) {
      if (params_[p].state != State::kSliced ||
          std::find(params.begin(), params.end(), p) != params.end())
        continue;
      const int64_t numel = model_.params[p].numel;
      const bool room = elements < settings_.prefetch_bucket_size &&
                        live_elements_ + elements + numel <= settings_.max_live_parameters;
      if (!room) return start(std::move(params));
      elements += numel;
      params.push_back(p);
    }
    if (ahead == use && params.empty()) return;
  }
  start(std::move(params));
}

// Frees the parameters of a block, except for those that are used again within max_reuse_distance
// while max_live_parameters is not exceeded.
void GatherSchedule::release(int64_t use) {
  for (const int64_t p : model_.blocks[block_of(use)]) {
    if (params_[p].persistent || params_[p].state != State::kWhole) continue;
    const int64_t next = next_use(p, use);
    const bool keep =
        next >= 0 && live_elements_ <= settings_.max_live_parameters &&
        elements_before_[next] - elements_before_[use + 1] <= settings_.max_reuse_distance;
    if (!keep) free_whole(p);
  }
}

int64_t GatherSchedule::next_use(int64_t param, int64_t use) const {
  const auto blocks = static_cast<int64_t>(model_.blocks.size());
  int64_t next = -1;
  for (const int64_t block : model_.params[param].blocks) {
    for (const int64_t other : {block, 2 * blocks - 1 - block}) {
      if (other > use && other < uses_ && (next < 0 || other < next)) next = other;
    }
  }
  return next;
}

void GatherSchedule::free_whole(int64_t param) {
  Param& p = params_[param];
  if (p.persistent || p.state == State::kSliced) return;
  actor_.free_whole(param);
  p.state = State::kSliced;
  live_elements_ -= model_.params[param].numel;
}

void GatherSchedule::start(std::vector<int64_t> params) {
  if (params.empty()) return;
  for (const int64_t p : params) {
    if (params_[p].persistent) continue;
    params_[p].state = State::kGathering;
    live_elements_ += model_.params[p].numel;
  }
  actor_.start_gather(params);
  gathers_.push_back(std::move(params));
}

void GatherSchedule::finish() {
  actor_.finish_gather();
  for (const int64_t p : gathers_.front()) params_[p].state = State::kWhole;
  gathers_.pop_front();
}

void GatherSchedule::gather_persistent(const std::vector<int64_t>& all) {
  std::vector<int64_t> params;
  int64_t elements = 0;
  for (const int64_t p : all) {
    if (!params_[p].persistent) continue;
    elements += model_.params[p].numel;
    if (!params.empty() && elements > settings_.allgather_bucket_size) {
      start(std::exchange(params, {}));
      elements = model_.params[p].numel;
    }
    params.push_back(p);
  }
  start(std::move(params));
  while (!gathers_.empty()) finish();
}

}  // namespace yoke::deepspeed_stub
