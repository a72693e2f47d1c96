// Buckets are numbered in the order of the backward, so a forward reads them in descending order:
// while blocks compute with bucket b, bucket b - 1 is gathered. As in Megatron, at most one bucket
// is gathered ahead.
#include "plugins/megatron_compat/gather.hpp"

#include <functional>
#include <set>

namespace yoke::megatron_compat {

Gather::Gather(const YokeModelSummary& model,
               const Layout& layout,
               const compat::Parameters& parameters,
               const Comms& comms)
    : layout_(layout),
      parameters_(parameters),
      comms_(comms),
      states_(layout.buckets().size(), State::kValid),
      works_(layout.buckets().size()) {
  for (uint64_t i = 0; i < model.num_blocks; ++i) {
    const YokeBlock& block = *model.blocks[i];
    std::set<int64_t, std::greater<>> buckets;
    for (uint64_t p = 0; p < block.num_params; ++p) {
      if (layout.offset(block.params[p]) >= 0) buckets.insert(layout.bucket_of(block.params[p]));
    }
    of_block_.emplace_back(buckets.begin(), buckets.end());
  }
}

void Gather::invalidate() {
  if (comms_.gather.size() > 1) states_.assign(states_.size(), State::kOld);
}

void Gather::all() {
  for (size_t b = states_.size(); b-- > 0;) start(static_cast<int64_t>(b));
  for (size_t b = states_.size(); b-- > 0;) complete(static_cast<int64_t>(b));
}

void Gather::before(uint64_t block) {
  for (const int64_t b : of_block_[block]) {
    start(b);
    complete(b);
    if (b > 0) start(b - 1);
  }
}

void Gather::start(int64_t b) {
  if (states_[b] != State::kOld) return;
  states_[b] = State::kInFlight;
  const Bucket& bucket = layout_.buckets()[b];
  const at::Tensor shard = parameters_.part(parameters_.owned()[b]);
  works_[b] = comms_.gather.all_gather(span(parameters_.part({bucket.begin, bucket.size})),
                                       ConstSpan(span(shard)));
}

void Gather::complete(int64_t b) {
  if (states_[b] != State::kInFlight) return;
  works_[b].wait();
  states_[b] = State::kValid;
}

}  // namespace yoke::megatron_compat
