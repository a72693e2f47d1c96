// The description of a file of token ids, which `yoke data prepare` writes beside it: for the ids
// X.bin it is the JSON file X.json, and the mask of its targets, if it has one, is X.mask.
//
//   {"format": "yoke-tokens", "version": 1, "tokens": N, "documents": D, "vocab": V,
//    "tokenizer": "<16 hexadecimal digits>", "document_end": ID or null, "mask": true or false}
//
// X.mask has one byte for each token, in the order of the ids: 1 if the token counts as a target of
// the loss, 0 if it does not. Thread-safe. No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace yoke {

struct TokenInfo {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t vocab = 0;                    // every id is below it
  std::string tokenizer;                // hash of the tokenizer's content, 16 hexadecimal digits
  std::optional<int64_t> document_end;  // the id that ends each document
  bool mask = false;                    // true if there is a file X.mask

  bool operator==(const TokenInfo&) const = default;
};

// Returns the path of the description, or of the mask, that belongs to the ids in `ids`: the same
// path with another extension.
std::string token_info_path(const std::string& ids);
std::string mask_path(const std::string& ids);

// Returns the description of the ids in the file `ids`. Returns nothing if there is no file of that
// name, or if it is another file, i.e. not a JSON object with the format "yoke-tokens". Throws
// Error(DATA_LOSS) if the description is damaged or has another version.
std::optional<TokenInfo> read_token_info(const std::string& ids);

// Writes the description of the ids in the file `ids`, atomically. An older one is replaced. Throws
// Error.
void write_token_info(const std::string& ids, const TokenInfo& info);

}  // namespace yoke
