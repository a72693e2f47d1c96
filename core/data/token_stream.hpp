// The data: a stream of tokens, and which samples every data rank sees at every step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/run_config.hpp"

namespace yoke {

// Formats of token ids, all little-endian:
//   yoke     the magic, uint32 bytes per id (2 or 4), uint32 vocabulary (ids are below it), uint64
//            number of ids, then the ids. In Python, for an array `a` of uint16:
//              f.write(b"YOKETOK1" + struct.pack("<IIQ", 2, vocab, len(a)) + a.tobytes())
//   llmc     llm.c's data files: 256 int32, of which the first three are magic, version and number
//            of ids; then uint16 (magic 20240520, version 1) or uint32 (magic 20240801, version 7)
//   nanogpt  nanoGPT's train.bin: uint16 ids and nothing else
inline constexpr char kTokenFileMagic[] = "YOKETOK1";
inline constexpr size_t kTokenFileHeaderBytes = 24;

// A memory-mapped stream of token ids. Window w = tokens [w*seq_len, (w+1)*seq_len], so seq_len + 1
// of them: the last is only a target. Immutable; any thread.
class TokenStream {
 public:
  // format: of data.format. "auto" goes by the header; a file without one is a text, unless its
  // name ends in .bin or it has zero bytes: then it is refused, for raw ids look like anything.
  // vocab: of the model that takes the ids, 0 = none. Looks at the header and the first million
  // ids. Throws Error(NOT_FOUND) naming the path and how to get the demo text, INVALID_ARGUMENT for
  // what is no readable file of this format, DATA_LOSS for a damaged one.
  static std::shared_ptr<const TokenStream> open(const std::string& path,
                                                 const std::string& format = "auto",
                                                 int64_t vocab = 0);
  virtual ~TokenStream() = default;
  virtual const char* format() const = 0;
  virtual int64_t size() const = 0;
  // The vocabulary that the file promises: 256 for bytes; 0 = it promises none.
  virtual int64_t vocab() const = 0;
  // Tokens [begin, begin + count). Throws Error(DATA_LOSS) with place and value of an id that the
  // header or the model's vocabulary rules out.
  virtual void read(int64_t begin, int64_t count, int64_t* out) const = 0;
};

// A bijection of [0, n) chosen by key: the place of `index` in a shuffled order that is nowhere
// stored. A 4-round Feistel network over splitmix64 with cycle walking. n >= 1, index < n.
uint64_t keyed_permutation(uint64_t index, uint64_t n, uint64_t key);

// The target of a place that has none: it does not count in the loss.
inline constexpr int64_t kNoTarget = -100;

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
// global batch is larger than the training part. vocab: of the model, 0 = none; whether it holds
// stream->vocab() is the caller's check.
struct DataSet {
  std::shared_ptr<const TokenStream> stream;  // NULL: a model family has samples of its own
  int64_t seq_len = 0;                        // targets of a window
  Sampler train, held_out;
  std::optional<int64_t> pad_token{};  // targets of this id become kNoTarget
};
DataSet open_data(const DataConfig& config, int64_t global_batch, uint64_t seed, int64_t vocab = 0);

// How many windows of a stream are trained on, and how many are held out.
struct WindowSplit {
  int64_t train = 0, held_out = 0;
};
WindowSplit split_windows(int64_t tokens, int64_t seq_len, double holdout);

// The same parts and order over `count` samples of a model family, each a window with `targets`
// targets. Throws Error(INVALID_ARGUMENT) if a global batch is larger than the training part.
DataSet split_samples(
    const DataConfig& config, int64_t count, int64_t targets, int64_t global_batch, uint64_t seed);

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
// How many targets of `sequences` consecutive samples count.
int64_t count_targets(const DataSet& data,
                      const Sampler& part,
                      int64_t first_sample,
                      int64_t sequences);

}  // namespace yoke
