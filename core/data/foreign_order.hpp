// The orders in which Megatron and nanotron read the samples of their datasets. Pure arithmetic; no
// LibTorch. Random numbers are those of numpy.random.RandomState.
//
// nanotron blends folders, whose windows it reads in ascending order. For Megatron, a part of a
// dataset is a range of its sequences. They are repeated for as many epochs as the run needs,
// shuffled, and joined to one stream, of which sample k is tokens [k * seq_len, (k + 1) * seq_len].
// The samples are then shuffled as well:
//
//   sequences of the part   A B C                two epochs: A B C A B C
//   shuffled                C A B A C B          the stream
//   samples                 0 1 2 3 4 5 6        windows of the stream
//   shuffled                4 0 6 2 5 1 3        sample n of the run
//
// If the run needs less than four fifths of the last epoch, this epoch is shuffled apart and comes
// last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/data/mixture.hpp"
#include "core/data/token_stream.hpp"

namespace yoke {

// Sequences [begin, end) of a dataset.
struct SequenceRange {
  int64_t begin = 0, end = 0;
};

// Returns the sequences that belong to a part: 0 = training, 1 = evaluation, 2 = test. split: the
// shares of the parts, of any sum above 0; missing ones are 0.
SequenceRange split_range(const std::vector<double>& split, size_t part, int64_t sequences);

struct MegatronOrder {
  std::vector<uint32_t> sequences;  // the sequences of the stream, in their order
  std::vector<uint32_t> samples;    // the window that each sample of the run reads
  int64_t per_epoch = 0;            // windows of one epoch, were it alone
};

// Returns the order of a part. starts: as in IndexedStream. wanted: number of samples that the run
// needs; at least so many are in the order. Throws Error: INVALID_ARGUMENT if the part has too few
// tokens for a single window, UNIMPLEMENTED if sequences or samples are too many for 32 bits.
MegatronOrder megatron_order(std::span<const int64_t> starts,
                             SequenceRange part,
                             int64_t wanted,
                             int64_t seq_len,
                             uint32_t seed);

// Returns a stream of these sequences of `base`, where sequence s is tokens [starts[s],
// starts[s + 1]).
std::shared_ptr<const TokenStream> reorder(std::shared_ptr<const TokenStream> base,
                                           std::shared_ptr<const std::vector<int64_t>> starts,
                                           std::vector<uint32_t> sequences);

// Returns the weights divided by their sum, with the rounding of NumPy's sum.
std::vector<double> normalized(const std::vector<double>& weights);

// Assigns samples to the datasets of a blend: each goes to the dataset that is furthest behind its
// share, the first of them if several are. Immutable; may be used from any thread.
class Blend final : public SourceOrder {
 public:
  // shares: one for each dataset, which add up to about 1. samples: number of samples after which
  // the blend begins again, at least 1. A run reads so many, and more if it skips steps. Throws
  // Error(UNIMPLEMENTED) for more than 2^16 datasets or 2^32 samples.
  Blend(std::vector<double> shares, int64_t samples);

  Place at(int64_t sample) const override;
  int64_t count(size_t source, int64_t samples) const override;
  double share(size_t source) const override { return shares_[source]; }

 private:
  std::vector<double> shares_;
  std::vector<uint16_t> sources_;
  std::vector<uint32_t> indices_;
};

// Megatron orders half a percent more samples of a dataset than its share of a blend. Returns their
// number.
int64_t wanted_of_blend(double share, int64_t samples);

}  // namespace yoke
