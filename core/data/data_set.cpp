#include "core/data/data_set.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "core/data/data_files.hpp"
#include "core/data/joined_stream.hpp"
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

NamedStream named(const Source& source) {
  return {source.files[0], source.stream};
}

WindowSplit split(int64_t windows, double holdout) {
  int64_t held_out = std::llround(holdout * static_cast<double>(windows));
  if (holdout > 0) held_out = std::max<int64_t>(held_out, 1);
  return {windows - held_out, held_out};
}

// The windows of all sources of a run, before they are numbered.
struct Windows {
  std::vector<WindowSplit> of_source;
  int64_t evaluation = 0;  // windows of eval.path
};

// Numbers the windows: the training part, then the evaluation part.
std::vector<WindowRange> ranges_of(const Windows& windows) {
  std::vector<WindowRange> ranges;
  int64_t next = 0;
  const auto add = [&](int64_t count, size_t source, int64_t first_in_stream) {
    if (count > 0) ranges.push_back({next, count, source, first_in_stream});
    next += count;
  };
  const std::vector<WindowSplit>& all = windows.of_source;
  for (size_t s = 0; s < all.size(); ++s) add(all[s].train, s, 0);
  for (size_t s = 0; s < all.size(); ++s) add(all[s].held_out, s, all[s].train);
  add(windows.evaluation, all.size(), 0);
  return ranges;
}

SampleOrder training_order(const Windows& windows, const DataConfig& config, uint64_t seed) {
  const bool shuffled = config.order == "shuffled";
  std::vector<Sampler> samplers;
  int64_t first = 0;
  for (size_t s = 0; s < windows.of_source.size(); ++s) {
    const int64_t count = windows.of_source[s].train;
    samplers.emplace_back(first, count, shuffled, seed + (uint64_t{s} << 32));
    first += count;
  }
  if (config.weights.empty()) return samplers[0];
  return {std::move(samplers), std::make_shared<const Mixture>(config.weights)};
}

// Returns a data set without sources and notes.
DataSet number_windows(const Windows& windows, const DataConfig& config, SampleOrder training) {
  const int64_t train = training.num_windows();
  int64_t held_out = windows.evaluation;
  for (const WindowSplit& split : windows.of_source) held_out += split.held_out;
  return {.sources = {},
          .ranges = ranges_of(windows),
          .seq_len = config.seq_len,
          .train = std::move(training),
          .held_out = Sampler(train, held_out, false, 0),
          .pad_token = config.pad_token};
}

std::string source_has(const std::string& key, const Source& source) {
  return path_is(key, source.name) + concat(" has ", source.stream->size(), " tokens");
}

// Refuses a source without a training window.
WindowSplit windows_of(const Source& source, const DataConfig& config) {
  const WindowSplit parts = split_windows(source.stream->size(), config.seq_len, config.holdout);
  if (parts.train >= 1) return parts;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(source_has("data.path", source), ", but data.seq_len = ", config.seq_len) +
                  concat(" with data.holdout = ", config.holdout) +
                  concat(" needs at least ", (config.holdout > 0 ? 2 : 1) * config.seq_len + 1) +
                  "; give a longer text or a smaller data.seq_len");
}

// A step must not read a window twice. share: part of the batch that comes from this source.
void check_batch(
    const Source& source, const WindowSplit& parts, double share, int64_t batch, int64_t seq_len) {
  const double windows = static_cast<double>(parts.train);
  constexpr double kRounding = 1e-6;
  if (share * static_cast<double>(batch) <= windows + kRounding) return;
  const std::string of_batch = share < 1 ? string_printf(", of which %.6g come from this source",
                                                         share * static_cast<double>(batch))
                                         : "";
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("train.global_batch = ", batch, " sequences", of_batch, ", but ") +
                  concat(source_has("data.path", source), ", which make ", parts.train) +
                  concat(" training windows of ", seq_len, " (and ", parts.held_out, " held out)") +
                  concat("; allowed: 1 to ", static_cast<int64_t>(windows / share)) +
                  ", or a smaller data.seq_len or data.holdout");
}

// Opens data.path: one source, or with weights one for each entry.
std::vector<Source> open_training(const DataConfig& config, int64_t vocab) {
  if (config.weights.empty())
    return {open_source("data.path", config.path, config.format, vocab, config.mask)};
  std::vector<Source> sources;
  std::vector<std::string> files;
  for (const std::string& entry : config.path) {
    sources.push_back(open_source("data.path", {entry}, config.format, vocab, config.mask));
    const Source& opened = sources.back();
    files.insert(files.end(), opened.files.begin(), opened.files.end());
    for (const Source& earlier : sources)
      require_same_tokens("data.path", named(earlier), named(opened));
  }
  if (const std::string twice = find_repeated_file(files); !twice.empty())
    throw Error(YOKE_INVALID_ARGUMENT,
                "data.path names the file \"" + twice +
                    "\" in two sources of a mixture; allowed: each file in one source");
  return sources;
}

// Opens eval.path and appends it to the sources. Returns its number of windows.
int64_t open_evaluation(const std::vector<std::string>& path,
                        const DataConfig& config,
                        int64_t vocab,
                        std::vector<Source>& sources) {
  Source opened = open_source("eval.path", path, config.format, vocab, config.mask);
  for (const Source& source : sources)
    require_same_tokens("data.path with eval.path", named(source), named(opened));
  const int64_t windows = split_windows(opened.stream->size(), config.seq_len, 0).train;
  if (windows < 1)
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(source_has("eval.path", opened), ", but data.seq_len = ", config.seq_len) +
                    concat(" needs at least ", config.seq_len + 1, "; give a longer text"));
  sources.push_back(std::move(opened));
  return windows;
}

// Returns notes on sources whose beginning has no end of a document, because `end` may be wrong.
std::vector<std::string> notes_on_documents(const std::vector<Source>& sources, int64_t end) {
  constexpr int64_t kSearched = 1 << 18;
  std::vector<std::string> notes;
  for (const Source& source : sources) {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(source.stream->size(), kSearched)));
    source.stream->read(0, static_cast<int64_t>(ids.size()), ids.data());
    if (std::find(ids.begin(), ids.end(), end) != ids.end()) continue;
    notes.push_back(concat("data.document_end = ", end, " is none of the first ", ids.size()) +
                    " tokens of " + source.name + ", so no document ends there");
  }
  return notes;
}

// Returns notes on files of eval.path that are trained on, too, because their loss measures memory;
// and on label masks, because they are used without being named.
std::vector<std::string> notes_on_files(const DataSet& data) {
  std::vector<std::string> files, notes;
  size_t masks = 0;
  for (size_t s = 0; s < data.sources.size(); ++s) {
    const Source& source = data.sources[s];
    masks += source.mask ? source.mask->files().size() : 0;
    if (s < data.train.num_sources() || s == data.eval_source)
      files.insert(files.end(), source.files.begin(), source.files.end());
  }
  const std::string twice = data.eval_source ? find_repeated_file(files) : "";
  if (!twice.empty())
    notes.push_back("eval.path names the file \"" + twice +
                    "\", which data.path trains on, too, so the evaluation loss is not that of "
                    "unseen text");
  if (masks > 0)
    notes.push_back(concat(masks, " of ", files.size(), " files of tokens have a label mask") +
                    "; the targets that it leaves out do not count in the loss");
  return notes;
}

}  // namespace

WindowSplit split_windows(int64_t tokens, int64_t seq_len, double holdout) {
  return split(tokens > 0 ? (tokens - 1) / seq_len : 0, holdout);
}

void complete_data(DataSet& data, const DataConfig& config) {
  require_one_tokenizer(data.eval_source ? "data.path with eval.path" : "data.path", data.sources);
  data.notes = notes_on_files(data);
  if (config.documents != "separate") return;
  data.document_end =
      config.document_end ? *config.document_end : described_document_end(data.sources);
  for (std::string& note : notes_on_documents(data.sources, *data.document_end))
    data.notes.push_back(std::move(note));
}

DataSet open_data(const DataConfig& config,
                  int64_t global_batch,
                  uint64_t seed,
                  int64_t vocab,
                  const std::vector<std::string>& eval_path) {
  check_config(config);
  std::vector<Source> sources = open_training(config, vocab);
  Windows windows;
  for (const Source& source : sources) windows.of_source.push_back(windows_of(source, config));
  SampleOrder order = training_order(windows, config, seed);
  for (size_t s = 0; s < sources.size(); ++s)
    check_batch(sources[s], windows.of_source[s], order.share(s), global_batch, config.seq_len);
  if (!eval_path.empty()) windows.evaluation = open_evaluation(eval_path, config, vocab, sources);
  DataSet data = number_windows(windows, config, std::move(order));
  if (!eval_path.empty()) data.eval_source = sources.size() - 1;
  data.sources = std::move(sources);
  complete_data(data, config);
  return data;
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
  const Windows windows{{parts}, 0};
  DataSet data = number_windows(windows, config, training_order(windows, config, seed));
  data.seq_len = targets;
  return data;
}

namespace {

// A window as a part of the stream of a source.
struct Place {
  const Source& source;
  int64_t begin;  // number of its first token
};

Place place_of(const DataSet& data, int64_t window) {
  const auto after = std::upper_bound(
      data.ranges.begin(), data.ranges.end(), window, [](int64_t w, const WindowRange& range) {
        return w < range.first;
      });
  const WindowRange& range = *(after - 1);
  return {data.sources[range.source],
          (range.first_in_stream + window - range.first) *
              (data.stride > 0 ? data.stride : data.seq_len)};
}

// Writes the seq_len targets of a window, whose seq_len + 1 ids are `ids`.
void write_targets(const DataSet& data, const Place& place, const int64_t* ids, int64_t* targets) {
  const int64_t n = data.seq_len;
  std::copy(ids + 1, ids + n + 1, targets);
  if (data.pad_token) std::replace(targets, targets + n, *data.pad_token, kNoTarget);
  if (data.document_end) {
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] == *data.document_end) targets[i] = kNoTarget;
    }
  }
  if (!place.source.mask) return;
  std::vector<uint8_t> counts(static_cast<size_t>(n));
  place.source.mask->read(place.begin + 1, n, counts.data());
  for (int64_t i = 0; i < n; ++i) {
    if (counts[static_cast<size_t>(i)] == 0) targets[i] = kNoTarget;
  }
}

// Writes where the document of each token begins, and the position of the token in it. The document
// of the first token begins with the window, even if the stream has tokens of it before.
void write_documents(
    int64_t end, const int64_t* ids, int64_t count, int64_t* starts, int64_t* positions) {
  int64_t start = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && ids[i - 1] == end) start = i;
    starts[i] = start;
    positions[i] = i - start;
  }
}

}  // namespace

bool every_target_counts(const DataSet& data) {
  return !data.pad_token && !data.document_end &&
         std::none_of(data.sources.begin(), data.sources.end(), [](const Source& source) {
           return source.mask != nullptr;
         });
}

void read_window(const DataSet& data, int64_t window, int64_t skip, int64_t count, int64_t* out) {
  const Place place = place_of(data, window);
  place.source.stream->read(place.begin + skip, count, out);
}

HostMicroBatch read_micro_batch(const DataSet& data,
                                const SampleOrder& part,
                                int64_t first_sample,
                                int64_t sequences) {
  const size_t seq_len = static_cast<size_t>(data.seq_len),
               n = static_cast<size_t>(sequences) * seq_len;
  HostMicroBatch batch{.sequences = sequences,
                       .seq_len = data.seq_len,
                       .tokens = std::vector<int64_t>(n),
                       .targets = std::vector<int64_t>(n),
                       .positions = std::vector<int64_t>(n),
                       .document_starts = std::vector<int64_t>(data.document_end ? n : 0)};
  std::vector<int64_t> ids(seq_len + 1);
  for (size_t i = 0; i < n; i += seq_len) {
    const Place place =
        place_of(data, part.window(first_sample + static_cast<int64_t>(i / seq_len)));
    place.source.stream->read(place.begin, data.seq_len + 1, ids.data());
    std::copy(ids.begin(), ids.end() - 1, &batch.tokens[i]);
    write_targets(data, place, ids.data(), &batch.targets[i]);
    if (data.document_end) {
      write_documents(*data.document_end,
                      ids.data(),
                      data.seq_len,
                      &batch.document_starts[i],
                      &batch.positions[i]);
    } else {
      std::iota(&batch.positions[i], &batch.positions[i] + seq_len, int64_t{0});
    }
  }
  return batch;
}

int64_t count_targets(const DataSet& data,
                      const SampleOrder& part,
                      int64_t first_sample,
                      int64_t sequences) {
  if (every_target_counts(data)) return sequences * data.seq_len;
  int64_t count = 0;
  const auto n = static_cast<size_t>(data.seq_len);
  std::vector<int64_t> ids(n + 1), targets(n);
  for (int64_t i = 0; i < sequences; ++i) {
    const Place place = place_of(data, part.window(first_sample + i));
    place.source.stream->read(place.begin, data.seq_len + 1, ids.data());
    write_targets(data, place, ids.data(), targets.data());
    count += data.seq_len - std::count(targets.begin(), targets.end(), kNoTarget);
  }
  return count;
}

}  // namespace yoke
