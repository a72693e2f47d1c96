// Counts the kernels that a step would launch on a device, on a machine without one.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tests/support/emulated_cuda.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {

// Counts the launches of its thread: the operations of the emulated runtime, and ATen's operators
// as the kernels that they launch on CUDA. Only one may exist in a thread.
class LaunchCounter {
 public:
  LaunchCounter()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}))) {
    OnCpu::launches = &counts_;
    current = this;
  }
  ~LaunchCounter() {
    at::removeCallback(handle_);
    OnCpu::launches = nullptr;
    current = nullptr;
  }
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;

  // The launches so far, by operator.
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  // Marks an operator that is counted. The operators that it calls are not counted.
  struct Counted final : at::ObserverContext {
    Counted() { ++depth; }
    ~Counted() override { --depth; }
  };
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    const int launches = launches_of(call.name());
    if (launches == 0) return nullptr;
    if (depth == 0) current->counts_[call.name()] += launches;
    return std::make_unique<Counted>();
  }
  static void leave(const at::RecordFunction&, at::ObserverContext*) {}

  // An operator that is in none of the tables counts as one launch.
  static int launches_of(const std::string& name) {
    static const std::map<std::string, int> several{
        // The sums of products of outputs and their gradients, the gradients, and the conversion of
        // that of the queries.
        {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 3},
    };
    // These launch nothing, or only by operators that are counted.
    static const std::set<std::string> none{"aten::alias",
                                            "aten::as_strided",
                                            "aten::clone",
                                            "aten::contiguous",
                                            "aten::detach",
                                            "aten::empty",
                                            "aten::empty_like",
                                            "aten::empty_strided",
                                            "aten::expand",
                                            "aten::flatten",
                                            "aten::linear",
                                            "aten::matmul",
                                            "aten::narrow",
                                            "aten::reshape",
                                            "aten::scaled_dot_product_attention",
                                            "aten::select",
                                            "aten::slice",
                                            "aten::t",
                                            "aten::to",
                                            "aten::_to_copy",
                                            "aten::transpose",
                                            "aten::unflatten",
                                            "aten::unsqueeze",
                                            "aten::_reshape_alias",
                                            "aten::view",
                                            "aten::view_as",
                                            "aten::_unsafe_view",
                                            "detach"};
    if (name.starts_with("autograd::engine::") || none.contains(name)) return 0;
    const auto found = several.find(name);
    return found == several.end() ? 1 : found->second;
  }

  static inline thread_local LaunchCounter* current = nullptr;
  static inline thread_local int depth = 0;  // counted operators that are running
  at::CallbackHandle handle_;
  std::map<std::string, int> counts_;
};

using Launches = std::map<std::string, int>;

// Returns the config.json of a Llama with so many layers, whose launches are counted.
inline std::string counted_llama(int layers) {
  return concat(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": )", layers) +
         R"(, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 192,
         "vocab_size": 1001, "hidden_act": "silu", "max_position_embeddings": 64,
         "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false})";
}

// Returns what grows with the number of layers and the number of micro-batches. launches(layers,
// micros) returns the launches of a step.
template <class F>
Launches launches_of_a_layer(const F& launches) {
  Launches of_layer;
  const auto add = [&](int layers, int micros, int sign) {
    for (const auto& [name, count] : launches(layers, micros)) of_layer[name] += sign * count;
  };
  add(3, 3, 1);
  add(2, 3, -1);
  add(3, 2, -1);
  add(2, 2, 1);
  std::erase_if(of_layer, [](const auto& entry) { return entry.second == 0; });
  return of_layer;
}

// Returns the sum, and a text with all of them.
inline std::pair<int, std::string> total_of(const Launches& launches) {
  std::pair<int, std::string> total;
  for (const auto& [name, count] : launches) {
    total.first += count;
    total.second += concat("\n", name, ": ", count);
  }
  return total;
}

}  // namespace yoke::testing
