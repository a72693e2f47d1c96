// The shard of a unit that is gathered in fp8: a gather moves 1 byte for each element.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/executor/flat_buffer.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "yoke/fp8_params.hpp"

namespace yoke::ptd {

// Keeps the e4m3 numbers of a shard and the scales of the unit's parameters from one round() to the
// next. Used by one thread at a time.
class Fp8Shard {
 public:
  // shard: index of this rank's shard. masters: [shard_numel], master copies of its elements. They,
  // `host` and the pool must outlive this object.
  Fp8Shard(const FlatLayout& layout,
           int shard,
           at::Tensor masters,
           at::ScalarType compute,
           const Fp8Params& host,
           DevicePool& pool);
  Fp8Shard(Fp8Shard&&) = default;

  // Returns the largest absolute value of each parameter in this shard, [params], in fp32 or
  // better; 0 for a parameter of which the shard has no element.
  at::Tensor measure() const;
  // Rounds the shard. amax: [params], the largest absolute values in all shards.
  void round(const at::Tensor& amax);

  Work start_gather(const Comm& comm);
  // Call it when the gather is done. Writes the numbers that the gathered ones represent to `whole`
  // [numel], in the compute type.
  void finish_gather(const at::Tensor& whole);
  // Frees what a gather holds that has failed, or has not started.
  void abandon_gather() { gathered_.detach(); }

  int64_t bytes() const { return static_cast<int64_t>(numbers_.nbytes()); }  // bytes that it keeps

 private:
  at::Tensor own_elements(const ShardPiece& piece) const;

  std::vector<FlatLayout::Slot> slots_;
  std::vector<ShardPiece> pieces_;  // the part of each parameter that lies in the shard
  at::Tensor masters_;
  at::ScalarType compute_;
  const Fp8Params& host_;
  at::Tensor numbers_;   // [shard_numel] bytes, each an e4m3 number
  at::Tensor scales_;    // [params] fp32
  FlatBuffer gathered_;  // the numbers of all shards, during a gather
};

// Rounds the shards with scales that are the same on all ranks of the communicator, by one
// all-reduce. Collective over it.
void round_shards(const std::vector<Fp8Shard*>& shards, const Comm& comm);

}  // namespace yoke::ptd
