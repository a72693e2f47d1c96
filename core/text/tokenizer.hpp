// Texts to token ids and back, with the tokenizer of a model of Hugging Face. No LibTorch.
//
//   const auto tokenizer = Tokenizer::open("models/qwen");
//   const std::vector<int32_t> ids = tokenizer->encode("It was");
//   std::string text = tokenizer->decode(ids);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Encodes texts, and caches the tokens of words across texts. For one thread at a time. The
// Tokenizer must outlive it.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Appends the ids of a text. Tokens such as the beginning of a text are not added; special tokens
  // that the text contains are found. Throws Error: INVALID_ARGUMENT with the offset of the first
  // byte that is not UTF-8, or if the vocabulary lacks a character.
  void encode(std::string_view text, std::vector<int32_t>& ids) { encode(text, {}, ids); }
  // Does the same, and returns for each of the places how many of these tokens lie before it. A
  // token across the place does not count, and of the tokens before it only those count with which
  // the text up to the place begins, too. `places` are offsets of characters, in ascending order.
  virtual std::vector<size_t> encode(std::string_view text,
                                     const std::vector<size_t>& places,
                                     std::vector<int32_t>& ids) = 0;
};

// What the files of a tokenizer say about it.
struct TokenizerFacts {
  std::string path;             // file that holds the vocabulary
  std::string hash;             // hash of that file, 16 hexadecimal digits
  int64_t vocab_size = 0;       // every id is below it
  std::optional<int32_t> bos;   // the token that begins a text
  std::optional<int32_t> eos;   // the token that ends a text
  std::vector<int32_t> prefix;  // tokens that the model expects before a prompt
  std::vector<int32_t> stops;   // tokens at which generation ends; eos is one of them
};

// Immutable; may be used from any thread.
class Tokenizer {
 public:
  // Opens the file_in() a folder, or such a file itself. Throws Error: NOT_FOUND, INVALID_ARGUMENT
  // with the name of a part that is not implemented, or DATA_LOSS if a file is damaged.
  static std::shared_ptr<const Tokenizer> open(const std::string& path);
  // Returns the tokenizer whose 256 tokens are the bytes. It accepts texts that are not UTF-8.
  static std::shared_ptr<const Tokenizer> bytes();
  // Returns the path of tokenizer.json, or else of sentencepiece's tokenizer.model, in a folder; ""
  // if it has neither.
  static std::string file_in(const std::string& folder);
  virtual ~Tokenizer() = default;

  const TokenizerFacts& facts() const { return facts_; }

  virtual std::unique_ptr<TextEncoder> encoder() const = 0;
  // Encodes one text; see TextEncoder.
  std::vector<int32_t> encode(std::string_view text) const;

  // Returns the text of the ids, with U+FFFD in place of bytes that are not UTF-8. Special tokens
  // are left out unless `with_special`. Throws Error(INVALID_ARGUMENT) for an id that is no token.
  virtual std::string decode(const std::vector<int32_t>& ids, bool with_special = false) const = 0;
  // Returns the bytes of one token, which may be a part of a character. `first`: it begins a text;
  // some tokenizers then leave out a space.
  virtual std::string bytes_of(int32_t id, bool first) const = 0;
  // Returns the id of a token, or nothing. A special token is found by its content.
  virtual std::optional<int32_t> id_of(const std::string& token) const = 0;
  // Returns false for an id that is no token: there may be gaps below the vocabulary size.
  virtual bool contains(int32_t id) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // Returns true for a token that is found in a text before it is split, as special ones are.
  virtual bool is_added(int32_t id) const = 0;

 protected:
  TokenizerFacts facts_;
};

// Decodes ids one after the other, and returns only whole characters. Special tokens are left out.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Returns the text that the id completes; it is empty while a character is incomplete.
  std::string push(int32_t id);
  // Returns what is left: U+FFFD if the last character is incomplete, otherwise nothing.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string kept_;  // bytes of an incomplete character
  bool first_ = true;
};

}  // namespace yoke
