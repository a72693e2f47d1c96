// The messages between the stages of a pipeline: outputs of stages on their way forward, and
// gradients of these outputs on their way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/dtensor/mesh.hpp"
#include "sdk/mesh/executor/block_runner.hpp"
#include "sdk/mesh/schedule/schedule.hpp"
#include "yoke/torch.hpp"

namespace yoke::mesh {

// Carries out the message actions of the schedule. Ranks exchange their local parts of distributed
// tensors. The first message for inputs of some shape is preceded by a header that describes the
// tensor, because a stage does not know what the one before it returns. In such a step nothing is
// received ahead of time. Used by one thread at a time.
class StageMessages {
 public:
  // All arguments must outlive the object. rank: along pp. mesh: that of the distributed tensors;
  // nullptr if there are none.
  StageMessages(const ModelComms& comms, int rank, Mesh* mesh, at::Device device)
      : comms_(comms), rank_(rank), mesh_(mesh), device_(device) {}

  // inputs: one entry per micro-batch. stages: those of this rank.
  void begin_step(const std::vector<TorchInputs>& inputs, const std::vector<OwnStage>& stages);
  // Frees what a failed step still holds. Must not be called while a message is in flight.
  void abandon_step() { messages_.clear(); }
  // Returns true if no message is in flight.
  bool idle() const;

  // Carries out an action about a message. What it sends is taken from the blocks, and what it
  // receives is passed to them.
  void run(const Action& action, BlockRunner& blocks);

 private:
  enum Kind { kCarryIn, kCarryOut, kGradIn, kGradOut };
  struct Key {
    Kind kind;
    int stage, micro;
    auto operator<=>(const Key&) const = default;
  };
  struct Shape {
    Sizes sizes;  // sizes of the whole tensor
    at::ScalarType dtype;
    bool distributed = false;
    Placements placements;
  };
  struct Message {
    at::Tensor local;
    const Shape* shape = nullptr;  // only of what is received
    Work work;
  };
  // The sizes of all inputs of a micro-batch, which determine the shapes of all outputs.
  using InputSizes = std::vector<int64_t>;
  using ShapeKey = std::pair<int, InputSizes>;  // the stage that sends the output

  void send(const Action& action, const at::Tensor& tensor);
  void start_receive(const Action& action);
  at::Tensor finish_receive(const Action& action);
  void free(const Action& action);
  Shape shape_of(const at::Tensor& output) const;
  at::Tensor local_part(const at::Tensor& tensor, const Shape& shape) const;
  void start(Message& message, const Action& action, bool grad);
  void send_header(const Shape& shape, const Comm& comm, const Action& action, int tag);
  Shape receive_header(const Comm& comm, const Action& action, int tag);
  const Comm& comm_to(int peer, bool grad) const;
  const Comm& comm_from(int peer, bool grad) const;

  const ModelComms& comms_;
  int rank_;
  Mesh* mesh_;
  at::Device device_;
  std::vector<InputSizes> inputs_;
  std::map<ShapeKey, Shape> shapes_;  // outputs that have been sent or received before
  bool receives_ahead_ = false;
  std::map<Key, Message> messages_;
};

}  // namespace yoke::mesh
