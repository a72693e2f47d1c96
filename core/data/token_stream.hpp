// A file of tokens as one long sequence of token ids. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace yoke {

// File formats of token ids. All numbers are little-endian:
//   yoke     the magic, uint32 bytes per id (2 or 4), uint32 vocabulary (every id is below it),
//            uint64 number of ids, then the ids. In Python, for an array `a` of uint16:
//              f.write(b"YOKETOK1" + struct.pack("<IIQ", 2, vocab, len(a)) + a.tobytes())
//   llmc     llm.c's data files: 256 int32, of which the first three are magic, version and number
//            of ids; then uint16 (magic 20240520, version 1) or uint32 (magic 20240801, version 7)
//   nanogpt  nanoGPT's train.bin: uint16 ids without a header
//   npy      an array of NumPy, as numpy.save writes it: uint16, uint32, int32 or int64, one
//            dimension, C order
//   megatron an indexed dataset of Megatron: the ids in X.bin, and X.idx (indexed_stream.hpp)
//   datatrove  datatrove's X.ds: raw uint16 or uint32 ids. The first line of X.ds.metadata is
//            "tokenizer|bytes per id"
inline constexpr char kTokenFileMagic[] = "YOKETOK1";
inline constexpr size_t kTokenFileHeaderBytes = 24;

// Throws Error(INVALID_ARGUMENT) unless the tokens [begin, begin + count) are in a stream of `size`
// tokens.
void check_token_range(int64_t begin, int64_t count, int64_t size);

// How a file is used, for TokenStream::open().
struct FileUse {
  std::string key = "data.path";  // key of the run file that names the file, for messages
  int64_t checked = 1 << 20;  // number of ids that are checked at once; read() checks all others
};

// A memory-mapped stream of token ids. Immutable; may be used from any thread.
class TokenStream {
 public:
  // Opens the file `path`. format: value of data.format. "auto" decides by the header, for X.bin by
  // X.idx, and X.ds is of datatrove. Any other file is a text, unless its name ends in .bin or
  // it contains zero bytes: such a file is refused, because it may hold raw ids, which have no
  // signature.
  // vocab: vocabulary size of the model that will be trained; 0 = no model, so ids are not bounded
  // by it. Reads the header and the first use.checked ids. Throws Error: NOT_FOUND with the path
  // and the nearest names, INVALID_ARGUMENT if the file cannot be read or has a different format,
  // DATA_LOSS if it is damaged.
  static std::shared_ptr<const TokenStream> open(const std::string& path,
                                                 const std::string& format = "auto",
                                                 int64_t vocab = 0,
                                                 const FileUse& use = {});
  virtual ~TokenStream() = default;
  // Returns "text", "yoke", "llmc", "nanogpt", "npy", "megatron" or
  // "datatrove".
  virtual const char* format() const = 0;
  // Returns the number of tokens.
  virtual int64_t size() const = 0;
  // Returns the vocabulary that the file declares: 256 for a text; 0 = the file declares none.
  virtual int64_t vocab() const = 0;
  // Copies tokens [begin, begin + count) to out. Throws Error(INVALID_ARGUMENT) if the range is
  // outside the stream, DATA_LOSS if an id is not below the vocabulary of the header or the model.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;
};

}  // namespace yoke
