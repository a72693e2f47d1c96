// The data: a stream of tokens, and which samples every data rank sees at every step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

// A file of token ids, little-endian: the magic, uint32 bytes per id (2 or 4), uint32 vocabulary
// (ids are below it), uint64 number of ids, then the ids. In Python, for an array `a` of uint16:
//   f.write(b"YOKETOK1" + struct.pack("<IIQ", 2, vocab, len(a)) + a.tobytes())
inline constexpr char kTokenFileMagic[] = "YOKETOK1";
inline constexpr size_t kTokenFileHeaderBytes = 24;

// A memory-mapped stream of token ids. Window w = tokens [w*seq_len, (w+1)*seq_len], so seq_len + 1
// of them: the last is only a target. Immutable; any thread.
class TokenStream {
 public:
  // Bytes of a text, or a file of token ids (told by its magic). Throws Error(NOT_FOUND) naming the
  // path and how to get the demo text, INVALID_ARGUMENT for what is no readable file, DATA_LOSS for
  // a damaged header.
  static std::shared_ptr<const TokenStream> open(const std::string& path);
  virtual ~TokenStream() = default;
  virtual int64_t size() const = 0;
  virtual int64_t vocab() const = 0;  // smallest vocabulary that holds every id: 256 for bytes
  // Tokens [begin, begin + count). Throws Error(DATA_LOSS) for an id that the header rules out.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;
};

// A bijection of [0, n) chosen by key: the place of `index` in a shuffled order that is nowhere
// stored. A 4-round Feistel network over splitmix64 with cycle walking. n >= 1, index < n.
uint64_t keyed_permutation(uint64_t index, uint64_t n, uint64_t key);

// One part (training or held-out) of the stream cut into windows, and their order.
class Sampler {
 public:
  Sampler(int64_t first_window, int64_t num_windows, bool shuffled, uint64_t seed);
  int64_t num_windows() const { return num_windows_; }
  // Window of global sample g >= 0: sequential from the first window, wrapping around after the
  // last, or a keyed permutation without replacement, another one every num_windows() samples
  // (epoch).
  int64_t window(int64_t sample) const;

 private:
  int64_t first_window_, num_windows_;
  bool shuffled_;
  uint64_t seed_;
};

// tokens, targets, positions, each [sequences, seq_len] int64, row-major.
struct HostMicroBatch {
  int64_t sequences = 0, seq_len = 0;
  std::vector<int64_t> tokens, targets, positions;
};

// Windows of the training part and of the held-out tail (always sequential; at least one window if
// data.holdout > 0). Throws Error(INVALID_ARGUMENT) if the stream is too short for that, or a
// global batch is larger than the training part. Whether a model's vocabulary holds stream->vocab()
// is the caller's check.
struct DataSet {
  std::shared_ptr<const TokenStream> stream;
  int64_t seq_len = 0;
  Sampler train, held_out;
};
DataSet open_data(const DataConfig& config, int64_t global_batch, uint64_t seed);

// Samples of data rank r, micro-batch a of step s (s counts from 0), with m sequences per
// micro-batch and `accumulation` micro-batches: m samples from s*G + a*data_ranks*m + r*m, G =
// accumulation*data_ranks*m.
int64_t first_sample(int64_t step,
                     int64_t micro,
                     int64_t accumulation,
                     int64_t data_rank,
                     int64_t data_ranks,
                     int64_t sequences);
// `sequences` consecutive samples of a part. Positions are 0 .. seq_len-1 in every sequence.
HostMicroBatch read_micro_batch(const DataSet& data,
                                const Sampler& part,
                                int64_t first_sample,
                                int64_t sequences);

}  // namespace yoke
