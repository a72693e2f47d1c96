// `yoke data prepare`: texts to a file of token ids. No LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/data/document_encoder.hpp"
#include "core/data/document_input.hpp"
#include "core/data/token_info.hpp"
#include "core/text/tokenizer.hpp"

namespace yoke {

struct PrepareRequest {
  std::vector<std::string> inputs;  // texts, .jsonl and Parquet files, in the order of the output
  std::string out;                  // file of token ids, in the format "yoke"
  DocumentSplit split;
  EncodingOptions encoding;
  int threads = 1;
  size_t part_bytes = 1 << 20;  // text that a thread encodes at a time
  double save_every = 2;        // seconds between two saved states
};

struct PrepareProgress {
  uint64_t done = 0;     // bytes of text that are encoded
  uint64_t resumed = 0;  // those of them that an earlier process encoded
  uint64_t total = 0;
  bool started_over = false;  // an interrupted preparation of another job was discarded
};

struct Prepared {
  TokenInfo info;
  int64_t empty = 0;  // documents without text, which were left out
};

// Encodes all documents and writes the file and its description (token_info.hpp). The output is the
// same for any number of threads, and if the preparation was killed and started again. `report` is
// called in this thread, about ten times a second (or as often as states are saved, if that is more
// often) and at the end; what it throws ends the preparation as a signal would. Throws Error:
// INVALID_ARGUMENT or NOT_FOUND for a wrong request, DATA_LOSS with file and line for a wrong
// document or a damaged state, FAILED_PRECONDITION if the output exists or another process writes
// it, RESOURCE_EXHAUSTED if a thread cannot be started.
Prepared prepare(const PrepareRequest& request,
                 const Tokenizer& tokenizer,
                 const std::function<void(const PrepareProgress&)>& report);

}  // namespace yoke
