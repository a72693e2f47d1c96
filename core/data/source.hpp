// A source of tokens: one file, or several files that are read as one stream. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data/label_mask.hpp"
#include "core/data/token_info.hpp"
#include "core/data/token_stream.hpp"

namespace yoke {

struct Source {
  std::string name;                  // what the run file names, such as `web/*.bin`
  std::vector<std::string> files;    // files in the order of the stream
  std::vector<int64_t> sizes;        // tokens of each file
  std::vector<std::string> indices;  // the index of each file that has one
  std::shared_ptr<const TokenStream> stream;
  std::vector<std::optional<TokenInfo>> infos;  // the description of each file that has one
  std::shared_ptr<const LabelMask> mask;        // NULL = every token counts as a target
};

// Opens the files that `entries` of the key `key` name, in this order, as one stream. An entry is a
// file, a folder or a pattern; see expand_path(). format, vocab: as for TokenStream::open(). mask:
// value of data.mask. With "auto", a file of ids has a mask if its description says so, and without
// a description if there is a file of the mask's name. Throws the errors of expand_path(),
// TokenStream::open(), join_streams(), read_token_info(), LabelMask and require_one_tokenizer();
// and Error: INVALID_ARGUMENT if a file is named twice, NOT_FOUND if a mask is missing, DATA_LOSS
// if a description does not fit its ids.
Source open_source(const std::string& key,
                   const std::vector<std::string>& entries,
                   const std::string& format,
                   int64_t vocab,
                   const std::string& mask = "auto");

// Throws Error(INVALID_ARGUMENT), which names both files, if the descriptions of two files have
// different tokenizers or vocabularies.
void require_one_tokenizer(const std::string& key, std::span<const Source> sources);

// Returns the id that ends a document, by the descriptions of the files. Throws
// Error(INVALID_ARGUMENT) unless all files have descriptions that name the same id.
int64_t described_document_end(std::span<const Source> sources);

}  // namespace yoke
