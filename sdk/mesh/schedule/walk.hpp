// Follows one rank's action list and checks the rules about a single rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sdk/mesh/schedule/checker.hpp"

namespace yoke::mesh {

class Walk {
 public:
  // The spec must outlive the walk.
  explicit Walk(const StepSpec& spec);

  // Applies the action. Returns "" or what is wrong with it; rule() then returns the violated rule.
  std::string apply(const Action& action);
  // Returns "" or what is missing at the end of the list.
  std::string finish();
  CheckedRule rule() const { return rule_; }

 private:
  enum class Params : uint8_t { kSharded, kGathering, kWhole };
  enum class Grads : uint8_t { kEmpty, kAdding, kReducing };
  enum class AllReduce : uint8_t { kNone, kInFlight, kDone };
  struct UnitState {
    Params params;
    Grads grads = Grads::kEmpty;              // state of the whole gradient buffer
    AllReduce all_reduce = AllReduce::kNone;  // state of the gradient shard's all-reduce
    std::vector<int> additions;  // number of blocks that have added gradients, by micro-batch
    int reducing_micro = -1;     // micro-batch of the reduction in flight
    int reduced_micros = 0;      // micro-batches whose reduction has started
    bool exchanged = false;      // the gradients of the partner have been added
  };
  struct BlockState {
    bool forward = false, backward = false;
    bool input = false;        // its input is kept
    bool saved = false;        // everything that its backward needs is kept
    bool weights_due = false;  // BackwardInput has run, BackwardWeight has not
  };
  // The four messages of a stage and micro-batch. A message that is received is kDone once it has
  // been waited for; one that is sent, once it has been freed.
  enum class Message : uint8_t { kNone, kUnderWay, kDone };
  struct StageState {
    Message carry_in = Message::kNone, carry_out = Message::kNone;
    Message grad_in = Message::kNone, grad_out = Message::kNone;

    bool operator==(const StageState&) const = default;
  };

  std::string fail(CheckedRule rule, const std::string& text);
  const OwnStage& stage_of(int block) const { return stages_[stage_of_block_[block]]; }
  std::string scales(const Action& a);
  std::string unshard(const Action& a);
  std::string compute(const Action& a);
  std::string forward(const Action& a);
  std::string backward(const Action& a);
  std::string backward_weight(const Action& a);
  std::string add_gradients(const Action& a);
  std::string message(const Action& a, const MessageInfo& info);
  std::string advance(Message& state, MessageInfo::Step step);
  std::string messages_done() const;
  bool ran_forward(int stage, int micro) const;
  bool ran_backward(int stage, int micro) const;
  std::string reduce(const Action& a);
  std::string all_reduce(const Action& a);
  std::string exchange_tied(const Action& a);
  std::string end(const Action& a);
  bool evicts_stages() const;
  int completed(int unit) const;
  bool shard_complete(int unit) const;
  bool shard_reduced(int unit) const;
  std::string gradients_final();
  int blocks_using(int unit) const;

  const StepSpec& spec_;
  const std::vector<OwnStage> stages_;
  const TrainedBlocks trained_;
  std::vector<int> stage_of_block_;  // index into stages_
  std::vector<UnitState> units_;
  std::vector<BlockState> blocks_;                                  // [micro * blocks + block]
  std::vector<StageState> messages_;                                // [micro * stages_ + stage]
  bool scaled_ = false;                                             // ReduceScales has run
  int partial_grads_ = 0, scalars_ = 0, updates_ = 0, losses_ = 0;  // counts of such actions so far
  CheckedRule rule_ = CheckedRule::kEnd;
};

}  // namespace yoke::mesh
