#include "core/data/data_set.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

void check_config(const DataConfig& config) {
  if (config.seq_len < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("data.seq_len = ", config.seq_len, "; allowed: 1 or more"));
  }
  if (!(config.holdout >= 0 && config.holdout < 1)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("data.holdout = ", config.holdout) +
                    "; allowed: at least 0 (nothing is held out) and less than 1");
  }
  if (config.order != "sequential" && config.order != "shuffled") {
    throw Error(YOKE_INVALID_ARGUMENT,
                "data.order = \"" + config.order + "\"; allowed: sequential, shuffled");
  }
}

WindowSplit split(int64_t windows, double holdout) {
  int64_t held_out = std::llround(holdout * static_cast<double>(windows));
  if (holdout > 0) held_out = std::max<int64_t>(held_out, 1);
  return {windows - held_out, held_out};
}

DataSet make_data_set(std::shared_ptr<const TokenStream> stream,
                      int64_t targets,
                      const WindowSplit& parts,
                      const DataConfig& config,
                      uint64_t seed) {
  const bool shuffled = config.order == "shuffled";
  return {std::move(stream),
          targets,
          Sampler(0, parts.train, shuffled, seed),
          Sampler(parts.train, parts.held_out, false, seed),
          config.pad_token};
}

}  // namespace

WindowSplit split_windows(int64_t tokens, int64_t seq_len, double holdout) {
  return split(tokens > 0 ? (tokens - 1) / seq_len : 0, holdout);
}

DataSet open_data(const DataConfig& config, int64_t global_batch, uint64_t seed, int64_t vocab) {
  check_config(config);
  auto stream = TokenStream::open(config.path, config.format, vocab);
  const std::string stream_has =
      concat("data.path = \"", config.path, "\" has ", stream->size(), " tokens");
  const WindowSplit parts = split_windows(stream->size(), config.seq_len, config.holdout);
  if (parts.train < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(stream_has, ", but data.seq_len = ", config.seq_len) +
                    concat(" with data.holdout = ", config.holdout) +
                    concat(" needs at least ", (config.holdout > 0 ? 2 : 1) * config.seq_len + 1) +
                    "; give a longer text or a smaller data.seq_len");
  }
  if (global_batch > parts.train) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("train.global_batch = ", global_batch, " sequences, but ", stream_has) +
                    concat(", which make ", parts.train, " training windows of ", config.seq_len) +
                    concat(" (and ", parts.held_out, " held out); allowed: 1 to ", parts.train) +
                    ", or a smaller data.seq_len or data.holdout");
  }
  return make_data_set(std::move(stream), config.seq_len, parts, config, seed);
}

DataSet split_samples(
    const DataConfig& config, int64_t count, int64_t targets, int64_t global_batch, uint64_t seed) {
  check_config(config);
  const WindowSplit parts = split(count, config.holdout);
  if (parts.train < std::max<int64_t>(global_batch, 1)) {
    throw Error(
        YOKE_INVALID_ARGUMENT,
        concat("train.global_batch = ", global_batch, " samples, but the model family has ") +
            concat(parts.train, " training samples (and ", parts.held_out) +
            concat(" held out by data.holdout = ", config.holdout, "); allowed: at most ") +
            std::to_string(std::max<int64_t>(parts.train, 0)));
  }
  return make_data_set(nullptr, targets, parts, config, seed);
}

HostMicroBatch read_micro_batch(const DataSet& data,
                                const Sampler& part,
                                int64_t first_sample,
                                int64_t sequences) {
  const size_t seq_len = static_cast<size_t>(data.seq_len),
               n = static_cast<size_t>(sequences) * seq_len;
  HostMicroBatch batch{sequences,
                       data.seq_len,
                       std::vector<int64_t>(n),
                       std::vector<int64_t>(n),
                       std::vector<int64_t>(n)};
  for (size_t i = 0; i < n; i += seq_len) {
    const int64_t begin =
        part.window(first_sample + static_cast<int64_t>(i / seq_len)) * data.seq_len;
    data.stream->read(begin, data.seq_len, &batch.tokens[i]);
    data.stream->read(begin + 1, data.seq_len, &batch.targets[i]);
    std::iota(&batch.positions[i], &batch.positions[i] + seq_len, int64_t{0});
  }
  if (data.pad_token)
    std::replace(batch.targets.begin(), batch.targets.end(), *data.pad_token, kNoTarget);
  return batch;
}

int64_t count_targets(const DataSet& data,
                      const Sampler& part,
                      int64_t first_sample,
                      int64_t sequences) {
  if (!data.pad_token) return sequences * data.seq_len;
  int64_t count = 0;
  std::vector<int64_t> targets(data.seq_len);
  for (int64_t i = 0; i < sequences; ++i) {
    data.stream->read(
        part.window(first_sample + i) * data.seq_len + 1, data.seq_len, targets.data());
    count += data.seq_len - std::count(targets.begin(), targets.end(), *data.pad_token);
  }
  return count;
}

}  // namespace yoke
