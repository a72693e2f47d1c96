// Files tokenizer.model of the program sentencepiece.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace yoke {

struct SentencePieceModel {
  nlohmann::json json;              // the tokenizer as tokenizer.json would describe it
  std::optional<int32_t> bos, eos;  // tokens that begin and end a text
};

// Reads the content of a model of BPE without normalization, such as those of Llama 2 and Mistral;
// `path` names it in messages. Throws Error: DATA_LOSS if it is no such model or is cut off,
// INVALID_ARGUMENT with the name of a part that is not implemented.
SentencePieceModel read_sentencepiece(std::string_view content, const std::string& path);

}  // namespace yoke
