// What fine-tuning changes in a model: parameters that are not trained, and low-rank adapters
// (LoRA, core/checkpoint/adapter.hpp) beside the matrices of its linear layers. Both work on the
// blocks of a family, so backends know nothing of them: an adapter is two more parameters, and a
// frozen parameter is one that is not trainable.
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/adapter.hpp"
#include "core/config/run_config.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Returns the family with the parameters frozen that a pattern names. A pattern is consecutive
// parts of a name, in which * stands for any text: "embed_tokens", "layers.0", "layers.*.mlp".
// make_blocks then throws Error(INVALID_ARGUMENT) for patterns that name no parameter, with the
// nearest names, and if nothing is left to train.
Family with_frozen(Family family, const std::vector<std::string>& patterns);

// Adds an adapter to each Linear that lora.targets names, and freezes all other parameters; does
// nothing if lora.rank is 0. A starts with the uniform numbers of PEFT and B with 0, so the model
// computes the same as before. Call it when the blocks are complete, and before their values are
// opened. Throws Error(INVALID_ARGUMENT) for targets that name no matrix, with the nearest names,
// and for a tied matrix.
void add_adapters(BlockList& list, const LoraConfig& lora);

// Lets the adapters of the list start with those in the folder lora.from; without it they start as
// the weights do. Throws what read_adapter_config() and open_adapter() throw, and INVALID_ARGUMENT
// if rank or alpha differ from those of the folder, or of model.from if that has adapters.
void open_adapters(BlockList& list, const ModelConfig& model);

// Returns the adapters of a checkpoint, beside which its weights are stored; rank 0 = none. Throws
// the errors of read_adapter_config().
LoraConfig stored_adapters(const std::string& folder);

// Returns the adapters of the model as a checkpoint describes them. Throws what model_dims()
// throws.
AdapterConfig adapter_config(const ModelConfig& model);
// Returns the factor of the products of adapters.
double adapter_scale(const LoraConfig& lora);

}  // namespace yoke
