// The data of a run: windows of token streams, divided into a training part and an evaluation part.
// No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/config/run_config.hpp"
#include "core/data/sample_order.hpp"
#include "core/data/source.hpp"

namespace yoke {

// The target id that does not count in the loss.
inline constexpr int64_t kNoTarget = -100;

// Consecutive windows of a data set that are consecutive in a stream, too.
struct WindowRange {
  int64_t first = 0;  // number of its first window in the data set
  int64_t count = 0;
  size_t source = 0;            // index in DataSet::sources
  int64_t first_in_stream = 0;  // number of its first window in the stream
};

// Window w of a stream is tokens [w * seq_len, (w + 1) * seq_len]: seq_len + 1 tokens, of which the
// last is only a target. With another stride it begins at token w * stride. In a data set, the
// windows of the training part come first, source by source, and those of the evaluation part
// follow. If all windows are of one stream, they have the same numbers there.
struct DataSet {
  // The sources of training, and then those of the evaluation if they are others. Empty: the model
  // family provides its own samples.
  std::vector<Source> sources;
  std::optional<size_t> eval_source{};  // index of the source of eval.path; unset = none
  std::vector<WindowRange> ranges;      // all windows, in ascending order
  int64_t seq_len = 0;                  // targets of one window
  int64_t stride = 0;           // tokens from one window of a stream to the next; 0 = seq_len
  SampleOrder train, held_out;  // the training part and the evaluation part
  std::optional<int64_t> pad_token{};  // targets with this id become kNoTarget
  // Token id that ends a document, if documents are separate; unset = they are joined.
  std::optional<int64_t> document_end{};
  std::vector<std::string> notes{};  // sentences for the user

  bool has_tokens() const { return !sources.empty(); }
  // Returns the source of eval.path; NULL if the evaluation part was held out.
  const Source* evaluation() const { return eval_source ? &sources[*eval_source] : nullptr; }
};

// Completes a data set that has all of its sources: checks what they have in common, stores the id
// that ends a document, and adds the notes. open_data() calls it. Throws the errors of
// require_one_tokenizer() and described_document_end().
void complete_data(DataSet& data, const DataConfig& config);

// Opens data.path and eval_path. Without data.weights, all files of data.path are one stream, and
// sample n of the training part is window Sampler::window(n) of it. With weights, every entry of
// data.path is a source with a sampler of its own, whose seed is `seed` + 2^32 * its number, and
// Mixture chooses the source of each sample. The evaluation part is eval_path, or without it the
// tail of each source, at least one window if data.holdout > 0. It is always read in ascending
// order. vocab: vocabulary size of the model, 0 = none; the caller checks that it is at least that
// of the streams. Throws Error: INVALID_ARGUMENT if a stream is too short, if a step would need
// more windows of a source than it has, or if sources differ in their tokens; and the errors of
// open_source(), described_document_end() and Mixture.
DataSet open_data(const DataConfig& config,
                  int64_t global_batch,
                  uint64_t seed,
                  int64_t vocab = 0,
                  const std::vector<std::string>& eval_path = {});

// Splits the `count` samples of a model family in the same way as one stream; a sample counts as
// one window and has `targets` targets. Requires that data.weights is empty. Throws
// Error(INVALID_ARGUMENT) if a global batch is larger than the training part.
DataSet split_samples(
    const DataConfig& config, int64_t count, int64_t targets, int64_t global_batch, uint64_t seed);

// The number of windows in each of the two parts.
struct WindowSplit {
  int64_t train = 0, held_out = 0;
};
WindowSplit split_windows(int64_t tokens, int64_t seq_len, double holdout);

// Copies tokens [skip, skip + count) of a window, which has seq_len + 1 tokens, to out. Throws the
// errors of TokenStream::read().
void read_window(const DataSet& data, int64_t window, int64_t skip, int64_t count, int64_t* out);

// The inputs of one micro-batch in host memory: each [sequences, seq_len], row-major.
struct HostMicroBatch {
  int64_t sequences = 0, seq_len = 0;
  std::vector<int64_t> tokens, targets, positions;
  // Only if documents are separate: for each token, the index in its sequence of the first token of
  // its document. Otherwise empty.
  std::vector<int64_t> document_starts;
};

// Reads `sequences` consecutive samples of a part. Positions count from 0 in every sequence, or in
// every document of it if documents are separate. A target is kNoTarget if it is data.pad_token, if
// the label mask says so, or if it is the first token of a separate document.
HostMicroBatch read_micro_batch(const DataSet& data,
                                const SampleOrder& part,
                                int64_t first_sample,
                                int64_t sequences);

// Returns whether no target is hidden by data.pad_token, by a label mask or by separate documents.
bool every_target_counts(const DataSet& data);

// Returns how many targets of `sequences` consecutive samples count in the loss.
int64_t count_targets(const DataSet& data,
                      const SampleOrder& part,
                      int64_t first_sample,
                      int64_t sequences);

}  // namespace yoke
