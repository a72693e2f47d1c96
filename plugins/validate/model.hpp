// The model that the inner backend gets: that of the host, with every callback checked and traced.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/validate/managed.hpp"
#include "plugins/validate/monitor.hpp"
#include "plugins/validate/torch_blocks.hpp"

namespace yoke::validate {

// One thread at a time, as the model itself.
class WatchedModel {
 public:
  // managed: the ledger of the context, which outlives the tensors that the model returns.
  WatchedModel(const YokeModel& real,
               const YokeHost& host,
               std::shared_ptr<ManagedLedger> managed,
               Monitor& monitor);
  ~WatchedModel();
  WatchedModel(const WatchedModel&) = delete;
  WatchedModel& operator=(const WatchedModel&) = delete;

  const YokeModel& model() const { return model_; }

  // What the model has seen in a step.
  struct StepFacts {
    int64_t gradients = 0;   // gradients that were passed to on_grad_ready
    bool nonfinite = false;  // whether one of them contained an infinity or NaN
  };
  void begin_step(bool evaluates);
  // Reports every `saved` that is left.
  StepFacts end_step();

 private:
  struct Slots;
  // What the backend gets for a `saved`.
  struct Saved {
    void* real = nullptr;
    uint64_t block = 0;
    const void* carry = nullptr;  // address of carry_in, if it is a live tensor of the host
    int64_t carry_bytes = 0;
    uint64_t carry_hash = 0;
    std::vector<int64_t> output;  // shape of carry_out
    int32_t output_dtype = 0;     // 0 = the last block
    bool used = false;
  };
  // A block_backward in progress.
  struct Backward {
    WatchedModel& model;
    const YokeBackwardArgs& args;
    std::vector<int64_t> reported;
  };

  // Return YOKE_OK, or the code of a violation.
  int32_t examine_thread(const char* call, YokeError* err);
  int32_t examine_view(int64_t param, const YokeTensor* view, YokeError* err);
  int32_t examine_block(const char* call, uint64_t block, YokeError* err);
  int32_t examine_forward(const YokeForwardArgs* args, YokeError* err);
  int32_t examine_saved(const char* call, Saved* saved, YokeError* err);
  int32_t examine_backward(const YokeBackwardArgs& args, const Saved& saved, YokeError* err);
  int32_t examine_forward_result(const YokeForwardArgs& args,
                                 const YokeForwardResult& out,
                                 YokeError* err);

  int32_t forward(const YokeForwardArgs* args, YokeForwardResult* out, YokeError* err);
  int32_t backward(const YokeBackwardArgs* args, YokeManagedTensor** grad_in, YokeError* err);
  int32_t deliver(Backward& now, int64_t param, const YokeTensor& grad, YokeError* err);
  int32_t examine_gradient(Backward& now, int64_t param, const YokeTensor& grad, YokeError* err);
  // Marks a handle as used. It is kept for a while, so that a second use is noticed.
  void retire(Saved* saved);
  std::string name_of(uint64_t block) const;

  const YokeModel& real_;
  const YokeModelSummary& summary_;
  const YokeHost& host_;
  const std::shared_ptr<ManagedLedger> managed_;
  Monitor& monitor_;
  YokeModel model_;
  std::unique_ptr<WatchedTorchModel> torch_;
  std::vector<bool> bound_;
  // Copies of gradients that are lent to the backend, one for each parameter.
  std::vector<std::vector<char>> lent_;
  std::vector<std::unique_ptr<Saved>> live_, used_;
  size_t next_used_ = 0;
  bool evaluates_ = false;
  StepFacts facts_;
};

}  // namespace yoke::validate
