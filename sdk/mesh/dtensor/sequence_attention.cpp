// Each rank computes attention of its own queries with the keys of every rank, one rank's keys at a
// time. A tile is a part of the attention matrix that is computed at once (tile_attention.hpp),
// with an output that is normalised within the tile, and its log-sum-exp. Merge combines tiles
// exactly, in fp32 or better. Keys and values of other ranks arrive around a ring, or are all
// gathered first (SequenceExchange); the tiles are the same.
//
// The backward of a tile gets the merged output and log-sum-exp instead of those of the tile. The
// gradients of the tiles then add up to the gradient of the whole attention. Gradients of other
// ranks' keys and values are sent back to these ranks in the accumulation type.
//
// With a mask, the tile of two ranks has all their queries and keys. On the CPU it is skipped if no
// query sees a key; on a device, finding that out would make the host wait. The first tile of a
// rank has its own keys, so the sum of no query is empty after it.
#include "sdk/mesh/dtensor/sequence_attention.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "sdk/mesh/dtensor/tile_attention.hpp"

namespace yoke::mesh {
namespace {

constexpr int64_t kSequence = 2;  // dim of the sequence in q, k and v

at::Tensor part(const at::Tensor& t, const Part& p) {
  return t.narrow(kSequence, p.begin, p.count);
}

// The weighted sum over all tiles so far. With lse = log(sum exp(scores)) of each tile, the weight
// of a tile is exp(lse of the tile - lse of all).
class Merge {
 public:
  Merge(const at::Tensor& q, const at::Tensor& v) {
    Sizes sizes = q.sizes().vec();
    sizes.back() = v.size(-1);
    const auto options = q.options().dtype(accumulation_type(q));
    out_ = at::zeros(sizes, options);
    sizes.pop_back();
    lse_ = at::full(sizes, -INFINITY, options);
  }

  // Adds a tile for the queries `rows`: its normalised output and its log-sum-exp.
  void add(const Part& rows, const at::Tensor& out, const at::Tensor& lse) {
    const at::Tensor sum = part(out_, rows), total = part(lse_, rows);
    const at::Tensor both = at::logaddexp(total, lse);
    sum.mul_((total - both).exp_().unsqueeze(-1)).addcmul_(out, (lse - both).exp_().unsqueeze(-1));
    total.copy_(both);
  }

  SequenceAttention::Result result(at::ScalarType type) const { return {out_.to(type), lse_}; }

 private:
  at::Tensor out_, lse_;
};

// The part of a mask that a tile needs. Kernels report 0 as the log-sum-exp of a query that sees no
// key of the tile, so these queries are listed.
struct TileMask {
  std::optional<at::Tensor> values;  // [..., queries, keys]; unset = no mask
  at::Tensor blind;                  // [..., queries], bool: the query sees no key of this tile
  bool all_blind = false;            // no query sees a key; always false on a device
};

// Returns the mask of the tile of all queries of this rank and all keys of rank `theirs`.
TileMask mask_of(const at::Tensor& mask, const Mesh::Axis& axis, int64_t length, int theirs) {
  if (!mask.defined()) return {};
  const auto of_rank = [&](const at::Tensor& whole, int64_t dim, int rank) {
    std::vector<at::Tensor> parts;
    for (const Part& p : positions_of_rank(axis.order, length, rank, axis.comm.size()))
      parts.push_back(whole.narrow(dim, p.begin, p.count));
    return at::cat(parts, dim);
  };
  const at::Tensor queries = mask.dim() == 2 ? of_rank(mask, 0, axis.comm.rank()) : mask;
  const at::Tensor values = of_rank(queries, -1, theirs);
  const at::Tensor blind = values.amax(-1).eq(-INFINITY);
  return {values, blind, blind.is_cpu() && blind.all().item<bool>()};
}

// Calls f(rank, kv) with the keys and values of every rank in turn, this rank's own first. kv is
// [2, B, Hkv, S, D]. In a ring the next keys and values are received while f computes.
template <class F>
void each_rank(const Mesh::Axis& axis, const at::Tensor& own, F&& f) {
  const int ranks = axis.comm.size(), mine = axis.comm.rank();
  if (axis.exchange == SequenceExchange::kAllGather) {
    const at::Tensor all = at::empty(
        {ranks * own.size(0), own.size(1), own.size(2), own.size(3), own.size(4)}, own.options());
    axis.comm.all_gather(all, own).wait();
    for (int step = 0; step < ranks; ++step) {
      const int theirs = (mine - step + ranks) % ranks;
      f(theirs, all.narrow(0, 2 * theirs, 2));
    }
    return;
  }
  at::Tensor now = own;
  for (int step = 0; step < ranks; ++step) {
    at::Tensor next;
    Work moving;
    if (step + 1 < ranks) {
      next = at::empty_like(now);
      moving = axis.comm.pass_on(next, now);
    }
    f((mine - step + ranks) % ranks, now);
    moving.wait();
    now = next;
  }
}

// Sums the gradients of keys and values for the ranks that own them. In a ring the sum for one
// owner is passed on together with the keys, every rank adds its contribution, and the owner
// receives the sum after the last step. After an all-gather, one reduce-scatter does this for all
// owners.
class KeyGradients {
 public:
  KeyGradients(const Mesh::Axis& axis, const at::Tensor& kv)
      : axis_(axis), options_(kv.options().dtype(accumulation_type(kv))), sizes_(kv.sizes().vec()) {
    own_ = at::zeros(sizes_, options_);
    if (axis.exchange == SequenceExchange::kRing) return;
    sizes_[0] *= axis.comm.size();
    all_ = at::zeros(sizes_, options_);
  }

  // Returns the tensor to which contributions for rank `theirs` are added. Call it for the ranks in
  // the order of each_rank.
  at::Tensor of(int theirs) {
    if (all_.defined()) return all_.narrow(0, 2 * theirs, 2);
    if (theirs == axis_.comm.rank()) return own_;
    travelling_ = travelling_.defined() ? passed_on() : at::zeros(sizes_, options_);
    return travelling_;
  }

  // Returns the gradients of this rank's own keys and values.
  at::Tensor home() {
    if (all_.defined()) {
      axis_.comm.reduce_scatter_sum(own_, all_).wait();
    } else if (travelling_.defined()) {
      own_.add_(passed_on());
    }
    return own_;
  }

 private:
  at::Tensor passed_on() const {
    const at::Tensor next = at::empty_like(travelling_);
    axis_.comm.pass_on(next, travelling_).wait();
    return next;
  }

  const Mesh::Axis& axis_;
  at::TensorOptions options_;
  Sizes sizes_;
  at::Tensor own_, all_, travelling_;
};

}  // namespace

std::vector<Tile> tiles_of(SequenceOrder order, bool causal, int64_t length, int mine, int theirs) {
  const Part all{0, length};
  if (!causal) return {{all, all, false}};
  if (mine == theirs) return {{all, all, true}};
  if (order == SequenceOrder::kPlain) {
    if (theirs > mine) return {};
    return {{all, all, false}};
  }
  // Each rank has a front part and a back part. The front part of a lower rank precedes all queries
  // of this rank, and its back part follows them. Both parts of a higher rank lie between the two
  // parts of this rank, so only the queries of the back part use those keys.
  const Part front{0, length / 2}, back{length / 2, length / 2};
  if (theirs < mine) return {{all, front, false}};
  return {{back, all, false}};
}

std::vector<Part> positions_of_rank(SequenceOrder order, int64_t length, int rank, int ranks) {
  if (order == SequenceOrder::kPlain) return {{rank * length, length}};
  const int64_t half = length / 2;
  return {{rank * half, half}, {(2 * ranks - 1 - rank) * half, half}};
}

SequenceAttention::Result SequenceAttention::forward(const at::Tensor& q,
                                                     const at::Tensor& k,
                                                     const at::Tensor& v) const {
  const Mesh::Axis& along = mesh.axis(axis);
  Merge merge(q, v);
  each_rank(along, at::stack({k, v}), [&](int theirs, const at::Tensor& kv) {
    const TileMask seen = mask_of(mask, along, q.size(kSequence), theirs);
    if (seen.all_blind) return;
    for (const Tile& tile :
         tiles_of(along.order, causal, q.size(kSequence), along.comm.rank(), theirs)) {
      const TileAttention attention{tile.causal, scale, seen.values};
      auto [out, lse] =
          attention.forward(part(q, tile.queries), part(kv[0], tile.keys), part(kv[1], tile.keys));
      if (seen.values) lse.masked_fill_(seen.blind, -INFINITY);
      merge.add(tile.queries, out, lse);
    }
  });
  return merge.result(q.scalar_type());
}

SequenceAttention::Gradients SequenceAttention::backward(const at::Tensor& grad,
                                                         const at::Tensor& q,
                                                         const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const Result& result) const {
  const Mesh::Axis& along = mesh.axis(axis);
  const at::Tensor own = at::stack({k, v});
  const at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(accumulation_type(q)));
  KeyGradients key_gradients(along, own);
  each_rank(along, own, [&](int theirs, const at::Tensor& kv) {
    const at::Tensor dkv = key_gradients.of(theirs);
    const TileMask seen = mask_of(mask, along, q.size(kSequence), theirs);
    if (seen.all_blind) return;
    for (const Tile& tile :
         tiles_of(along.order, causal, q.size(kSequence), along.comm.rank(), theirs)) {
      const TileAttention attention{tile.causal, scale, seen.values};
      const auto [tq, tk, tv] = attention.backward(
          part(grad, tile.queries),
          part(q, tile.queries),
          part(kv[0], tile.keys),
          part(kv[1], tile.keys),
          {part(result.out, tile.queries), part(result.lse, tile.queries).contiguous()});
      part(dq, tile.queries).add_(tq);
      part(dkv[0], tile.keys).add_(tk);
      part(dkv[1], tile.keys).add_(tv);
    }
  });
  const at::Tensor dkv = key_gradients.home();
  return {dq.to(q.scalar_type()), dkv[0].to(k.scalar_type()), dkv[1].to(v.scalar_type())};
}

}  // namespace yoke::mesh
