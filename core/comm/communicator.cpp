// The two kinds of Communicator. GroupCommunicator, for several ranks, checks its arguments,
// flattens the tensors and passes them to a CountingBackend. SelfCommunicator, for one rank, copies
// or does nothing.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "core/comm/communicator_impl.hpp"
#include "core/comm/local_reduce.hpp"
#include "core/comm/thread_backend.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// A ProcessGroup that forwards to `backend`. c10d requires a store here; nothing is exchanged
// through it, so an empty one in memory is enough.
c10::intrusive_ptr<c10d::ProcessGroup> front_object(
    const c10::intrusive_ptr<c10d::Backend>& backend,
    const std::string& name,
    c10::DeviceType device = c10::DeviceType::CPU) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(name);
  return group;
}

RedOp reduce_op(int32_t op) {
  switch (op) {
    case YOKE_SUM:
      return RedOp::SUM;
    case YOKE_AVG:
      return RedOp::AVG;
    case YOKE_MAX:
      return RedOp::MAX;
    case YOKE_MIN:
      return RedOp::MIN;
    default:
      throw Error(
          YOKE_INVALID_ARGUMENT,
          concat("reduce operation ", op, "; allowed: YOKE_SUM, YOKE_AVG, YOKE_MAX, YOKE_MIN"));
  }
}

std::string dtype_text(const at::Tensor& tensor) {
  return yoke::dtype_text(static_cast<int32_t>(tensor.scalar_type()));
}

void require_compact(const at::Tensor& t, const char* what) {
  if (!t.defined()) throw Error(YOKE_INVALID_ARGUMENT, concat(what, ": the tensor is undefined"));
  if (!t.is_contiguous()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": the tensor is not compact row-major; copy it first"));
  }
}

// Requires that `large` has `size` times the elements of `small`, in the same dtype.
void require_parts(const at::Tensor& large,
                   const at::Tensor& small,
                   int32_t size,
                   const char* what) {
  require_compact(large, what);
  require_compact(small, what);
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * size) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what,
                     ": the whole has ",
                     large.numel(),
                     " x ",
                     dtype_text(large),
                     ", the part ",
                     small.numel(),
                     " x ",
                     dtype_text(small),
                     "; allowed: one dtype, and ",
                     size,
                     " parts in the whole"));
}

void require_root(int32_t root, int32_t size) {
  if (root >= 0 && root < size) return;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat(
          "broadcast: root ", root, "; allowed: 0 to ", size - 1, " (a rank of the communicator)"));
}

void require_peer(int32_t peer, int32_t rank, int32_t size, const char* what) {
  if (peer >= 0 && peer < size && peer != rank) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what, ": rank ", peer, "; allowed: 0 to ", size - 1, ", but not this rank, ") +
                  concat(rank, " (ranks of the communicator)"));
}

// Requires that the counts of the parts add up to the tensor. Without counts, the parts are equal.
void require_counts(const at::Tensor& tensor,
                    const std::vector<int64_t>& counts,
                    int32_t size,
                    const char* what) {
  require_compact(tensor, what);
  if (counts.empty()) {
    if (tensor.numel() % size == 0) return;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": ", tensor.numel(), " elements cannot be divided into ", size) +
                    " equal parts; pass the counts of the parts");
  }
  if (counts.size() != static_cast<size_t>(size)) {
    throw Error(
        YOKE_INVALID_ARGUMENT,
        concat(what, ": ", counts.size(), " counts; allowed: ", size, ", one for each rank"));
  }
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0)
      throw Error(YOKE_INVALID_ARGUMENT, concat(what, ": a part has ", count, " elements"));
    sum += count;
  }
  if (sum != tensor.numel()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": the parts have ", sum, " elements, the tensor ", tensor.numel()));
  }
}

void require_same_dtype(const at::Tensor& out, const at::Tensor& in, const char* what) {
  if (out.scalar_type() == in.scalar_type()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what, ": out has the dtype ", dtype_text(out), ", in ") +
                  concat(dtype_text(in), "; allowed: one dtype"));
}

class BackendWork final : public CommWork {
 public:
  explicit BackendWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class DoneWork final : public CommWork {
 public:
  void wait() override {}
};

std::unique_ptr<CommWork> done() {
  return std::make_unique<DoneWork>();
}

// A communicator of several ranks. Empty tensors never reach the transport: Gloo, NCCL and
// ThreadBackend each treat them differently.
class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(c10::intrusive_ptr<CountingBackend> backend, const std::string& name)
      : backend_(std::move(backend)),
        group_(front_object(
            backend_, name, backend_->on_device() ? c10::DeviceType::CUDA : c10::DeviceType::CPU)) {
  }

  int32_t size() const override { return backend_->getSize(); }
  int32_t rank() const override { return backend_->getRank(); }

  std::unique_ptr<CommWork> all_reduce(at::Tensor inout, int32_t op) override {
    require_compact(inout, "all_reduce");
    check_reducible(inout.scalar_type(), reduce_op(op));
    if (inout.numel() == 0) return done();
    std::vector<at::Tensor> tensors{inout.view(-1)};
    c10d::AllreduceOptions opts;
    opts.reduceOp = reduce_op(op);
    return started(backend_->allreduce(tensors, opts));
  }
  std::unique_ptr<CommWork> all_gather(at::Tensor out, at::Tensor in) override {
    require_parts(out, in, size(), "all_gather");
    if (in.numel() == 0) return done();
    at::Tensor whole = out.view(-1), part = in.view(-1);
    return started(backend_->_allgather_base(whole, part, c10d::AllgatherOptions()));
  }
  std::unique_ptr<CommWork> reduce_scatter(at::Tensor out, at::Tensor in, int32_t op) override {
    require_parts(in, out, size(), "reduce_scatter");
    check_reducible(in.scalar_type(), reduce_op(op));
    if (in.numel() == 0) return done();
    at::Tensor whole = in.view(-1), part = out.view(-1);
    c10d::ReduceScatterOptions opts;
    opts.reduceOp = reduce_op(op);
    return started(backend_->_reduce_scatter_base(part, whole, opts));
  }
  std::unique_ptr<CommWork> broadcast(at::Tensor inout, int32_t root) override {
    require_compact(inout, "broadcast");
    require_root(root, size());
    if (inout.numel() == 0) return done();
    std::vector<at::Tensor> tensors{inout.view(-1)};
    c10d::BroadcastOptions opts;
    opts.rootRank = root;
    return started(backend_->broadcast(tensors, opts));
  }
  void barrier() override { backend_->barrier(c10d::BarrierOptions())->wait(); }
  std::unique_ptr<CommWork> send(at::Tensor in, int32_t to) override {
    require_compact(in, "send");
    require_peer(to, rank(), size(), "send");
    if (in.numel() == 0) return done();
    std::vector<at::Tensor> tensors{in.view(-1)};
    return started(backend_->send(tensors, to, 0));
  }
  std::unique_ptr<CommWork> recv(at::Tensor out, int32_t from) override {
    require_compact(out, "recv");
    require_peer(from, rank(), size(), "recv");
    if (out.numel() == 0) return done();
    std::vector<at::Tensor> tensors{out.view(-1)};
    return started(backend_->recv(tensors, from, 0));
  }
  std::unique_ptr<CommWork> all_to_all(at::Tensor out,
                                       std::vector<int64_t> out_counts,
                                       at::Tensor in,
                                       std::vector<int64_t> in_counts) override {
    require_counts(out, out_counts, size(), "all_to_all: out");
    require_counts(in, in_counts, size(), "all_to_all: in");
    require_same_dtype(out, in, "all_to_all");
    at::Tensor received = out.view(-1), sent = in.view(-1);
    return started(backend_->alltoall_base(received, sent, out_counts, in_counts, {}));
  }
  c10d::ProcessGroup* process_group() override { return group_.get(); }

 private:
  static std::unique_ptr<CommWork> started(c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<BackendWork>(std::move(work));
  }

  c10::intrusive_ptr<CountingBackend> backend_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

// A communicator of one rank. Nothing is sent, so nothing is counted.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(int32_t global_rank, std::string name, bool on_device)
      : global_rank_(global_rank), name_(std::move(name)), on_device_(on_device) {}

  int32_t size() const override { return 1; }
  int32_t rank() const override { return 0; }
  std::unique_ptr<CommWork> all_reduce(at::Tensor inout, int32_t op) override {
    require_compact(inout, "all_reduce");
    check_reducible(inout.scalar_type(), reduce_op(op));
    return done();
  }
  std::unique_ptr<CommWork> all_gather(at::Tensor out, at::Tensor in) override {
    require_parts(out, in, 1, "all_gather");
    return copied(out, in);
  }
  std::unique_ptr<CommWork> reduce_scatter(at::Tensor out, at::Tensor in, int32_t op) override {
    require_parts(in, out, 1, "reduce_scatter");
    check_reducible(in.scalar_type(), reduce_op(op));
    return copied(out, in);
  }
  std::unique_ptr<CommWork> broadcast(at::Tensor inout, int32_t root) override {
    require_compact(inout, "broadcast");
    require_root(root, 1);
    return done();
  }
  void barrier() override {}
  std::unique_ptr<CommWork> send(at::Tensor, int32_t to) override { refuse("send", to); }
  std::unique_ptr<CommWork> recv(at::Tensor, int32_t from) override { refuse("recv", from); }
  std::unique_ptr<CommWork> all_to_all(at::Tensor out,
                                       std::vector<int64_t> out_counts,
                                       at::Tensor in,
                                       std::vector<int64_t> in_counts) override {
    require_counts(out, out_counts, 1, "all_to_all: out");
    require_counts(in, in_counts, 1, "all_to_all: in");
    require_parts(out, in, 1, "all_to_all");
    return copied(out, in);
  }
  // Created at the first call, because few backends need it and it requires its own ThreadHub.
  c10d::ProcessGroup* process_group() override {
    if (!group_ && !on_device_) {
      auto hub = std::make_shared<ThreadHub>(std::vector<int32_t>{global_rank_}, false);
      group_ = front_object(c10::make_intrusive<ThreadBackend>(std::move(hub), 0), name_);
    }
    return group_.get();
  }

 private:
  [[noreturn]] static void refuse(const char* what, int32_t peer) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": rank ", peer, "; the communicator has only this rank"));
  }
  // If `in` and `out` are the same memory, there is nothing to copy.
  static std::unique_ptr<CommWork> copied(at::Tensor out, const at::Tensor& in) {
    if (out.data_ptr() != in.data_ptr()) out.view(-1).copy_(in.view(-1));
    return done();
  }

  int32_t global_rank_;
  std::string name_;
  bool on_device_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(c10::intrusive_ptr<CountingBackend> backend,
                                                const std::string& name) {
  return std::make_unique<GroupCommunicator>(std::move(backend), name);
}

std::unique_ptr<Communicator> make_self_communicator(int32_t global_rank,
                                                     const std::string& name,
                                                     bool on_device) {
  return std::make_unique<SelfCommunicator>(global_rank, name, on_device);
}

}  // namespace yoke
