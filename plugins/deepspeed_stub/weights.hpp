// The parameters of a model on one rank: which elements the rank keeps, how whole parameters are
// passed to the model, and how updated values are sent to the other ranks. A parameter is whole on
// a rank that has all its elements.
//
// There are two implementations: flat_weights.hpp (ZeRO stages 0 to 2) and sliced_weights.hpp
// (stage 3).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/comm.hpp"
#include "plugins/deepspeed_stub/config/settings.hpp"
#include "plugins/deepspeed_stub/layout.hpp"
#include "plugins/deepspeed_stub/offload/state_arrays.hpp"

namespace yoke::deepspeed_stub {

// The environment of the weights, gradients and optimizer of one wrapped model. It outlives them.
struct Setup {
  const YokeModel& model;
  const ModelSpec& spec;
  const Settings& settings;
  const Comms& comms;
  const Device& device;
  const Device& host;      // the CPU, which updates state that is offloaded from a GPU
  FileIo* io;              // NULL unless offload uses files
  int moments;             // number of moments of the optimizer
  int32_t param_dtype;     // dtype in which the model computes
  int32_t master_dtype;    // dtype of master weights and moments
  int32_t gradient_dtype;  // dtype in which gradients are accumulated and reduced
};

// Returns whether master weights are arrays of their own. Otherwise the parameters, which have the
// same dtype, are the masters. On a GPU, offloaded masters are apart in any dtype.
bool masters_are_apart(const Setup& setup);
// Return where the state of the optimizer, and the slices of parameters of stage 3, are kept.
// elements: size of the store.
StatePlace optimizer_place(const Setup& setup, int64_t elements);
StatePlace params_place(const Setup& setup);

// The elements that this rank keeps of the trainable, or of the frozen, parameters. The values are
// in arrays that Weights owns.
struct Store {
  Owned owned;    // the elements, and their offsets in the values
  Values master;  // master weights, owned.size elements
  Values copy;    // the same elements in param_dtype; empty unless masters are apart

  // As StateArrays::cut and finish, for both.
  int64_t cut(int64_t begin, int64_t end) const {
    return std::min(master.cut(begin, end), copy.cut(begin, end));
  }
  void finish() const {
    master.finish();
    copy.finish();
  }
};

// Updates elements [begin, begin + count) of the store of trainable parameters: its masters and, if
// there is one, its copy.
using Update = std::function<void(int64_t begin, int64_t count)>;

// A pass is one forward of all blocks and, in training, one backward in reverse order. Each forward
// or backward of a block is a use. Uses are numbered: with B blocks, use b < B is the forward of
// block b, and use 2 B - 1 - b is its backward.
class Weights {
 public:
  virtual ~Weights() = default;
  const Store& trainable() const { return trainable_; }
  const Store& frozen() const { return frozen_; }
  virtual int64_t bytes() const = 0;  // bytes of parameters that stay allocated between steps

  // Starts a pass, and discards any state that a failed pass has left. Collective.
  virtual void begin_pass(bool backward) = 0;
  // Returns when the parameters of the block of this use are whole and bound to the model.
  // Collective.
  virtual void acquire(int64_t use) = 0;
  // Must be called when this use of the block has run. The parameters may then be freed.
  virtual void release(int64_t use) = 0;

  // Calls `update` for consecutive ranges that together cover the store of trainable parameters,
  // and distributes the new values to all ranks. Collective.
  virtual void publish(const Update& update) = 0;
  // Distributes the master weights, trainable and frozen, after a checkpoint was loaded into them.
  // Collective.
  void refresh();

 protected:
  explicit Weights(const Setup& setup) : setup_(setup) {}
  // Distributes the frozen parameters. Collective.
  virtual void publish_frozen() = 0;
  // Computes the copies of a range of a store from its masters.
  void round_masters(const Store& store, int64_t begin, int64_t count) const;

  const Setup& setup_;
  Store trainable_, frozen_;
};

// Binds parameters of a model to memory of the device. The destructor unbinds those that are bound.
class Binder {
 public:
  explicit Binder(const Setup& setup);
  ~Binder();
  Binder(const Binder&) = delete;
  Binder& operator=(const Binder&) = delete;
  // data: the whole parameter, contiguous, in param_dtype. It must live until unbind or another
  // bind.
  void bind(int64_t param, void* data);
  void unbind(int64_t param);

 private:
  const YokeModel& model_;
  const YokeDevice device_;
  std::vector<bool> bound_;  // one flag per parameter
};

// Fills `values` with the initial values of elements [begin, begin + values.count) of a parameter,
// rounded to the dtype of the span.
void fill_initial(const Setup& setup, int64_t param, int64_t begin, const Span& values);
// Fills the masters of a store with their initial values.
void fill_initial(const Setup& setup, const Store& store);

// Gathers `own` of every rank into `all`, in rank order. With one rank it only copies.
[[nodiscard]] Work all_gather(const Setup& setup, const Span& all, const ConstSpan& own);

}  // namespace yoke::deepspeed_stub
