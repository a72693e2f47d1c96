// An order is computed at the start by every process alike. Megatron computes it once, on one rank,
// and keeps it in files, which other machines then have to see.
#include "core/data/foreign_order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/data/data_set.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();

// Does what numpy.random.RandomState.shuffle does with fewer than 2^32 elements.
void shuffle(std::span<uint32_t> values, std::mt19937& random) {
  for (size_t i = values.size(); i-- > 1;) {
    const uint32_t mask = (uint64_t{1} << std::bit_width(i)) - 1;
    uint32_t j = 0;
    do j = static_cast<uint32_t>(random()) & mask;
    while (j > i);
    std::swap(values[i], values[j]);
  }
}

// Shuffles the first `first` values and the others apart.
void shuffle_apart(std::vector<uint32_t>& values, int64_t first, std::mt19937& random) {
  const std::span<uint32_t> all(values);
  shuffle(all.first(static_cast<size_t>(first)), random);
  shuffle(all.subspan(static_cast<size_t>(first)), random);
}

// Adds up in NumPy's order, which differs from the plain one from eight values on.
double numpy_sum(std::span<const double> values) {
  constexpr size_t kMostAtOnce = 128;
  if (values.size() > kMostAtOnce) {
    const size_t half = values.size() / 2 / 8 * 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, 8> lanes{};
  const size_t whole = values.size() / 8 * 8;
  for (size_t i = 0; i < whole; ++i) lanes[i % 8] += values[i];
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
               ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (size_t i = whole; i < values.size(); ++i) sum += values[i];
  return sum;
}

class ReorderedStream final : public TokenStream {
 public:
  ReorderedStream(std::shared_ptr<const TokenStream> base,
                  std::shared_ptr<const std::vector<int64_t>> starts,
                  std::vector<uint32_t> sequences)
      : base_(std::move(base)), starts_(std::move(starts)), sequences_(std::move(sequences)) {
    ends_.reserve(sequences_.size());
    for (const uint32_t s : sequences_) {
      size_ += (*starts_)[s + 1] - (*starts_)[s];
      ends_.push_back(size_);
    }
  }
  const char* format() const override { return base_->format(); }
  int64_t size() const override { return size_; }
  int64_t vocab() const override { return base_->vocab(); }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_token_range(begin, count, size_);
    auto i =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (; count > 0; ++i) {
      const int64_t end_in_base = (*starts_)[sequences_[i] + 1];
      const int64_t n = std::min(count, ends_[i] - begin);
      base_->read(end_in_base - (ends_[i] - begin), n, out);
      begin += n;
      out += n;
      count -= n;
    }
  }

 private:
  std::shared_ptr<const TokenStream> base_;
  std::shared_ptr<const std::vector<int64_t>> starts_;
  std::vector<uint32_t> sequences_;
  std::vector<int64_t> ends_;  // number of tokens up to the end of each sequence
  int64_t size_ = 0;
};

}  // namespace

SequenceRange split_range(const std::vector<double>& split, size_t part, int64_t sequences) {
  const double sum = std::accumulate(split.begin(), split.end(), 0.0);
  double edge = 0;
  const auto number = [&] {
    return static_cast<int64_t>(std::nearbyint(edge * static_cast<double>(sequences)));
  };
  SequenceRange range;
  for (size_t i = 0; i <= part; ++i) {
    range.begin = number();
    edge += i < split.size() ? split[i] / sum : 0;
    range.end = number();
  }
  return range;
}

MegatronOrder megatron_order(std::span<const int64_t> starts,
                             SequenceRange part,
                             int64_t wanted,
                             int64_t seq_len,
                             uint32_t seed) {
  const int64_t tokens = starts[part.end] - starts[part.begin];
  const int64_t per_epoch = split_windows(tokens, seq_len, 0).train;
  if (per_epoch < 1)
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("the part has ", part.end - part.begin, " sequences with ", tokens) +
                    concat(" tokens, which make no window of ", seq_len));
  const int64_t epochs = std::max<int64_t>((wanted * seq_len + tokens) / tokens, 1);
  const int64_t before_last = split_windows((epochs - 1) * tokens, seq_len, 0).train;
  const auto most_of_epoch = static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  const bool apart = epochs > 1 && wanted - before_last < most_of_epoch;
  const int64_t count = split_windows(epochs * tokens, seq_len, 0).train;
  const int64_t own = part.end - part.begin;
  if (count >= kMost || epochs * own >= kMost || part.end >= kMost)
    throw Error(YOKE_UNIMPLEMENTED,
                concat("the run would read ", count, " windows of ", epochs * own) +
                    " sequences; supported: fewer than 2^32 of both");
  std::mt19937 random(seed);
  MegatronOrder order{std::vector<uint32_t>(epochs * own), std::vector<uint32_t>(count), per_epoch};
  for (int64_t i = 0; i < epochs * own; ++i)
    order.sequences[i] = static_cast<uint32_t>(part.begin + i % own);
  std::iota(order.samples.begin(), order.samples.end(), uint32_t{0});
  shuffle_apart(order.sequences, apart ? (epochs - 1) * own : epochs * own, random);
  shuffle_apart(order.samples, apart ? before_last : count, random);
  return order;
}

std::shared_ptr<const TokenStream> reorder(std::shared_ptr<const TokenStream> base,
                                           std::shared_ptr<const std::vector<int64_t>> starts,
                                           std::vector<uint32_t> sequences) {
  return std::make_shared<ReorderedStream>(
      std::move(base), std::move(starts), std::move(sequences));
}

std::vector<double> normalized(const std::vector<double>& weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

Blend::Blend(std::vector<double> shares, int64_t samples) : shares_(std::move(shares)) {
  constexpr size_t kMostDatasets = 1 << 16;
  if (shares_.size() > kMostDatasets || samples >= kMost)
    throw Error(YOKE_UNIMPLEMENTED,
                concat("a blend of ", samples, " samples of ", shares_.size()) +
                    " datasets; supported: fewer than 2^32 samples, at most 2^16 datasets");
  std::vector<uint32_t> taken(shares_.size(), 0);
  sources_.reserve(samples);
  indices_.reserve(samples);
  samples = std::max<int64_t>(samples, 1);  // a run without steps has an order, too
  for (int64_t i = 0; i < samples; ++i) {
    const double due = static_cast<double>(std::max<int64_t>(i, 1));
    size_t furthest = 0;
    for (size_t k = 1; k < shares_.size(); ++k) {
      if (shares_[k] * due - taken[k] > shares_[furthest] * due - taken[furthest]) furthest = k;
    }
    sources_.push_back(static_cast<uint16_t>(furthest));
    indices_.push_back(taken[furthest]++);
  }
}

SourceOrder::Place Blend::at(int64_t sample) const {
  const size_t i = static_cast<size_t>(sample) % sources_.size();
  return {sources_[i], indices_[i]};
}

int64_t Blend::count(size_t source, int64_t samples) const {
  const auto all = static_cast<int64_t>(sources_.size());
  // Returns the number among the first n samples, n <= all.
  const auto first = [&](int64_t n) {
    while (n-- > 0) {
      if (sources_[n] == source) return int64_t{indices_[n]} + 1;
    }
    return int64_t{0};
  };
  return (samples < all ? 0 : samples / all * first(all)) + first(samples % all);
}

int64_t wanted_of_blend(double share, int64_t samples) {
  const double own = std::ceil(static_cast<double>(samples) * share);
  return static_cast<int64_t>(std::ceil(own * 1.005));
}

}  // namespace yoke
