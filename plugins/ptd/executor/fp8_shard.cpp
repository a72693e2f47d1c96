// Master copies are converted to the compute type before they are measured and rounded, because
// that is what a product would do with a parameter that was gathered in the compute type: so both
// have the same bits. All functions only issue work, and none reads a value on the CPU.
//
// The numbers are kept for the whole step, because a step may gather a unit several times. Gathered
// numbers are converted to the compute type at once: the products take parameters in this type, and
// round them to the same numbers again.
#include "plugins/ptd/executor/fp8_shard.hpp"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <utility>

namespace yoke::ptd {

Fp8Shard::Fp8Shard(const FlatLayout& layout,
                   int shard,
                   at::Tensor masters,
                   at::ScalarType compute,
                   const Fp8Params& host,
                   DevicePool& pool)
    : slots_(layout.slots()),
      masters_(std::move(masters)),
      compute_(compute),
      host_(host),
      numbers_(at::zeros({layout.shard_numel()}, masters_.options().dtype(at::kByte))),
      scales_(
          at::ones({static_cast<int64_t>(slots_.size())}, masters_.options().dtype(at::kFloat))),
      gathered_(layout.numel(), at::kByte, pool) {
  for (const FlatLayout::Slot& slot : slots_) pieces_.push_back(layout.piece(slot, shard));
}

at::Tensor Fp8Shard::own_elements(const ShardPiece& piece) const {
  return masters_.narrow(0, piece.offset, piece.count).to(compute_);
}

at::Tensor Fp8Shard::measure() const {
  std::vector<at::Tensor> largest;
  for (const ShardPiece& piece : pieces_) {
    largest.push_back(piece.count > 0 ? own_elements(piece).abs().max()
                                      : at::zeros({}, masters_.options().dtype(compute_)));
  }
  return at::stack(largest).to(at::toOpMathType(compute_));
}

void Fp8Shard::round(const at::Tensor& amax) {
  scales_.copy_(host_.scale(amax));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const ShardPiece& piece = pieces_[i];
    if (piece.count == 0) continue;
    const at::Tensor rounded = host_.cast(own_elements(piece), scales_[static_cast<int64_t>(i)]);
    numbers_.narrow(0, piece.offset, piece.count).copy_(rounded.view(at::kByte));
  }
}

Work Fp8Shard::start_gather(const Comm& comm) {
  gathered_.attach();
  return comm.all_gather(gathered_.tensor(), numbers_);
}

void Fp8Shard::finish_gather(const at::Tensor& whole) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto [param, offset, numel] = slots_[i];
    const at::Tensor numbers = gathered_.tensor().narrow(0, offset, numel);
    whole.narrow(0, offset, numel)
        .copy_(numbers.view(at::kFloat8_e4m3fn))
        .div_(scales_[static_cast<int64_t>(i)]);
  }
  gathered_.detach();
}

void round_shards(const std::vector<Fp8Shard*>& shards, const Comm& comm) {
  std::vector<at::Tensor> of_each;
  std::vector<int64_t> sizes;
  for (const Fp8Shard* shard : shards) {
    of_each.push_back(shard->measure());
    sizes.push_back(of_each.back().numel());
  }
  const at::Tensor amax = at::cat(of_each);
  comm.all_reduce_max(amax).wait();
  of_each = amax.split_with_sizes(sizes);
  for (size_t i = 0; i < shards.size(); ++i) shards[i]->round(of_each[i]);
}

}  // namespace yoke::ptd
