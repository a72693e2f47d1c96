// Small tokenizers for tests, as tokenizer.json describes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/text/bpe.hpp"
#include "core/text/tokenizer.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::testing {

// Returns a byte-level tokenizer with the 256 bytes, in the order of their values, "he" (256),
// "hel" (257), " t" (258), and the special tokens <|end|> (259) and <|begin|> (260).
inline nlohmann::json tiny_tokenizer() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab[character_of_byte(static_cast<unsigned char>(byte))] = byte;
  const std::string space = character_of_byte(' ');
  vocab["he"] = 256;
  vocab["hel"] = 257;
  vocab[space + "t"] = 258;
  const auto special = [](int id, const char* content) {
    return nlohmann::json{
        {"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {
      {"added_tokens", {special(259, "<|end|>"), special(260, "<|begin|>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "he l", space + " t"}}}}};
}

// A folder with a tokenizer.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const nlohmann::json& json = tiny_tokenizer()) {
    write("tokenizer", json);
  }
  // Writes the file NAME.json.
  void write(const std::string& name, const nlohmann::json& json) {
    folder_.write(name + ".json", json.dump());
  }
  std::string path() const { return folder_.path().string(); }
  std::shared_ptr<const Tokenizer> open() const { return Tokenizer::open(path()); }
  // Returns the message of the Error with this code that open() throws.
  std::string error(int32_t code = YOKE_INVALID_ARGUMENT) const {
    try {
      open();
    } catch (const Error& e) {
      return e.code() == code ? e.what() : "another code: " + std::string(e.what());
    }
    return "nothing was thrown";
  }

 private:
  TempFolder folder_;
};

}  // namespace yoke::testing
