#include "core/cli/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/exit_code.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/cli/command.hpp"
#include "core/cli/table.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Request {
  std::string place = "runs";  // folder for ls
  std::string checkpoint;
  std::string folder;
  std::string format = "hf", dtype = "fp32", max_shard_size = "5GB";
  bool json = false, adapter = false;
};

// ---- ls ----

// One checkpoint with its description, or with the reason why it cannot be used.
struct Listed {
  std::string path;
  CheckpointInfo info;
  std::optional<int64_t> steps{};  // all steps of the run; none = unknown
  uint64_t bytes = 0;
  std::string fault;
};

// Returns train.steps of the run in whose folder a checkpoint is; nothing if it is elsewhere.
std::optional<int64_t> steps_of_run(const std::string& checkpoint) {
  const fs::path run = fs::absolute(checkpoint).parent_path().parent_path();
  for (const TomlEntry& entry : parse_toml_file(run / "config.resolved.toml").entries) {
    const auto* steps = std::get_if<int64_t>(&entry.value.data);
    if (steps != nullptr && entry.dotted() == "train.steps") return *steps;
  }
  return std::nullopt;
}

Listed look_at(const std::string& path) {
  Listed listed;
  listed.path = path;
  try {
    const CheckpointReader reader(path);
    listed.info = reader.info();
    listed.steps = steps_of_run(path);
    if (!listed.steps && listed.info.finished) listed.steps = listed.info.step;
    listed.bytes = reader.bytes();
  } catch (const Error& e) {
    listed.fault = e.what();
  }
  return listed;
}

void add_steps(const std::string& folder, std::vector<std::string>& paths) {
  std::vector<int64_t> steps = steps_in(folder);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) paths.push_back((fs::path(folder) / step_name(step)).string());
}

// Returns the paths of all checkpoints below a run folder, a folder of checkpoints or a folder of
// runs.
std::vector<std::string> checkpoints_in(const std::string& place) {
  if (!fs::is_directory(place)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                place +
                    " is not a folder; give a run folder, a folder of checkpoints, or a folder "
                    "of runs");
  }
  std::vector<std::string> paths;
  if (fs::exists(fs::path(place) / "manifest.json")) paths.push_back(place);
  add_steps(place, paths);
  add_steps((fs::path(place) / "checkpoints").string(), paths);
  std::vector<fs::path> runs(fs::directory_iterator(place), fs::directory_iterator{});
  std::sort(runs.begin(), runs.end());
  for (const fs::path& run : runs) {
    if (fs::is_directory(run)) add_steps((run / "checkpoints").string(), paths);
  }
  return paths;
}

// Returns "10 of 20", or "10" if the number of steps of the run is unknown.
std::string progress(const Listed& c) {
  return concat(c.info.step) + (c.steps ? concat(" of ", *c.steps) : "");
}

int list(const Request& request) {
  Table table({"checkpoint", "step", "size", "eval loss", "state"});
  Json json = Json::array();
  for (const std::string& path : checkpoints_in(request.place)) {
    const Listed c = look_at(path);
    const bool whole = c.fault.empty();
    json.push_back({{"path", path},
                    {"complete", whole},
                    {"step", whole ? Json(c.info.step) : Json()},
                    {"steps", c.steps ? Json(*c.steps) : Json()},
                    {"bytes", whole ? Json(c.bytes) : Json()},
                    {"finished", whole ? Json(c.info.finished) : Json()},
                    {"eval_loss", c.info.eval_loss ? Json(*c.info.eval_loss) : Json()},
                    {"fault", whole ? Json() : Json(c.fault)}});
    table.add({path,
               whole ? progress(c) : "-",
               whole ? bytes_text(c.bytes) : "-",
               c.info.eval_loss ? string_printf("%.6g", *c.info.eval_loss) : "-",
               whole ? "complete" : "damaged: " + c.fault});
  }
  if (request.json) {
    std::puts(json.dump(2).c_str());
  } else if (table.empty()) {
    std::fprintf(stderr, "no checkpoint found in %s\n", request.place.c_str());
  } else {
    std::fputs(table.text().c_str(), stdout);
  }
  return kExitOk;
}

// ---- verify ----

int verify(const Request& request) {
  const CheckpointReader reader(request.checkpoint);
  reader.verify();
  std::printf("%s: step %lld, %zu parameters and their state, %s: all checksums match\n",
              request.checkpoint.c_str(),
              static_cast<long long>(reader.info().step),
              reader.param_shapes().size(),
              bytes_text(reader.bytes()).c_str());
  return kExitOk;
}

// ---- export ----

// Parses a size such as "5GB", "200MiB" or "1000000".
uint64_t parse_size(const std::string& text) {
  constexpr std::pair<const char*, uint64_t> kUnits[] = {{"", 1},
                                                         {"KB", 1'000},
                                                         {"MB", 1'000'000},
                                                         {"GB", 1'000'000'000},
                                                         {"KiB", uint64_t{1} << 10},
                                                         {"MiB", uint64_t{1} << 20},
                                                         {"GiB", uint64_t{1} << 30}};
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  for (const auto& [unit, bytes] : kUnits) {
    uint64_t size = 0;
    if (error != std::errc() || std::string(at, end) != unit || number == 0) continue;
    if (!__builtin_mul_overflow(number, bytes, &size)) return size;
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "--max-shard-size " + text +
                  "; allowed: a whole number of bytes, or one followed by KB, MB, GB, KiB, MiB "
                  "or GiB, e.g. 5GB");
}

int export_checkpoint(const Request& request) {
  if (request.format != "hf") {
    throw Error(YOKE_INVALID_ARGUMENT, "--format " + request.format + "; allowed: hf");
  }
  if (request.dtype != "fp32" && request.dtype != "bf16") {
    throw Error(YOKE_INVALID_ARGUMENT, "--dtype " + request.dtype + "; allowed: fp32, bf16");
  }
  const Exported done = export_hf({request.checkpoint,
                                   request.folder,
                                   request.dtype == "bf16" ? YOKE_BF16 : YOKE_F32,
                                   parse_size(request.max_shard_size),
                                   request.adapter});
  std::printf("%s: step %lld, %zu tensors of %s in %zu %s, %s\n",
              request.folder.c_str(),
              static_cast<long long>(done.step),
              done.tensors,
              request.dtype.c_str(),
              done.files,
              done.files == 1 ? "file" : "files",
              bytes_text(done.bytes).c_str());
  if (!done.warning.empty()) std::fprintf(stderr, "warning: %s\n", done.warning.c_str());
  return kExitOk;
}

}  // namespace

int checkpoint_command(const std::vector<std::string>& args) {
  CLI::App app("Lists, verifies and exports checkpoints.", "yoke checkpoint");
  app.require_subcommand(1);
  Request request;
  CLI::App* ls = app.add_subcommand("ls", "list checkpoints with step, size and state");
  ls->alias("list");
  ls->add_option("PLACE",
                 request.place,
                 "run folder, folder of checkpoints, or folder of runs; default: runs");
  ls->add_flag("--json", request.json, "print JSON");
  CLI::App* check = app.add_subcommand("verify", "read a whole checkpoint and check its checksums");
  CLI::App* out =
      app.add_subcommand("export", "write the weights in a format that other programs read");
  for (CLI::App* sub : {check, out}) {
    sub->add_option("CHECKPOINT",
                    request.checkpoint,
                    "folder of the checkpoint, e.g. runs/novels/checkpoints/step-00000300")
        ->required();
  }
  out->add_option("-o,--output", request.folder, "folder to create")
      ->required()
      ->type_name("FOLDER");
  out->add_option("--format", request.format, "hf, which transformers can open; default: hf")
      ->type_name("FORMAT");
  out->add_option("--dtype", request.dtype, "fp32, or bf16 rounded to nearest even; default: fp32")
      ->type_name("DTYPE");
  out->add_option(
         "--max-shard-size", request.max_shard_size, "size of the largest file; default: 5GB")
      ->type_name("SIZE");
  out->add_flag("--adapter", request.adapter, "write only the adapters of lora.rank, for PEFT");
  return run_command(app, args, [&]() -> int {
    try {
      if (ls->parsed()) return list(request);
      return check->parsed() ? verify(request) : export_checkpoint(request);
    } catch (const Error& e) {
      std::fprintf(stderr, "yoke: %s\n", e.what());
      return exit_code_of(e);
    }
  });
}

}  // namespace yoke
