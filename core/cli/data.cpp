#include "core/cli/data.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/command.hpp"
#include "core/cli/prepare.hpp"
#include "core/cli/table.hpp"
#include "core/cli/worker_program.hpp"
#include "core/config/config.hpp"
#include "core/data/indexed_stream.hpp"
#include "core/data/run_data.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

struct Request {
  DataConfig data;
  int64_t vocab = 0;
  bool json = false;
};

// Returns the check that a number is at least `least`. The messages of CLI11's own checks contain
// the largest double.
CLI::Range from(int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 40;
  return {least, kMost};
}

constexpr int64_t kPortion = 1 << 20;  // number of ids read at a time
constexpr int64_t kShownIds = 16, kShownBytes = 60;

struct Range {
  int64_t min = 0, max = 0;
};

// Reads every id of the stream. Throws Error(DATA_LOSS) for the first id that is out of range.
Range scan(const TokenStream& stream) {
  Range range{stream.size() > 0 ? INT64_MAX : 0, 0};
  std::vector<int64_t> ids(static_cast<size_t>(std::min(stream.size(), kPortion)));
  for (int64_t begin = 0; begin < stream.size(); begin += kPortion) {
    const int64_t count = std::min(kPortion, stream.size() - begin);
    stream.read(begin, count, ids.data());
    const auto [low, high] = std::minmax_element(ids.begin(), ids.begin() + count);
    range = {std::min(range.min, *low), std::max(range.max, *high)};
  }
  return range;
}

std::vector<int64_t> first(const TokenStream& stream, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(std::min(count, stream.size())));
  stream.read(0, static_cast<int64_t>(ids.size()), ids.data());
  return ids;
}

// Returns the first bytes in printable form.
std::string preview(const TokenStream& stream) {
  std::string text;
  for (const int64_t byte : first(stream, kShownBytes)) {
    const char c = static_cast<char>(byte);
    text += c == '\n' ? "\\n" : byte >= 0x20 && byte < 0x7f ? std::string(1, c) : "?";
  }
  return text;
}

// Returns the part of the tokens that count as targets, as the label mask says.
double counted_share(const Source& source) {
  const int64_t size = source.stream->size();
  if (!source.mask || size == 0) return 1;
  std::vector<uint8_t> counts(static_cast<size_t>(std::min(size, kPortion)));
  int64_t sum = 0;
  for (int64_t begin = 0; begin < size; begin += kPortion) {
    const int64_t count = std::min(kPortion, size - begin);
    source.mask->read(begin, count, counts.data());
    sum += std::count(counts.begin(), counts.begin() + count, 1);
  }
  return static_cast<double>(sum) / static_cast<double>(size);
}

uint64_t bytes_of(const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) bytes += std::filesystem::file_size(file);
  return bytes;
}

Json describe(const Request& request, const Source& source) {
  const TokenStream& stream = *source.stream;
  const Range ids = scan(stream);
  const WindowSplit windows =
      split_windows(stream.size(), request.data.seq_len, request.data.holdout);
  Json json = {{"path", source.name},
               {"files", source.files.size()},
               {"format", stream.format()},
               {"bytes", bytes_of(source.files)},
               {"tokens", stream.size()},
               {"vocabulary", stream.vocab() > 0 ? Json(stream.vocab()) : Json()},
               {"min_id", stream.size() > 0 ? Json(ids.min) : Json()},
               {"max_id", stream.size() > 0 ? Json(ids.max) : Json()},
               {"label_masks", source.mask ? source.mask->files().size() : 0},
               {"counted_targets", counted_share(source)},
               {"seq_len", request.data.seq_len},
               {"training_windows", std::max<int64_t>(windows.train, 0)},
               // split_windows() holds out one window even if there is none; train is -1 then.
               {"held_out_windows", windows.held_out + std::min<int64_t>(windows.train, 0)},
               {"first_ids", first(stream, kShownIds)}};
  if (std::string(stream.format()) == "text") json["text"] = preview(stream);
  if (const auto* indexed = dynamic_cast<const IndexedStream*>(&stream)) {
    json["sequences"] = indexed->num_sequences();
    json["documents"] = indexed->num_documents();
  }
  return json;
}

int inspect(const Request& request) {
  const DataConfig& data = request.data;
  const Json json =
      describe(request, open_source("data.path", data.path, data.format, request.vocab, data.mask));
  if (request.json) {
    std::puts(json.dump(2).c_str());
    return kExitOk;
  }
  Table table({"", ""});
  for (const auto& [key, value] : json.items()) {
    const bool unknown = key == "vocabulary" && value.is_null();
    table.add({key,
               unknown             ? "unknown; model.vocab must be larger than max_id"
               : value.is_string() ? value.get<std::string>()
                                   : value.dump()});
  }
  std::fputs(table.text().c_str() + 1, stdout);  // skips the empty header line
  return kExitOk;
}

struct SamplesRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string part = "train";
  int64_t first = 0, count = 1;
};

// Prints samples of a run, one JSON object per line, in the order in which the run reads them.
int print_samples(const SamplesRequest& request) {
  const RunConfig run =
      load_config(request.config, request.overrides, process_environment(), backend_names).run;
  const DataSet data = open_run_data(run, 0);
  const SampleOrder& part = request.part == "train" ? data.train : data.held_out;
  if (part.num_windows() == 0)
    throw Error(
        YOKE_FAILED_PRECONDITION,
        "the run has no samples for evaluation; set eval.every, and data.holdout, data.split "
        "or eval.path");
  std::vector<int64_t> ids(static_cast<size_t>(data.seq_len) + 1);
  for (int64_t i = request.first; i < request.first + request.count; ++i) {
    read_window(data, part.window(i), 0, data.seq_len + 1, ids.data());
    std::puts(Json{{"sample", i}, {"tokens", ids}}.dump().c_str());
  }
  return kExitOk;
}

CLI::App* add_samples_command(CLI::App& app, SamplesRequest& request) {
  CLI::App* samples = app.add_subcommand(
      "samples", "print samples of a run as JSON lines, in the order in which it reads them");
  samples->add_option("CONFIG", request.config, "the run file")->required();
  samples->add_option(
      "KEY=VALUE", request.overrides, "settings that replace those of the run file");
  samples
      ->add_option(
          "--part", request.part, "the samples for training or for evaluation; default: train")
      ->check(CLI::IsMember({"train", "eval"}));
  samples->add_option("--first", request.first, "number of the first sample, from 0; default: 0")
      ->type_name("N")
      ->check(from(0));
  samples->add_option("--count", request.count, "number of samples; default: 1")
      ->type_name("N")
      ->check(from(1));
  return samples;
}

}  // namespace

int data_command(const std::vector<std::string>& args) {
  CLI::App app("Prepares and inspects files of tokens.", "yoke data");
  app.require_subcommand(1);
  Request request;
  CLI::App* look =
      app.add_subcommand("inspect", "read whole files as a run does, and print what they contain");
  look->add_option("PATH",
                   request.data.path,
                   "texts, or files of token ids; folders and patterns; all of them are one stream")
      ->required();
  look->add_option("--format",
                   request.data.format,
                   "format of the files: auto, text, yoke, nanogpt, llmc, npy, megatron or "
                   "datatrove; default: auto")
      ->type_name("FORMAT");
  look->add_option("--vocab", request.vocab, "refuse ids that are not below N, as model.vocab does")
      ->type_name("N")
      ->check(from(1));
  look->add_option("--mask",
                   request.data.mask,
                   "label masks, as data.mask: auto, none or required; default: auto")
      ->type_name("USE")
      ->check(CLI::IsMember({"auto", "none", "required"}));
  look->add_option("--seq-len", request.data.seq_len, "tokens per window; default: 256")
      ->type_name("N")
      ->check(from(1));
  look->add_option("--holdout", request.data.holdout, "fraction kept for evaluation; default: 0.05")
      ->type_name("X")
      ->check(CLI::Range(0.0, 0.99));
  look->add_flag("--json", request.json, "print JSON");
  SamplesRequest samples;
  const CLI::App* print = add_samples_command(app, samples);
  const std::function<int()> prepare = add_prepare_command(app);
  return run_command(app, args, [&]() -> int {
    try {
      if (print->parsed()) return print_samples(samples);
      return look->parsed() ? inspect(request) : prepare();
    } catch (const Error& e) {
      std::fprintf(stderr, "yoke: %s\n", e.what());
      return exit_code_of(e);
    }
  });
}

}  // namespace yoke
