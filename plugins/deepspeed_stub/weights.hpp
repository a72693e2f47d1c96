// The parameters: where a rank keeps its part, how whole ones reach the model, and how updated
// ones reach the other ranks. Two ways: flat_weights.hpp (ZeRO stages 0 to 2), sliced_weights.hpp
// (stage 3).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/comm.hpp"
#include "plugins/deepspeed_stub/config/settings.hpp"
#include "plugins/deepspeed_stub/layout.hpp"

namespace yoke::deepspeed_stub {

// What the parts of one wrapped model share. Outlives them.
struct Setup {
  const YokeModel& model;
  const ModelSpec& spec;
  const Settings& settings;
  const Comms& comms;
  const Device& device;
  int32_t param_dtype;     // that the model computes with
  int32_t master_dtype;    // of master copies and moments
  int32_t gradient_dtype;  // of accumulation and reduction
};

// The part of some parameters that this rank keeps.
struct Store {
  Owned owned;
  Span master;
  Span copy;  // the same elements in the model's dtype; data is NULL if the master is in it
};

// Updates the master elements [begin, begin + count) of the trainable store, and their copy.
using Update = std::function<void(int64_t begin, int64_t count)>;

class Weights {
 public:
  virtual ~Weights() = default;
  const Store& trainable() const { return trainable_; }
  const Store& frozen() const { return frozen_; }
  virtual int64_t bytes() const = 0;  // held between steps

  // A pass uses every block once forward and, if `backward`, once more in reverse order. Use
  // 0 is the forward of the first block. Collective, as is acquire. What a failed pass left is
  // dropped.
  virtual void begin_pass(bool backward) = 0;
  virtual void acquire(int64_t use) = 0;  // the block's parameters are whole and bound
  virtual void release(int64_t use) = 0;

  // Runs `update` over the whole trainable store, part by part, and gives the new values to every
  // rank. Collective.
  virtual void publish(const Update& update) = 0;
  // After the masters were written from outside. Collective.
  void refresh();

 protected:
  explicit Weights(const Setup& setup) : setup_(setup) {}
  virtual void publish_frozen() = 0;  // collective

  const Setup& setup_;
  Store trainable_, frozen_;
};

// Binds parameters of a model to memory, and unbinds what is left when it goes.
class Binder {
 public:
  explicit Binder(const Setup& setup);
  ~Binder();
  Binder(const Binder&) = delete;
  Binder& operator=(const Binder&) = delete;
  void bind(int64_t param, void* data);
  void unbind(int64_t param);

 private:
  const YokeModel& model_;
  const YokeDevice device_;
  std::vector<bool> bound_;
};

// Initial values of elements [begin, begin + values.count) of a parameter, rounded to the dtype of
// the span.
void fill_initial(const Setup& setup, int64_t param, int64_t begin, const Span& values);
// The same for everything that a store owns.
void fill_initial(const Setup& setup, const Store& store);

// Collects `own` of every rank into `all`, in rank order. With one rank it is a copy.
[[nodiscard]] Work all_gather(const Setup& setup, const Span& all, const ConstSpan& own);

}  // namespace yoke::deepspeed_stub
