// Names that other systems have for the keys of a run file. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Returns what a key of another system is here, such as "use train.lr" for learning_rate; "" if
// the key is not known from elsewhere. Only the part of `key` after the last dot counts.
std::string synonym(const std::string& key);

// Returns which of the allowed values is meant by one that differs in case, such as "AdamW", or
// that another system uses, such as "bfloat16"; "" if none is.
std::string meant_value(const std::string& value, const std::vector<std::string>& allowed);

}  // namespace yoke
