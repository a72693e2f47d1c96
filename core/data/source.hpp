// A source of tokens: one file, or several files that are read as one stream. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/token_stream.hpp"

namespace yoke {

struct Source {
  std::string name;                // what the run file names, such as `web/*.bin`
  std::vector<std::string> files;  // files in the order of the stream
  std::shared_ptr<const TokenStream> stream;
};

// Opens the files that `entries` of the key `key` name, in this order, as one stream. An entry is a
// file, a folder or a pattern; see expand_path(). format, vocab: as for TokenStream::open(). Throws
// the errors of expand_path(), TokenStream::open() and join_streams(), and
// Error(INVALID_ARGUMENT) if a file is named twice.
Source open_source(const std::string& key,
                   const std::vector<std::string>& entries,
                   const std::string& format,
                   int64_t vocab);

}  // namespace yoke
