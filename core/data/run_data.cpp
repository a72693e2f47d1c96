// To Yoke, the data of another program are token streams whose windows are read in a given order. A
// part of an indexed dataset becomes the stream of its sequences in Megatron's order; Megatron's
// sample k of this stream is Yoke's window k. A folder of datatrove becomes the stream of its files
// without their tails; nanotron's windows do not overlap, so the data set has a stride. Everything
// that reads windows works as for any other data.
#include "core/data/run_data.hpp"

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "core/data/data_files.hpp"
#include "core/data/foreign_order.hpp"
#include "core/data/indexed_stream.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

enum Part : size_t { kTraining = 0, kEvaluation = 1 };

// Megatron's own split, if the command line has none.
const std::vector<double> kDefaultSplit = {969, 30, 1};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(YOKE_INVALID_ARGUMENT, what);
}

std::string order_is(const RunConfig& run) {
  return "data.order = \"" + run.data.order + "\"";
}

// Returns the seed in 32 bits.
uint32_t seed_of(const RunConfig& run) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  if (run.seed > kMost)
    refuse(concat("seed = ", run.seed, "; allowed with ", order_is(run)) +
           concat(": 0 to ", kMost));
  return static_cast<uint32_t>(run.seed);
}

// Opens what one entry of a key names.
Source open_entry(const std::string& key,
                  const std::string& entry,
                  const RunConfig& run,
                  int64_t vocab) {
  Source source = open_source(key, {entry}, run.data.format, vocab, run.data.mask);
  if (source.mask)
    refuse(path_is(key, entry) + " has a label mask, which " + order_is(run) +
           " cannot use; set data.mask = \"none\"");
  return source;
}

// Returns a data set without data, for a run that has a data.path.
DataSet empty_data(const RunConfig& run) {
  const DataConfig& config = run.data;
  if (config.path.empty())
    throw Error(YOKE_NOT_FOUND, "data.path is not set; " + order_is(run) + " needs it");
  const Sampler nothing(0, 0, false, 0);
  return {.sources = {},
          .ranges = {},
          .seq_len = config.seq_len,
          .train = nothing,
          .held_out = nothing,
          .pad_token = config.pad_token};
}

// Adds a source whose windows all follow those that are there. Returns the number of the first one.
int64_t add_source(DataSet& data, Source source, int64_t windows) {
  const int64_t first =
      data.ranges.empty() ? 0 : data.ranges.back().first + data.ranges.back().count;
  data.ranges.push_back({first, windows, data.sources.size(), 0});
  data.sources.push_back(std::move(source));
  return first;
}

// ---- Megatron ----

// A dataset that a key names.
struct Dataset {
  std::string key;
  Source source;
  const IndexedStream* ids;  // stream of the source
};

Dataset open_dataset(const std::string& key,
                     const std::string& entry,
                     const RunConfig& run,
                     int64_t vocab) {
  Dataset dataset{key, open_entry(key, entry, run, vocab), nullptr};
  const Source& source = dataset.source;
  dataset.ids = dynamic_cast<const IndexedStream*>(source.stream.get());
  if (dataset.ids == nullptr)
    refuse(path_is(key, entry) +
           (source.files.size() > 1 ? concat(" names ", source.files.size(), " files")
                                    : std::string(" has the format ") + source.stream->format()) +
           "; data.order = \"megatron\" needs one indexed dataset, X.bin with X.idx, for each "
           "entry");
  return dataset;
}

SequenceRange range_of(const Dataset& dataset, Part part, const RunConfig& run) {
  const int64_t all = dataset.ids->num_sequences();
  if (!run.eval.path.empty()) return {0, all};
  return split_range(run.data.split.empty() ? kDefaultSplit : run.data.split, part, all);
}

// Returns what to change if a part has no order.
std::string remedy(int32_t code, Part part, const RunConfig& run) {
  if (code == YOKE_UNIMPLEMENTED) return "; set fewer train.steps or a larger data.seq_len";
  const bool split = run.eval.path.empty();
  return std::string("; change ") + (split ? "data.split or " : "") +
         "data.seq_len, give more data" + (part == kEvaluation ? ", or set eval.every = 0" : "");
}

// Adds a part of a dataset as a source of its own. Returns the order of its windows.
Sampler add_part(
    DataSet& data, const Dataset& dataset, Part part, int64_t wanted, const RunConfig& run) {
  const SequenceRange range = range_of(dataset, part, run);
  MegatronOrder order;
  try {
    order = megatron_order(dataset.ids->starts(), range, wanted, data.seq_len, seed_of(run));
  } catch (const Error& e) {
    throw Error(e.code(),
                path_is(dataset.key, dataset.source.name) +
                    (part == kTraining ? ", training: " : ", evaluation: ") + e.what() +
                    remedy(e.code(), part, run));
  }
  Source source = dataset.source;
  // The stream owns the starts.
  const std::shared_ptr<const std::vector<int64_t>> starts(source.stream, &dataset.ids->starts());
  source.stream = reorder(source.stream, starts, std::move(order.sequences));
  const auto windows = static_cast<int64_t>(order.samples.size());
  const int64_t first = add_source(data, std::move(source), windows);
  return {first,
          order.per_epoch,
          std::make_shared<const std::vector<uint32_t>>(std::move(order.samples))};
}

SampleOrder add_parts(DataSet& data,
                      const std::vector<Dataset>& datasets,
                      Part part,
                      int64_t wanted,
                      const RunConfig& run) {
  if (datasets[0].key == "eval.path" || run.data.weights.empty())
    return add_part(data, datasets[0], part, wanted, run);
  const std::vector<double> shares = normalized(run.data.weights);
  std::vector<Sampler> samplers;
  for (size_t k = 0; k < datasets.size(); ++k)
    samplers.push_back(add_part(data, datasets[k], part, wanted_of_blend(shares[k], wanted), run));
  // Megatron divides by the sum twice, which changes the last bits.
  return {std::move(samplers), std::make_shared<const Blend>(normalized(shares), wanted)};
}

// Megatron reads on where the evaluation before has ended, so its order is made for all of them.
// Yoke reads the first ones in every evaluation. An evaluation of all data reads one epoch.
int64_t evaluated_samples(const RunConfig& run) {
  if (run.eval.batches == 0) return 1;
  return (run.train.steps / run.eval.every + 1) * run.eval.batches * run.train.global_batch;
}

void check_megatron(const RunConfig& run) {
  const size_t datasets = run.data.path.size();
  if (datasets > 1 && run.data.weights.empty())
    refuse(concat("data.path names ", datasets, " datasets; with ", order_is(run)) +
           ", several datasets are a blend; set data.weights");
  if (run.eval.path.size() > 1)
    refuse(concat("eval.path names ", run.eval.path.size(), " datasets; allowed with ") +
           order_is(run) + ": one");
  const bool blends = !run.data.weights.empty() && run.eval.path.empty();
  if (run.eval.every > 0 && run.eval.batches == 0 && blends)
    refuse("eval.batches = 0 evaluates all data, but a blend has no end; set eval.batches");
}

DataSet open_megatron(const RunConfig& run, int64_t vocab) {
  check_megatron(run);
  DataSet data = empty_data(run);
  std::vector<Dataset> training, evaluation;
  for (const std::string& entry : run.data.path)
    training.push_back(open_dataset("data.path", entry, run, vocab));
  for (const std::string& entry : run.eval.path)
    evaluation.push_back(open_dataset("eval.path", entry, run, vocab));
  data.train = add_parts(data, training, kTraining, run.train.steps * run.train.global_batch, run);
  if (run.eval.every > 0) {
    const std::vector<Dataset>& evaluated = evaluation.empty() ? training : evaluation;
    data.held_out = add_parts(data, evaluated, kEvaluation, evaluated_samples(run), run);
    if (!evaluation.empty()) data.eval_source = data.sources.size() - 1;
  }
  complete_data(data, run.data);
  return data;
}

// ---- nanotron ----

// Adds the files of one entry, each without the tokens after its last whole window. Returns its
// windows in ascending order.
Sampler add_folder(DataSet& data,
                   const std::string& key,
                   const std::string& entry,
                   const RunConfig& run,
                   int64_t vocab) {
  Source source = open_entry(key, entry, run, vocab);
  if (std::string(source.stream->format()) != "datatrove")
    refuse(path_is(key, entry) + " has the format " + source.stream->format() + "; " +
           order_is(run) + " needs files of datatrove, X.ds with X.ds.metadata");
  // Even sequences are the windows of a file, odd ones its tail.
  std::vector<int64_t> starts;
  std::vector<uint32_t> sequences;
  int64_t begin = 0, windows = 0;
  for (const int64_t size : source.sizes) {
    sequences.push_back(static_cast<uint32_t>(starts.size()));
    starts.push_back(begin);
    starts.push_back(begin + size / data.stride * data.stride);
    windows += size / data.stride;
    begin += size;
  }
  if (windows == 0)
    refuse(path_is(key, entry) + concat(" has ", begin, " tokens in ", source.sizes.size()) +
           concat(" files, but a window of one file has data.seq_len + 1 = ", data.stride) +
           "; give longer files or a smaller data.seq_len");
  source.stream = reorder(source.stream,
                          std::make_shared<const std::vector<int64_t>>(std::move(starts)),
                          std::move(sequences));
  const int64_t first = add_source(data, std::move(source), windows);
  return {first, windows, false, 0};
}

// A blend of folders, each of which begins again when it has been read. nanotron shuffles nothing.
DataSet open_nanotron(const RunConfig& run, int64_t vocab) {
  if (run.eval.every > 0 && run.eval.path.empty())
    refuse(concat("eval.every = ", run.eval.every, ", but with ", order_is(run)) +
           " all data are for training; set eval.path or eval.every = 0");
  if (run.eval.path.size() > 1)
    refuse(concat("eval.path has ", run.eval.path.size(), " entries; allowed with ") +
           order_is(run) + ": one");
  DataSet data = empty_data(run);
  data.stride = data.seq_len + 1;
  std::vector<Sampler> folders;
  for (const std::string& entry : run.data.path)
    folders.push_back(add_folder(data, "data.path", entry, run, vocab));
  const std::vector<double> equal(folders.size(), 1);
  const std::vector<double> shares =
      normalized(run.data.weights.empty() ? equal : run.data.weights);
  if (folders.size() == 1) {
    data.train = folders[0];
  } else {
    const int64_t samples = run.train.steps * run.train.global_batch;
    data.train = SampleOrder(std::move(folders), std::make_shared<const Blend>(shares, samples));
  }
  if (!run.eval.path.empty()) {
    data.held_out = add_folder(data, "eval.path", run.eval.path[0], run, vocab);
    data.eval_source = data.sources.size() - 1;
  }
  complete_data(data, run.data);
  return data;
}

}  // namespace

DataSet open_run_data(const RunConfig& run, int64_t vocab) {
  if (run.data.order == "megatron") return open_megatron(run, vocab);
  if (run.data.order == "nanotron") return open_nanotron(run, vocab);
  return open_data(run.data, run.train.global_batch, run.seed, vocab, run.eval.path);
}

}  // namespace yoke
