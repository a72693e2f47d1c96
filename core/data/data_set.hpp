// The training data of a run: windows of a token stream, split into a training part and a held-out
// part. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/config/run_config.hpp"
#include "core/data/sampler.hpp"
#include "core/data/token_stream.hpp"

namespace yoke {

// The target id that does not count in the loss.
inline constexpr int64_t kNoTarget = -100;

// Window w of a stream is tokens [w * seq_len, (w + 1) * seq_len]: seq_len + 1 tokens, of which the
// last is only a target.
struct DataSet {
  std::shared_ptr<const TokenStream> stream;  // NULL: the model family provides its own samples
  int64_t seq_len = 0;                        // targets of one window
  Sampler train, held_out;
  std::optional<int64_t> pad_token{};  // targets with this id become kNoTarget
};

// Opens data.path. The held-out part is the tail of the stream; it is always read in ascending
// order and has at least one window if data.holdout > 0. vocab: vocabulary size of the model, 0 =
// none; the caller checks that it is at least stream->vocab(). Throws Error: INVALID_ARGUMENT if
// the stream is too short or a global batch is larger than the training part; and the errors of
// TokenStream::open.
DataSet open_data(const DataConfig& config, int64_t global_batch, uint64_t seed, int64_t vocab = 0);

// Splits the `count` samples of a model family in the same way; a sample counts as one window
// and has `targets` targets. Throws Error(INVALID_ARGUMENT) if a global batch is larger than
// the training part.
DataSet split_samples(
    const DataConfig& config, int64_t count, int64_t targets, int64_t global_batch, uint64_t seed);

// The number of windows in each of the two parts.
struct WindowSplit {
  int64_t train = 0, held_out = 0;
};
WindowSplit split_windows(int64_t tokens, int64_t seq_len, double holdout);

// The inputs of one micro-batch in host memory: each [sequences, seq_len], row-major.
struct HostMicroBatch {
  int64_t sequences = 0, seq_len = 0;
  std::vector<int64_t> tokens, targets, positions;
};

// Reads `sequences` consecutive samples of a part. Positions are 0 .. seq_len - 1 in every
// sequence.
HostMicroBatch read_micro_batch(const DataSet& data,
                                const Sampler& part,
                                int64_t first_sample,
                                int64_t sequences);

// Returns how many targets of `sequences` consecutive samples count in the loss.
int64_t count_targets(const DataSet& data,
                      const Sampler& part,
                      int64_t first_sample,
                      int64_t sequences);

}  // namespace yoke
