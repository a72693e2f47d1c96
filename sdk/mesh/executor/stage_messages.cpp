// The shapes of the activations between stages are not part of the contract, and a rank cannot
// compute them from its own blocks. Running a forward on tensors without memory would find them,
// but not every model supports that. So the sender says them once. Both sides have seen the same
// micro-batches, and therefore agree on which messages have a header.
//
// Each message has a buffer of its own, from LibTorch's allocator. A ring of fixed buffers would
// save its calls, which take less than a microsecond, but the schedule would have to assign the
// buffers.
#include "sdk/mesh/executor/stage_messages.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "sdk/mesh/dtensor/redistribute.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

constexpr int64_t kMostDims = 8;
// dtype, whether the tensor is distributed, its placements, number of dimensions, sizes
constexpr int64_t kHeaderWords = 2 + kMaxMeshAxes + 1 + kMostDims;

// Tags of the messages at one border between stages. `border` is the stage before it.
int tag_of(int border, bool grad) {
  return 2 * border + (grad ? 1 : 0);
}

bool is_grad(ActionKind kind) {
  return info_of(kind).message->grad;
}

}  // namespace

void StageMessages::begin_step(const std::vector<TorchInputs>& inputs,
                               const std::vector<OwnStage>& stages) {
  messages_.clear();
  inputs_.clear();
  for (const TorchInputs& micro : inputs) {
    InputSizes& sizes = inputs_.emplace_back();
    for (const auto& [role, tensor] : micro)
      sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  receives_ahead_ = true;
  for (const OwnStage& stage : stages) {
    for (const InputSizes& sizes : inputs_) {
      const auto known = [&](int border) { return shapes_.count({border, sizes}) > 0; };
      if (stage.receives() && !known(stage.index - 1)) receives_ahead_ = false;
      if (stage.sends() && !known(stage.index)) receives_ahead_ = false;
    }
  }
}

bool StageMessages::idle() const {
  return std::none_of(messages_.begin(), messages_.end(), [](const auto& entry) {
    return entry.second.work.pending();
  });
}

const Comm& StageMessages::comm_to(int peer, bool grad) const {
  return comms_.messages[message_comm(rank_, peer, grad, comms_.pp_size())];
}

const Comm& StageMessages::comm_from(int peer, bool grad) const {
  return comms_.messages[message_comm(peer, rank_, grad, comms_.pp_size())];
}

void StageMessages::run(const Action& a, BlockRunner& blocks) {
  switch (info_of(a.kind).message->step) {
    case MessageInfo::kSend:
      return send(a, blocks.take(a.stage, a.micro));
    case MessageInfo::kReceive:
      return start_receive(a);
    case MessageInfo::kWait:
      return blocks.put(a.stage, a.micro, finish_receive(a));
    case MessageInfo::kFree:
      return free(a);
  }
}

// Returns how an output is passed on: the sums of a Partial one are completed first. The next stage
// would have to complete them in any case, and every rank would send a whole tensor.
StageMessages::Shape StageMessages::shape_of(const at::Tensor& output) const {
  Shape shape{output.sizes().vec(), output.scalar_type(), is_dtensor(output), {}};
  if (!shape.distributed) return shape;
  shape.placements = placements_of(output);
  for (int axis = 0; axis < mesh_->ndim(); ++axis) {
    Placement& p = shape.placements[axis];
    const bool cut = mesh_->axis(axis).sequence_parallel && shape.sizes.size() >= 3;
    if (p.is_partial()) p = cut ? shard(1) : replicate();
  }
  return shape;
}

// Returns this rank's part of an output, or of its gradient, in the layout in which it is sent.
at::Tensor StageMessages::local_part(const at::Tensor& tensor, const Shape& shape) const {
  if (!shape.distributed) return tensor.detach().contiguous();
  const bool is_whole = !is_dtensor(tensor);
  return redistribute_local(*mesh_,
                            is_whole ? tensor.detach() : local_of(tensor).detach(),
                            shape.sizes,
                            is_whole ? Placements{} : placements_of(tensor),
                            shape.placements)
      .contiguous();
}

void StageMessages::send(const Action& a, const at::Tensor& tensor) {
  const bool grad = is_grad(a.kind);
  const Comm& comm = comm_to(a.peer, grad);
  const int border = grad ? a.stage - 1 : a.stage, tag = tag_of(border, grad);
  const ShapeKey key{border, inputs_[a.micro]};
  if (!grad && shapes_.count(key) == 0)
    send_header(shapes_.emplace(key, shape_of(tensor)).first->second, comm, a, tag);
  Message& message = messages_[{grad ? kGradOut : kCarryOut, a.stage, a.micro}];
  message.local = local_part(tensor, shapes_.at(key));
  message.work = comm.send(message.local, a.peer, tag);
}

void StageMessages::start_receive(const Action& a) {
  if (!receives_ahead_) return;
  const bool grad = is_grad(a.kind);
  start(messages_[{grad ? kGradIn : kCarryIn, a.stage, a.micro}], a, grad);
}

// Starts to receive into a new buffer. A gradient has the shape of the output that was sent.
void StageMessages::start(Message& message, const Action& a, bool grad) {
  const Comm& comm = comm_from(a.peer, grad);
  const int border = grad ? a.stage : a.stage - 1;
  const int tag = tag_of(border, grad);
  auto known = shapes_.find({border, inputs_[a.micro]});
  if (known == shapes_.end()) {
    known = shapes_.emplace(ShapeKey{border, inputs_[a.micro]}, receive_header(comm, a, tag)).first;
  }
  const Shape& shape = known->second;
  const Sizes sizes = shape.distributed
                          ? local_sizes(shape.sizes, shape.placements, mesh_->coordinates())
                          : shape.sizes;
  message.shape = &shape;
  message.local = at::empty(sizes, at::TensorOptions().dtype(shape.dtype).device(device_));
  message.work = comm.receive(message.local, a.peer, tag);
}

at::Tensor StageMessages::finish_receive(const Action& a) {
  const bool grad = is_grad(a.kind);
  const Key key{grad ? kGradIn : kCarryIn, a.stage, a.micro};
  Message& message = messages_[key];
  if (!message.local.defined()) start(message, a, grad);
  message.work.wait();
  const Message done = std::move(message);
  messages_.erase(key);
  if (!done.shape->distributed) return done.local;
  return from_local(done.local, *mesh_, done.shape->placements, done.shape->sizes);
}

void StageMessages::free(const Action& a) {
  const Key key{is_grad(a.kind) ? kGradOut : kCarryOut, a.stage, a.micro};
  messages_.at(key).work.wait();
  messages_.erase(key);
}

void StageMessages::send_header(const Shape& shape, const Comm& comm, const Action& a, int tag) {
  const auto dims = static_cast<int64_t>(shape.sizes.size());
  if (dims > kMostDims) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("the output of stage ",
                       a.stage,
                       " has ",
                       dims,
                       " dimensions; a pipeline passes on tensors of up to ",
                       kMostDims));
  }
  at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  int64_t* word = header.mutable_data_ptr<int64_t>();
  *word++ = static_cast<int64_t>(shape.dtype);
  *word++ = shape.distributed ? 1 : 0;
  for (const Placement& p : shape.placements) *word++ = p.bits();
  *word++ = dims;
  std::copy(shape.sizes.begin(), shape.sizes.end(), word);
  comm.send(header.to(device_), a.peer, tag).wait();
}

StageMessages::Shape StageMessages::receive_header(const Comm& comm, const Action& a, int tag) {
  const at::Tensor there =
      at::empty({kHeaderWords}, at::TensorOptions().dtype(at::kLong).device(device_));
  comm.receive(there, a.peer, tag).wait();
  const at::Tensor header = there.cpu();
  const int64_t* word = header.const_data_ptr<int64_t>();
  Shape shape;
  shape.dtype = static_cast<at::ScalarType>(*word++);
  shape.distributed = *word++ != 0;
  for (Placement& p : shape.placements) p = std::bit_cast<Placement>(*word++);
  const int64_t dims = *word++;
  shape.sizes.assign(word, word + dims);
  return shape;
}

}  // namespace yoke::mesh
