// Placements change axis by axis, with at most one collective per axis: all-gather for Shard ->
// Replicate, reduce-scatter for Partial -> Shard, all-to-all for Shard -> Shard, all-reduce for
// Partial -> Replicate. A change from Replicate needs no communication.
//
// A tensor is handled as [outer, n, inner], where n is the dim that is cut. Collectives of c10d cut
// dim 0 into equal parts. Only for the collective, uneven parts are therefore padded and n is moved
// to the front. The order of the axes is fixed, except if several axes cut the same dim
// (must_release).
#include "sdk/mesh/dtensor/redistribute.hpp"

#include <ATen/ATen.h>

#include <numeric>

#include "sdk/mesh/dtensor/pieces.hpp"

namespace yoke::mesh {
namespace {

int64_t product(at::IntArrayRef sizes, int64_t begin, int64_t end) {
  return std::accumulate(
      sizes.begin() + begin, sizes.begin() + end, int64_t{1}, std::multiplies<>());
}

// The sizes of a tensor as [outer, n, inner], where n is the dim that is cut between the ranks. If
// this dim consists of several blocks, n is the size of a block, and outer includes their number.
struct Cut {
  int64_t outer, n, inner;
  int64_t chunk;  // length of a rank's part of the dim n, with padding

  Cut(at::IntArrayRef sizes, const Placement& p, int ranks)
      : outer(product(sizes, 0, p.dim) * p.blocks),
        n(sizes[p.dim] / p.blocks),
        inner(product(sizes, p.dim + 1, static_cast<int64_t>(sizes.size()))),
        chunk((n + ranks - 1) / ranks) {}
};

// Changes the placement of a tensor along one axis. whole: sizes of the tensor that the ranks of
// this axis hold together; other axes may have cut it already.
class Change {
 public:
  Change(Mesh& mesh, int axis, Sizes whole, int64_t value)
      : mesh_(mesh),
        axis_(axis),
        at_(mesh.coordinates()[axis]),
        whole_(std::move(whole)),
        value_(value) {}

  at::Tensor apply(const at::Tensor& local, const Placement& from, const Placement& to) const {
    if (from == partial() && to.is_shard() && !mesh_.pending().empty()) {
      const at::Tensor part = reduce_scatter_in_pieces(local, to);
      if (part.defined()) return part;
    }
    mesh_.pending().compute(local);
    if (from.is_replicate()) return from_replicate(local, to);
    if (from.is_partial() && to.is_shard()) return reduce_scatter(local, from.reduce, to);
    if (from.is_shard() && to.is_shard() && exchangeable(from) && exchangeable(to))
      return exchange(local, from, to);
    return from_replicate(to_replicate(local, from), to);
  }

 private:
  const Comm& comm() const { return mesh_.axis(axis_).comm; }

  void note(const char* what, const at::Tensor& payload) const {
    mesh_.trace().collective(what, mesh_.axis(axis_).name, static_cast<int64_t>(payload.nbytes()));
  }

  at::Tensor from_replicate(const at::Tensor& whole, const Placement& to) const {
    switch (to.kind) {
      case Placement::kReplicate:
        return whole;
      case Placement::kShard:
        return slice(whole, to);
      case Placement::kPartial:
        break;
    }
    // To become Partial by a mean or maximum, every rank keeps the whole value. For a sum the first
    // rank keeps it, and the others have zeros.
    return to.reduce != Reduce::kSum || at_.rank == 0 ? whole : at::zeros_like(whole);
  }

  at::Tensor slice(const at::Tensor& whole, const Placement& to) const {
    const Cut cut(whole_, to, at_.size);
    const auto [begin, count] = part_of(cut.n, at_);
    if (to.blocks == 1) return whole.narrow(to.dim, begin, count).contiguous();
    return in_place_of(
        whole.reshape({cut.outer, cut.n, cut.inner}).narrow(1, begin, count), to, whole_);
  }

  // Reshapes `cut`, a tensor [outer, m, inner], to `sizes`, with p.blocks * m elements in p's dim.
  static at::Tensor in_place_of(const at::Tensor& cut, const Placement& p, Sizes sizes) {
    sizes[p.dim] = p.blocks * cut.size(1);
    return cut.reshape(sizes);
  }

  at::Tensor to_replicate(const at::Tensor& local, const Placement& from) const {
    if (from.is_shard()) return all_gather(local, from);
    at::Tensor whole = local.clone(at::MemoryFormat::Contiguous);
    all_reduce(mesh_, axis_, whole, from.reduce);
    return whole;
  }

  at::Tensor padded(const at::Tensor& rows, int64_t chunk) const {
    if (rows.size(1) == chunk) return rows;
    return at::constant_pad_nd(rows, {0, 0, 0, chunk - rows.size(1)});
  }

  at::Tensor all_gather(const at::Tensor& local, const Placement& from) const {
    const Cut cut(whole_, from, at_.size);
    const at::Tensor* rows = mesh_.gathers().find(value_, axis_, {cut.outer, cut.n, cut.inner});
    if (rows == nullptr) rows = &mesh_.gathers().keep(value_, axis_, gather_rows(local, cut));
    return in_place_of(*rows, from, whole_);
  }

  // Gathers the parts of all ranks. Returns [outer, n, inner].
  at::Tensor gather_rows(const at::Tensor& local, const Cut& cut) const {
    const int64_t mine = part_of(cut.n, at_).count;
    const at::Tensor in =
        padded(local.reshape({cut.outer, mine, cut.inner}), cut.chunk).contiguous();
    at::Tensor out = at::empty({at_.size, cut.outer, cut.chunk, cut.inner}, in.options());
    note("all-gather", out);
    comm().all_gather(out, in).wait();
    if (cut.outer > 1) out = out.transpose(0, 1);
    return out.reshape({cut.outer, at_.size * cut.chunk, cut.inner}).narrow(1, 0, cut.n);
  }

  at::Tensor reduce_scatter(const at::Tensor& local, Reduce reduce, const Placement& to) const {
    const Cut cut(whole_, to, at_.size);
    // Comm has no reduce-scatter of a maximum.
    if (reduce == Reduce::kMax) return slice(to_replicate(local, partial(reduce)), to);
    const at::Tensor rows =
        padded(local.reshape({cut.outer, cut.n, cut.inner}), at_.size * cut.chunk);
    const at::Tensor in =
        rows.view({cut.outer, at_.size, cut.chunk, cut.inner}).transpose(0, 1).contiguous();
    at::Tensor out = at::empty({cut.outer, cut.chunk, cut.inner}, in.options());
    note("reduce-scatter", in);
    comm().reduce_scatter_sum(out, in).wait();
    if (reduce == Reduce::kAvg) out.div_(at_.size);
    return in_place_of(out.narrow(1, 0, part_of(cut.n, at_).count), to, whole_);
  }

  // Returns an undefined tensor if `local` is no pending product whose rows are cut evenly.
  at::Tensor reduce_scatter_in_pieces(const at::Tensor& local, const Placement& to) const {
    const Cut cut(whole_, to, at_.size);
    const auto* products = mesh_.pending().find(local);
    if (products == nullptr || cut.inner != products->front().b.size(1) || cut.n % at_.size != 0)
      return {};
    return in_place_of(
        reduce_scatter_while_multiplying(mesh_, axis_, *products, cut.outer), to, whole_);
  }

  // Returns true if all ranks have equal parts of p's dim, which an all-to-all requires.
  bool exchangeable(const Placement& p) const {
    return p.blocks == 1 && whole_[p.dim] % at_.size == 0;
  }

  // For Shard(i) -> Shard(j), every rank cuts its part along j and sends the pieces.
  at::Tensor exchange(const at::Tensor& local, const Placement& from, const Placement& to) const {
    const std::vector<at::Tensor> pieces = local.chunk(at_.size, to.dim);
    const at::Tensor in = at::stack(pieces);
    at::Tensor out = at::empty_like(in);
    note("all-to-all", in);
    comm().all_to_all(out, in).wait();
    return at::cat(out.unbind(), from.dim);
  }

  Mesh& mesh_;
  int axis_;
  Coordinate at_;
  Sizes whole_;
  int64_t value_;  // value number of the local tensor (GatherMemo); 0 = none
};

// Returns the axes that must become Replicate first. These are inner axes that cut the same dim as
// an outer axis that is about to change: they divide the parts that the outer axis makes.
std::array<bool, kMaxMeshAxes> must_release(const Placements& from, const Placements& to, int n) {
  std::array<bool, kMaxMeshAxes> release{};
  for (int b = 1; b < n; ++b) {
    if (!from[b].is_shard()) continue;
    for (int a = 0; a < b; ++a) {
      const bool moves = from[a] != to[a] || release[a];
      release[b] =
          release[b] || (moves && (from[a].is_shard(from[b].dim) || to[a].is_shard(from[b].dim)));
    }
  }
  return release;
}

}  // namespace

at::Tensor redistribute_local(Mesh& mesh,
                              const at::Tensor& local,
                              const Sizes& global,
                              const Placements& from,
                              const Placements& to,
                              int64_t value) {
  if (from == to) return local;
  const auto release = must_release(from, to, mesh.ndim());
  Placements now = from;
  at::Tensor t = local;
  const auto change = [&](int axis, const Placement& next) {
    if (now[axis] == next) return;
    if (mesh.size(axis) > 1) {
      // The ranks of this axis together hold the tensor as only the other axes cut it.
      Placements others = now;
      others[axis] = replicate();
      const Sizes whole = local_sizes(global, others, mesh.coordinates());
      // The value number belongs to `local`, not to results of earlier axes.
      t = Change(mesh, axis, whole, t.is_same(local) ? value : 0).apply(t, now[axis], next);
    }
    now[axis] = next;
  };
  for (int b = mesh.ndim() - 1; b > 0; --b) {
    if (release[b]) change(b, replicate());
  }
  for (int a = 0; a < mesh.ndim(); ++a) change(a, to[a]);
  return t;
}

void all_reduce(Mesh& mesh, int axis, const at::Tensor& inout, Reduce reduce) {
  const Comm& comm = mesh.axis(axis).comm;
  if (mesh.size(axis) == 1) return;
  mesh.trace().collective("all-reduce", mesh.axis(axis).name, static_cast<int64_t>(inout.nbytes()));
  if (reduce == Reduce::kMax) {
    comm.all_reduce_max(inout).wait();
    return;
  }
  comm.all_reduce_sum(inout).wait();
  if (reduce == Reduce::kAvg) inout.div_(mesh.size(axis));
}

double redistribute_cost(const Placement& from, const Placement& to, int64_t numel) {
  // A message costs about as much as the transfer of this many elements.
  constexpr double kMessage = 65536;
  if (from == to) return 0;
  if (from.is_replicate()) return 1;
  const double one = kMessage + static_cast<double>(numel);
  return from.is_partial() && !to.is_shard() ? 2 * one : one;
}

}  // namespace yoke::mesh
