// Low-rank adapters (LoRA) in files, in the format of PEFT: adapter_config.json describes them,
// adapter_model.safetensors holds them. A checkpoint of a run with adapters has the former beside
// its own files, so that an export knows how to merge them. Does not need LibTorch.
//
// An adapter changes a weight W [out, in] by two matrices, A [rank, in] and B [out, rank]:
//
//   W + alpha / rank * B A
//
// A weight [in, out], as in a Conv1D of GPT-2, is changed by the transpose of that product.
// Beside the weight "x.weight", they have the names "x.lora_A.weight" and "x.lora_B.weight".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/hf_weights.hpp"
#include "core/checkpoint/shapes.hpp"

namespace yoke {

inline constexpr char kAdapterConfig[] = "adapter_config.json";
inline constexpr char kAdapterWeights[] = "adapter_model.safetensors";

struct AdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  // Names of the changed matrices without ".weight", or the ends of such names: "q_proj".
  std::vector<std::string> targets;
  // The changed matrices are [in, out], except for the head, which is [out, in] in every family.
  // PEFT finds out itself and only warns of another value in its file.
  bool fan_in_fan_out = false;

  // Returns whether a weight, "x.weight", is [in, out].
  bool input_first(const std::string& weight) const;
  double scale() const { return alpha / static_cast<double>(rank); }
};

// Returns adapter_config.json. base: path of the model that the adapters belong to, "" = none.
std::string adapter_config_text(const AdapterConfig& config, const std::string& base);

// Reads adapter_config.json. Every message begins with `where`. Throws Error: DATA_LOSS if the text
// is not JSON, INVALID_ARGUMENT naming everything that is missing or that changes the mathematics
// in a way that Yoke does not have, such as use_dora.
AdapterConfig parse_adapter_config(const std::string& text, const std::string& where);
// The same for the file in a folder. Throws NOT_FOUND if there is none.
AdapterConfig read_adapter_config(const std::string& folder);
bool has_adapter_config(const std::string& folder);

// Returns whether `name` is one of `targets`, or ends with "." and one of them.
bool is_adapter_target(const std::string& name, const std::vector<std::string>& targets);

// Returns whether a parameter is A or B of an adapter.
bool is_adapter(const std::string& param);
// Returns the names of A and B for a weight, "x.weight".
std::string adapter_a(const std::string& weight);
std::string adapter_b(const std::string& weight);

// Returns the name of A or B in PEFT's files.
std::string peft_name(const std::string& adapter);

// Opens the adapters that PEFT has saved in a folder. Returns them under Yoke's names. Throws
// Error: what HfWeights throws, and FAILED_PRECONDITION with the differences unless the folder has
// the adapters in `shapes` and no others.
ReadWeights open_adapter(const std::string& folder, const Shapes& shapes);

}  // namespace yoke
