// Names that other systems have for the keys of a run file. No LibTorch.
#pragma once

#include <string>

namespace yoke {

// Returns what a key of another system is here, such as "use train.lr" for learning_rate; "" if
// the key is not known from elsewhere. Only the part of `key` after the last dot counts.
std::string synonym(const std::string& key);

}  // namespace yoke
