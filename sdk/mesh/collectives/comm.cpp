#include "sdk/mesh/collectives/comm.hpp"

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace yoke::mesh {
namespace {

constexpr const char* kMessagePurposes[kMessageComms] = {"outputs down",
                                                         "outputs down of odd ranks",
                                                         "outputs up",
                                                         "outputs up of odd ranks",
                                                         "gradients down",
                                                         "gradients down of odd ranks",
                                                         "gradients up",
                                                         "gradients up of odd ranks"};

}  // namespace

const YokeCollectives& collectives_of(const YokeHost& host) {
  const YokeHeader* service =
      host.get_service(host.ctx, "yoke.collectives/1", offsetof(YokeCollectives, send));
  if (service == nullptr) {
    throw Error(
        YOKE_FAILED_PRECONDITION,
        "more than one rank needs the host's service yoke.collectives/1; this host has none");
  }
  return *reinterpret_cast<const YokeCollectives*>(service);
}

void Work::wait() {
  if (!work_) return;
  work_->wait();
  work_.reset();
}

Comm::Comm(const YokeCollectives& collectives,
           uint32_t axes,
           const char* purpose,
           at::DeviceType device) {
  YokeComm* comm = nullptr;
  call(
      [&](YokeError* err) { return collectives.comm(collectives.ctx, axes, purpose, &comm, err); });
  void* native = collectives.native(comm, "c10d::ProcessGroup");
  if (native == nullptr) {
    throw Error(
        YOKE_FAILED_PRECONDITION,
        "distributed tensors and stages need communicators made of c10d::ProcessGroup; this "
        "host's are not");
  }
  backend_ = static_cast<c10d::ProcessGroup*>(native)->getBackend(device);
  size_ = collectives.size(comm);
  rank_ = collectives.rank(comm);
}

// Tensors are passed flattened, because some c10d backends compare the shapes of input and output,
// which do not matter here.
Work Comm::all_gather(const at::Tensor& out, const at::Tensor& in) const {
  at::Tensor to = out.view({-1}), from = in.view({-1});
  return Work(backend_->_allgather_base(to, from, {}));
}

Work Comm::reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) const {
  at::Tensor to = out.view({-1}), from = in.view({-1});
  return Work(backend_->_reduce_scatter_base(to, from, {}));
}

Work Comm::all_reduce_sum(const at::Tensor& inout) const {
  std::vector<at::Tensor> list{inout};
  return Work(backend_->allreduce(list, {}));
}

Work Comm::all_reduce_max(const at::Tensor& inout) const {
  std::vector<at::Tensor> list{inout};
  return Work(backend_->allreduce(list, {c10d::ReduceOp::MAX}));
}

Work Comm::all_to_all(const at::Tensor& out, const at::Tensor& in) const {
  at::Tensor to = out.view({-1}), from = in.view({-1});
  std::vector<int64_t> even;
  return Work(backend_->alltoall_base(to, from, even, even, {}));
}

// Uses an all-to-all in which only the piece for the next rank and the piece from the previous rank
// are not empty. c10d has no ring shift, and a send and a receive would be two separate works.
Work Comm::pass_on(const at::Tensor& out, const at::Tensor& in) const {
  at::Tensor to = out.view({-1}), from = in.view({-1});
  std::vector<int64_t> received(size_, 0), sent(size_, 0);
  sent[(rank_ + 1) % size_] = from.numel();
  received[(rank_ + size_ - 1) % size_] = to.numel();
  return Work(backend_->alltoall_base(to, from, received, sent, {}));
}

Work Comm::send(const at::Tensor& in, int to, int tag) const {
  std::vector<at::Tensor> list{in.view({-1})};
  return Work(backend_->send(list, to, tag));
}

Work Comm::receive(const at::Tensor& out, int from, int tag) const {
  std::vector<at::Tensor> list{out.view({-1})};
  return Work(backend_->recv(list, from, tag));
}

// NCCL carries out the messages between two ranks one after the other, so they must agree which one
// is the first.
void Comm::add_from(const at::Tensor& inout, int peer) const {
  const at::Tensor theirs = at::empty_like(inout);
  Work first = rank_ < peer ? send(inout, peer, 0) : receive(theirs, peer, 0);
  Work second = rank_ < peer ? receive(theirs, peer, 0) : send(inout, peer, 0);
  first.wait();
  second.wait();
  inout.add_(theirs);
}

// An axis of degree 1 is left out of the mask. The communicator stays the same, but the host then
// counts its collectives only for axes that have several ranks.
Comm comm_along(std::initializer_list<int> axes,
                const char* purpose,
                const YokePlan& plan,
                const YokeHost& host) {
  uint32_t mask = 0;
  for (const int axis : axes) mask |= plan.degree[axis] > 1 ? YOKE_AXIS_BIT(axis) : 0;
  return mask == 0 ? Comm() : Comm(collectives_of(host), mask, purpose, device_type(host));
}

ModelComms ModelComms::make(const YokePlan& plan, bool stages_return, const YokeHost& host) {
  const auto along = [&](int axis, const char* purpose) {
    return comm_along({axis}, purpose, plan, host);
  };
  ModelComms comms;
  for (int i = 0; i < kMessageComms; ++i) {
    const bool grad = (i & kMessageIsGrad) != 0, up = (i & kMessageGoesUp) != 0;
    // Outputs go down, and gradients up, only between ranks that have several stages.
    if (grad == up && !stages_return) continue;
    if ((i & kMessageOfOddRank) != 0 && plan.degree[YOKE_PP] <= 2) continue;
    comms.messages[i] = along(YOKE_PP, kMessagePurposes[i]);
  }
  comms.tied = along(YOKE_PP, "tied");
  comms.cp = along(YOKE_CP, "dtensor");
  comms.tp = along(YOKE_TP, "dtensor");
  comms.reduce_partial_grads = along(YOKE_TP, "reduce");
  return comms;
}

at::DeviceType device_type(const YokeHost& host) {
  return host.device.type == YOKE_DEVICE_CUDA ? at::kCUDA : at::kCPU;
}

}  // namespace yoke::mesh
