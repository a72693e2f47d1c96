// Translates c10d's operations into contributions to a ThreadHub: checks the tensors, signs the
// collective and passes pointers. The hub compares the signatures of all ranks, which contain
// everything that must be equal on them.
#include "core/comm/thread_backend.hpp"

#include <ATen/core/ivalue.h>

#include <utility>

#include "core/comm/local_reduce.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

char* bytes_of(const at::Tensor& t) {
  return static_cast<char*>(t.data_ptr());
}

void require_usable(const at::Tensor& t, const char* what) {
  if (!t.is_cpu() || !t.is_contiguous()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what,
                       ": the tensor is ",
                       t.is_cpu() ? "not contiguous" : "not on the CPU",
                       "; ranks that are threads exchange contiguous CPU tensors"));
  }
}

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.size() != 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": ", tensors.size(), " tensors given; allowed: one"));
  }
  require_usable(tensors[0], what);
  return tensors[0];
}

void require_sizes(bool ok, const at::Tensor& out, const at::Tensor& in, const char* rule) {
  if (ok && out.scalar_type() == in.scalar_type()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("out has ",
                     out.numel(),
                     " x ",
                     c10::toString(out.scalar_type()),
                     ", in has ",
                     in.numel(),
                     " x ",
                     c10::toString(in.scalar_type()),
                     "; ",
                     rule));
}

// The c10d view of a ThreadOp, for one rank.
class ThreadWork final : public c10d::Work {
 public:
  ThreadWork(int rank,
             c10d::OpType type,
             std::shared_ptr<ThreadHub> hub,
             std::shared_ptr<ThreadOp> op,
             std::vector<at::Tensor> results)
      : Work(rank, type), hub_(std::move(hub)), op_(std::move(op)), results_(std::move(results)) {}

  bool isCompleted() override { return op_->completed(); }
  bool isSuccess() const override { return op_->completed() && exception() == nullptr; }
  std::exception_ptr exception() const override {
    if (!op_->completed()) return nullptr;
    try {
      ThreadHub::rethrow(*op_);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }
  bool wait(std::chrono::milliseconds timeout) override {
    if (op_->completed()) {
      ThreadHub::rethrow(*op_);
      return true;
    }
    const auto limit = timeout == kNoTimeout ? std::chrono::hours(24 * 365) : timeout;
    // The same text as in c10d::Work::wait(); translate() recognises a timeout by it.
    TORCH_CHECK(hub_->wait(*op_, limit), "Operation timed out!");
    return true;
  }
  std::vector<at::Tensor> result() override { return results_; }
  // The callback runs on the thread that completes the operation, which may belong to another rank.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    hub_->when_done(*op_, [future, op = op_, results = results_] {
      try {
        ThreadHub::rethrow(*op);
        future->markCompleted(c10::IValue(results));
      } catch (...) {
        future->setError(std::current_exception());
      }
    });
    return future;
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadOp> op_;
  std::vector<at::Tensor> results_;
};

// keep: tensors whose memory must live until the operation is done.
Contribution contribution_of(const Signature& signature,
                             const char* in,
                             char* out,
                             std::vector<at::Tensor> keep) {
  Contribution mine;
  mine.signature = signature;
  mine.in = in;
  mine.out = out;
  mine.keep = std::move(keep);
  return mine;
}

// Returns the byte offsets of the parts of t, one per rank, and the end. `splits` counts rows of
// dim 0; empty = equal parts.
std::vector<int64_t> offsets(const at::Tensor& t,
                             const std::vector<int64_t>& splits,
                             int size,
                             const char* what) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  const int64_t row_bytes = rows == 0 ? 0 : static_cast<int64_t>(t.nbytes()) / rows;
  std::vector<int64_t> at{0};
  for (int r = 0; r < size; ++r) {
    at.push_back(at.back() + (splits.empty() ? rows / size : splits.at(r)) * row_bytes);
  }
  if (at.back() != static_cast<int64_t>(t.nbytes()) ||
      (!splits.empty() && splits.size() != at.size() - 1)) {
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

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadHub> hub, int rank)
    : Backend(rank, hub->size()), hub_(std::move(hub)) {}

Signature ThreadBackend::sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail) {
  return {op, static_cast<int32_t>(of.scalar_type()), count, detail, ++sequence_};
}

ThreadBackend::WorkPtr ThreadBackend::post(Contribution contribution,
                                           const at::Tensor& of,
                                           c10d::OpType type,
                                           Tensors results) {
  auto op = hub_->post(rank_, std::move(contribution), of.defined() ? of.element_size() : 0);
  return c10::make_intrusive<ThreadWork>(rank_, type, hub_, std::move(op), std::move(results));
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& opts) {
  const at::Tensor& t = single(tensors, "all_reduce");
  const c10d::ReduceOp::RedOpType op = opts.reduceOp;
  check_reducible(t.scalar_type(), op);
  Contribution mine = contribution_of(
      sign(Collective::kAllReduce, t, t.numel(), op), bytes_of(t), bytes_of(t), {t});
  return post(std::move(mine), t, c10d::OpType::ALLREDUCE, tensors);
}

ThreadBackend::WorkPtr ThreadBackend::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& opts) {
  const at::Tensor& t = single(tensors, "broadcast");
  if (opts.rootRank < 0 || opts.rootRank >= size_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("broadcast: root ", opts.rootRank, "; allowed: 0 to ", size_ - 1));
  }
  Contribution mine = contribution_of(
      sign(Collective::kBroadcast, t, t.numel(), opts.rootRank), bytes_of(t), bytes_of(t), {t});
  return post(std::move(mine), t, c10d::OpType::BROADCAST, tensors);
}

ThreadBackend::WorkPtr ThreadBackend::allgather(std::vector<Tensors>& outputs,
                                                Tensors& inputs,
                                                const c10d::AllgatherOptions&) {
  const at::Tensor& in = single(inputs, "all_gather");
  Contribution mine = contribution_of(
      sign(Collective::kAllGather, in, in.numel() * size_), bytes_of(in), nullptr, outputs.at(0));
  mine.keep.push_back(in);
  for (const at::Tensor& out : outputs.at(0)) {
    require_usable(out, "all_gather");
    require_sizes(
        out.numel() == in.numel(), out, in, "each output of all_gather has the elements of in");
    mine.outs.push_back(bytes_of(out));
  }
  if (mine.outs.size() != static_cast<size_t>(size_)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("all_gather: ", mine.outs.size(), " outputs for ", size_, " ranks"));
  }
  return post(std::move(mine), in, c10d::OpType::ALLGATHER, outputs[0]);
}

ThreadBackend::WorkPtr ThreadBackend::_allgather_base(at::Tensor& output,
                                                      at::Tensor& input,
                                                      const c10d::AllgatherOptions&) {
  require_usable(input, "all_gather");
  require_usable(output, "all_gather");
  require_sizes(output.numel() == input.numel() * size_,
                output,
                input,
                "out of all_gather has size() times the elements of in");
  // The count is that of the larger side, as in all signatures.
  Contribution mine = contribution_of(sign(Collective::kAllGather, output, output.numel()),
                                      bytes_of(input),
                                      bytes_of(output),
                                      {input, output});
  return post(std::move(mine), output, c10d::OpType::_ALLGATHER_BASE, {output});
}

ThreadBackend::WorkPtr ThreadBackend::_reduce_scatter_base(at::Tensor& output,
                                                           at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& opts) {
  require_usable(input, "reduce_scatter");
  require_usable(output, "reduce_scatter");
  require_sizes(input.numel() == output.numel() * size_,
                output,
                input,
                "in of reduce_scatter has size() times the elements of out");
  const c10d::ReduceOp::RedOpType op = opts.reduceOp;
  check_reducible(input.scalar_type(), op);
  Contribution mine = contribution_of(sign(Collective::kReduceScatter, input, input.numel(), op),
                                      bytes_of(input),
                                      bytes_of(output),
                                      {input, output});
  return post(std::move(mine), input, c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

ThreadBackend::WorkPtr ThreadBackend::alltoall_base(at::Tensor& output,
                                                    at::Tensor& input,
                                                    std::vector<int64_t>& output_splits,
                                                    std::vector<int64_t>& input_splits,
                                                    const c10d::AllToAllOptions&) {
  require_usable(input, "all_to_all");
  require_usable(output, "all_to_all");
  // With uneven parts the totals may differ between ranks, so the signature carries no count. The
  // hub compares the sizes of the parts instead.
  Contribution mine = contribution_of(
      sign(Collective::kAllToAll, input, -1), bytes_of(input), bytes_of(output), {input, output});
  mine.in_offsets = offsets(input, input_splits, size_, "in");
  mine.out_offsets = offsets(output, output_splits, size_, "out");
  return post(std::move(mine), input, c10d::OpType::ALLTOALL_BASE, {output});
}

// A message (send and recv) has no sequence number, because sender and receiver may have counted
// different numbers of messages. Both halves are matched by sender, receiver and tag.
ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& t = single(tensors, "send");
  Contribution mine =
      contribution_of({Collective::kSend, static_cast<int32_t>(t.scalar_type()), t.numel(), tag},
                      bytes_of(t),
                      nullptr,
                      {t});
  auto op = hub_->post_message(true, rank_, to, tag, std::move(mine), t.element_size());
  return c10::make_intrusive<ThreadWork>(rank_, c10d::OpType::SEND, hub_, std::move(op), tensors);
}

ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& t = single(tensors, "recv");
  Contribution mine =
      contribution_of({Collective::kRecv, static_cast<int32_t>(t.scalar_type()), t.numel(), tag},
                      nullptr,
                      bytes_of(t),
                      {t});
  auto op = hub_->post_message(false, from, rank_, tag, std::move(mine), t.element_size());
  return c10::make_intrusive<ThreadWork>(rank_, c10d::OpType::RECV, hub_, std::move(op), tensors);
}

ThreadBackend::WorkPtr ThreadBackend::barrier(const c10d::BarrierOptions&) {
  Contribution mine =
      contribution_of({Collective::kBarrier, -1, 0, 0, ++sequence_}, nullptr, nullptr, {});
  return post(std::move(mine), at::Tensor(), c10d::OpType::BARRIER, {});
}

void ThreadBackend::abort() {
  hub_->kill(concat("rank ", hub_->ranks()[rank_], " gave up"));
}

}  // namespace yoke
