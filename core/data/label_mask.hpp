// The label mask of a stream of tokens, which says of each token whether it counts as a target. For
// the ids in X.bin it is the file X.mask, with one byte for each token: 1 = the token counts, 0 =
// it does not. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace yoke {

class MappedFile;

// The masks of the files of a stream, joined as the files are. Immutable; may be used from any
// thread.
class LabelMask {
 public:
  // A file of tokens, and its mask; mask = "": every token of the file counts.
  struct Part {
    std::string ids, mask;
    int64_t tokens = 0;
  };
  // `key` is the key of the run file that names the files of tokens, for messages. Throws Error:
  // NOT_FOUND or INVALID_ARGUMENT if a mask cannot be read, DATA_LOSS if its size is not the number
  // of tokens, or if one of its first bytes is neither 0 nor 1.
  LabelMask(const std::string& key, const std::vector<Part>& parts);
  ~LabelMask();

  // Copies the bytes of tokens [begin, begin + count) to out. Throws Error: INVALID_ARGUMENT if the
  // range is outside the stream, DATA_LOSS for a byte that is neither 0 nor 1.
  void read(int64_t begin, int64_t count, uint8_t* out) const;
  // The files that are read, in the order of the stream.
  const std::vector<std::string>& files() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<MappedFile>> files_;  // NULL = every token counts
  std::vector<int64_t> ends_;                       // number of tokens up to the end of each file
};

}  // namespace yoke
