// Several token streams as one. No LibTorch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/data/token_stream.hpp"

namespace yoke {

// A stream and the file that it reads.
struct NamedStream {
  std::string path;
  std::shared_ptr<const TokenStream> stream;
};

// Throws Error(INVALID_ARGUMENT), which names both files, if the two streams cannot be the data of
// one model: if they declare different vocabularies, or if only one of them is a text.
void require_same_tokens(const std::string& key, const NamedStream& a, const NamedStream& b);

// Returns the streams, one after the other, as one stream; a single stream is returned as it is.
// `key` is the key of the run file, for messages. Requires at least one stream. Throws
// Error(INVALID_ARGUMENT), which names both files, if two of them have different formats or
// vocabularies.
std::shared_ptr<const TokenStream> join_streams(const std::string& key,
                                                std::vector<NamedStream> parts);

}  // namespace yoke
