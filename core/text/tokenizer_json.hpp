// Tokenizers that a file tokenizer.json describes.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/text/tokenizer.hpp"

namespace yoke {

// Returns the tokenizer that `json`, the content of a tokenizer.json, describes; `path` names it in
// messages. The facts about the begin and the end of a text, and the hash, are left empty. Throws
// Error(INVALID_ARGUMENT) as Tokenizer::open() does.
std::unique_ptr<Tokenizer> make_tokenizer(const nlohmann::json& json, const std::string& path);

}  // namespace yoke
