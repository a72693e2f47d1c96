// The state of one rank while its list is walked; the checker's rules about a single rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ptd/schedule/checker.hpp"

namespace yoke::ptd {

class Walk {
 public:
  explicit Walk(const StepSpec& spec);

  // Applies the action; "" or what is wrong with it, with the rule it breaks in rule().
  std::string apply(const Action& action);
  std::string finish();  // what is missing at the end
  Rule rule() const { return rule_; }
  int64_t bytes() const { return bytes_; }  // whole parameters and gradients right now

 private:
  enum class Params : uint8_t { kSharded, kGathering, kWhole };
  enum class Grads : uint8_t { kEmpty, kAdding, kReducing };
  struct UnitState {
    Params params;
    Grads grads = Grads::kEmpty;
    int additions = 0;        // Backward actions in the buffer
    int reducing_micro = -1;  // of the reduction on its way
    int reduced_micros = 0;   // micro-batches in the gradient shard
    int replicas = 0;         // 0 = not summed, 1 = on its way, 2 = final
  };
  struct BlockState {
    bool forward = false, saved = false, backward = false;
  };

  std::string fail(Rule rule, const std::string& text);
  std::string unshard(const Action& a);
  std::string compute(const Action& a);
  std::string forward(const Action& a);
  std::string backward(const Action& a);
  std::string add_gradients(const Action& a);
  std::string reduce(const Action& a);
  std::string all_reduce(const Action& a);
  std::string end(const Action& a);
  std::string gradients_final();
  int blocks_using(int unit) const;

  const StepSpec& spec_;
  int first_trained_;
  std::vector<UnitState> units_;
  std::vector<BlockState> blocks_;  // [micro * blocks + block]
  int summed_ = 0, clipped_ = 0, updated_ = 0, loss_ = 0;
  int64_t bytes_ = 0;
  Rule rule_ = Rule::kEnd;
};

}  // namespace yoke::ptd
