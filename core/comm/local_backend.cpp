// The signature of an operation contains everything that must be equal on all ranks, so that they
// can be compared before a byte moves.
#include "core/comm/local_backend.hpp"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <utility>

#include "core/comm/local_reduce.hpp"
#include "core/comm/signature.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

char* bytes_of(const at::Tensor& t) {
  return static_cast<char*>(t.data_ptr());
}

void require_cpu(const at::Tensor& t, const char* what) {
  if (t.is_cpu()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what,
                     ": the tensor is not on the CPU; ranks that share memory exchange tensors in "
                     "CPU memory"));
}

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.size() == 1) return tensors[0];
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what, ": ", tensors.size(), " tensors given; allowed: one"));
}

void require_sizes(bool ok, const at::Tensor& out, const at::Tensor& in, const char* rule) {
  if (ok && out.scalar_type() == in.scalar_type()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("out has ",
                     out.numel(),
                     " x ",
                     dtype_text(static_cast<int32_t>(out.scalar_type())),
                     ", in has ",
                     in.numel(),
                     " x ",
                     dtype_text(static_cast<int32_t>(in.scalar_type())),
                     "; ",
                     rule));
}

Contribution signed_by(const Signature& signature, const at::Tensor& of) {
  Contribution mine;
  mine.signature = signature;
  mine.item_size = static_cast<int64_t>(of.element_size());
  return mine;
}

// Returns the address of the values of t, or of a contiguous copy.
const char* input(Contribution& mine, const at::Tensor& t, const char* what) {
  require_cpu(t, what);
  mine.keep.push_back(t.is_contiguous() ? t : t.contiguous());
  return bytes_of(mine.keep.back());
}

// Returns the address to which the values of t are written.
char* output(Contribution& mine, const at::Tensor& t, const char* what) {
  require_cpu(t, what);
  mine.keep.push_back(t);
  if (t.is_contiguous()) return bytes_of(t);
  mine.staged.emplace_back(t, t.clone(at::MemoryFormat::Contiguous));
  return bytes_of(mine.staged.back().second);
}

// Sets the input and the output of an operation that replaces its tensor.
void set_both(Contribution& mine, const at::Tensor& t, const char* what) {
  mine.out = output(mine, t, what);
  mine.in = mine.out;
}

// Returns the byte offsets of the parts of t, one per rank, and the end. `splits` counts rows of
// dim 0; empty = equal parts.
std::vector<int64_t> offsets(const at::Tensor& t,
                             const std::vector<int64_t>& splits,
                             int size,
                             const char* what) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  const int64_t row_bytes = rows == 0 ? 0 : static_cast<int64_t>(t.nbytes()) / rows;
  const bool is_split =
      splits.empty() ||
      (splits.size() == static_cast<size_t>(size) &&
       std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; }));
  std::vector<int64_t> at{0};
  for (int r = 0; r < size && is_split; ++r) {
    at.push_back(at.back() + (splits.empty() ? rows / size : splits[r]) * row_bytes);
  }
  if (at.back() != static_cast<int64_t>(t.nbytes()) || !is_split) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("all_to_all: the split of ",
                       what,
                       " does not cover its ",
                       rows,
                       " rows for ",
                       size,
                       " ranks"));
  }
  return at;
}

}  // namespace

Signature LocalBackend::sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail) {
  return {op, static_cast<int32_t>(of.scalar_type()), count, detail, ++sequence_};
}

LocalBackend::WorkPtr LocalBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& opts) {
  const at::Tensor& t = single(tensors, "all_reduce");
  const c10d::ReduceOp::RedOpType op = opts.reduceOp;
  check_reducible(t.scalar_type(), op);
  require_cpu(t, "all_reduce");
  Contribution mine = signed_by(sign(Collective::kAllReduce, t, t.numel(), op), t);
  set_both(mine, t, "all_reduce");
  return post(std::move(mine), c10d::OpType::ALLREDUCE, tensors);
}

LocalBackend::WorkPtr LocalBackend::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& opts) {
  const at::Tensor& t = single(tensors, "broadcast");
  if (opts.rootRank < 0 || opts.rootRank >= size_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("broadcast: root ", opts.rootRank, "; allowed: 0 to ", size_ - 1));
  }
  require_cpu(t, "broadcast");
  Contribution mine = signed_by(sign(Collective::kBroadcast, t, t.numel(), opts.rootRank), t);
  set_both(mine, t, "broadcast");
  return post(std::move(mine), c10d::OpType::BROADCAST, tensors);
}

LocalBackend::WorkPtr LocalBackend::allgather(std::vector<Tensors>& outputs,
                                              Tensors& inputs,
                                              const c10d::AllgatherOptions&) {
  const at::Tensor& in = single(inputs, "all_gather");
  if (outputs.size() != 1 || outputs[0].size() != static_cast<size_t>(size_)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("all_gather: ",
                       outputs.empty() ? 0 : outputs[0].size(),
                       " outputs for ",
                       size_,
                       " ranks"));
  }
  require_cpu(in, "all_gather");
  for (const at::Tensor& out : outputs[0]) {
    require_cpu(out, "all_gather");
    require_sizes(
        out.numel() == in.numel(), out, in, "each output of all_gather has the elements of in");
  }
  Contribution mine = signed_by(sign(Collective::kAllGather, in, in.numel() * size_), in);
  mine.in = input(mine, in, "all_gather");
  for (const at::Tensor& out : outputs[0]) mine.outs.push_back(output(mine, out, "all_gather"));
  return post(std::move(mine), c10d::OpType::ALLGATHER, outputs[0]);
}

LocalBackend::WorkPtr LocalBackend::_allgather_base(at::Tensor& out,
                                                    at::Tensor& in,
                                                    const c10d::AllgatherOptions&) {
  require_cpu(in, "all_gather");
  require_cpu(out, "all_gather");
  require_sizes(out.numel() == in.numel() * size_,
                out,
                in,
                "out of all_gather has size() times the elements of in");
  // The count is that of the larger side, as in all signatures.
  Contribution mine = signed_by(sign(Collective::kAllGather, out, out.numel()), out);
  mine.in = input(mine, in, "all_gather");
  mine.out = output(mine, out, "all_gather");
  return post(std::move(mine), c10d::OpType::_ALLGATHER_BASE, {out});
}

LocalBackend::WorkPtr LocalBackend::_reduce_scatter_base(at::Tensor& out,
                                                         at::Tensor& in,
                                                         const c10d::ReduceScatterOptions& opts) {
  require_cpu(in, "reduce_scatter");
  require_cpu(out, "reduce_scatter");
  require_sizes(in.numel() == out.numel() * size_,
                out,
                in,
                "in of reduce_scatter has size() times the elements of out");
  const c10d::ReduceOp::RedOpType op = opts.reduceOp;
  check_reducible(in.scalar_type(), op);
  Contribution mine = signed_by(sign(Collective::kReduceScatter, in, in.numel(), op), in);
  mine.in = input(mine, in, "reduce_scatter");
  mine.out = output(mine, out, "reduce_scatter");
  return post(std::move(mine), c10d::OpType::_REDUCE_SCATTER_BASE, {out});
}

LocalBackend::WorkPtr LocalBackend::alltoall_base(at::Tensor& out,
                                                  at::Tensor& in,
                                                  std::vector<int64_t>& out_splits,
                                                  std::vector<int64_t>& in_splits,
                                                  const c10d::AllToAllOptions&) {
  require_cpu(in, "all_to_all");
  require_cpu(out, "all_to_all");
  const auto in_offsets = offsets(in, in_splits, size_, "in");
  const auto out_offsets = offsets(out, out_splits, size_, "out");
  // With uneven parts the totals may differ between ranks, so the signature carries no count. The
  // sizes of the parts are compared instead.
  Contribution mine = signed_by(sign(Collective::kAllToAll, in, -1), in);
  mine.in = input(mine, in, "all_to_all");
  mine.out = output(mine, out, "all_to_all");
  mine.in_offsets = in_offsets;
  mine.out_offsets = out_offsets;
  return post(std::move(mine), c10d::OpType::ALLTOALL_BASE, {out});
}

// A message (send and recv) has no sequence number, because sender and receiver may have counted
// different numbers of messages. Both halves are matched by sender, receiver and tag.
LocalBackend::WorkPtr LocalBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& t = single(tensors, "send");
  Contribution mine =
      signed_by({Collective::kSend, static_cast<int32_t>(t.scalar_type()), t.numel(), tag}, t);
  mine.in = input(mine, t, "send");
  return post_message(true, to, std::move(mine), tensors);
}

LocalBackend::WorkPtr LocalBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& t = single(tensors, "recv");
  Contribution mine =
      signed_by({Collective::kRecv, static_cast<int32_t>(t.scalar_type()), t.numel(), tag}, t);
  mine.out = output(mine, t, "recv");
  return post_message(false, from, std::move(mine), tensors);
}

LocalBackend::WorkPtr LocalBackend::barrier(const c10d::BarrierOptions&) {
  Contribution mine;
  mine.signature = {Collective::kBarrier, -1, 0, 0, ++sequence_};
  return post(std::move(mine), c10d::OpType::BARRIER, {});
}

std::exception_ptr LocalWork::exception() const {
  if (!completed()) return nullptr;
  try {
    rethrow();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

bool LocalWork::wait(std::chrono::milliseconds timeout) {
  // The same text as in c10d::Work::wait(); translate() recognises a timeout by it.
  if (!completed()) TORCH_CHECK(wait_for(timeout), "Operation timed out!");
  rethrow();
  return true;
}

// The callback runs on the thread that completes the operation. It holds a reference to this work:
// callers may drop the work and keep the future.
c10::intrusive_ptr<c10::ivalue::Future> LocalWork::getFuture() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  auto self = c10::intrusive_ptr<LocalWork>::reclaim_copy(this);
  when_done([future, self] {
    try {
      self->rethrow();
      future->markCompleted(c10::IValue(self->results_));
    } catch (...) {
      future->setError(std::current_exception());
    }
  });
  return future;
}

}  // namespace yoke
