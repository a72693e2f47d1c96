// Slices of one parameter differ in size by up to one element, and a gather needs equal sizes. So a
// rank copies its slices of a bucket into one block, as long as the longest block of all ranks, and
// the blocks are gathered and copied to their places. The scratch memory is that of one bucket. A
// gather of every parameter by itself would need no copies of even slices, but one collective for
// each of hundreds of small parameters.
#include "plugins/nanotron_compat/gather.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace yoke::nanotron_compat {

Gather::Gather(const Layout& layout, const compat::Parameters& parameters, const Comms& comms)
    : parameters_(parameters), comms_(comms) {
  const int ranks = comms.data.size();
  for (const compat::Range& where : layout.buckets()) {
    Bucket& bucket = buckets_.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<compat::Range>& slices = bucket.of_rank.emplace_back();
      int64_t count = 0;
      for (const compat::Range& slice : layout.slices(rank, ranks)) {
        if (slice.begin < where.begin || slice.begin >= where.begin + where.count) continue;
        slices.push_back(slice);
        count += slice.count;
      }
      bucket.largest = std::max(bucket.largest, count);
    }
  }
}

int64_t Gather::elements() const {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets_) elements += bucket.largest * comms_.data.size();
  return elements;
}

void Gather::run() const {
  const int ranks = comms_.data.size();
  if (ranks == 1) return;
  const at::TensorOptions options = parameters_.part({0, 0}).options();
  for (const Bucket& bucket : buckets_) {
    const at::Tensor blocks = at::empty({ranks, bucket.largest}, options);
    const auto each_slice = [&](int rank, auto&& copy) {
      int64_t begin = 0;
      for (const compat::Range& slice : bucket.of_rank[rank]) {
        copy(blocks[rank].narrow(0, begin, slice.count), parameters_.part(slice));
        begin += slice.count;
      }
    };
    const int own = comms_.data.rank();
    each_slice(own, [](at::Tensor block, const at::Tensor& values) { block.copy_(values); });
    comms_.data.all_gather(span(blocks.view({-1})), ConstSpan(span(blocks[own]))).wait();
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != own)
        each_slice(rank, [](const at::Tensor& block, at::Tensor values) { values.copy_(block); });
    }
  }
}

}  // namespace yoke::nanotron_compat
