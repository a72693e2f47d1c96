// Megatron's indexed datasets: the token ids of all sequences in X.bin, and where each of them
// begins in X.idx. No LibTorch.
//
//   X.idx, little-endian     "MMIDIDX\0\0", uint64 version 1, uint8 type of the ids (1 uint8,
//                            2 int8, 3 int16, 4 int32, 5 int64, 8 uint16), uint64 S, uint64 D
//                            int32[S] tokens of each sequence
//                            int64[S] byte in X.bin at which it begins
//                            int64[D] first sequence of each document, and S at the end: D is the
//                            number of documents and 1
//                            int8[S] modes, only in datasets of several modes; ignored
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/mapped_file.hpp"
#include "core/data/token_stream.hpp"

namespace yoke {

// Returns the path of the index that belongs to the ids in X.bin; "" if the path does not end in
// ".bin".
std::string index_path(const std::string& bin);

// Returns whether there is an index that belongs to the file.
bool has_index(const std::string& bin);

// The sequences of an indexed dataset, one after the other. Immutable; may be used from any thread.
class IndexedStream final : public TokenStream {
 public:
  // bin: the file `path`. vocab, use: as for TokenStream::open(), which calls this. Throws Error:
  // NOT_FOUND if there is no index, INVALID_ARGUMENT if it has another format, DATA_LOSS if it is
  // damaged or does not fit the ids.
  IndexedStream(std::unique_ptr<MappedFile> bin,
                const std::string& path,
                int64_t vocab,
                const FileUse& use);

  const char* format() const override { return "megatron"; }
  int64_t size() const override { return starts_.back(); }
  int64_t vocab() const override { return 0; }
  void read(int64_t begin, int64_t count, int64_t* out) const override;

  int64_t num_sequences() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t num_documents() const { return num_documents_; }
  // Returns the number of the first token of each sequence and, as the last element, size().
  const std::vector<int64_t>& starts() const { return starts_; }

 private:
  void read_header();
  void read_sequences();
  // Copies ids from a byte of X.bin on. token: number of the first one, for messages.
  void copy(int64_t byte, int64_t count, int64_t token, int64_t* out) const;
  int64_t length(int64_t sequence) const;  // as the index gives it
  int64_t offset(int64_t sequence) const;

  std::unique_ptr<MappedFile> bin_;
  MappedFile index_;
  int64_t vocab_;
  int64_t sequences_ = 0, num_documents_ = 0;
  int type_ = 0;  // code of the type of the ids
  int64_t item_ = 0;
  std::vector<int64_t> starts_;
};

}  // namespace yoke
