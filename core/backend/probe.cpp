// A library runs code as soon as it is loaded, and yoke must survive whatever that code does:
// crash, exit, hang, print to stdout. Catching signals in our own process would not do, because
// after a crash its memory cannot be trusted. The price is one more process at the start of a run.
// A program that has not loaded LibTorch starts a worker for it. A worker makes a copy of itself,
// because most of the time that a worker needs to start is that of LibTorch.
#include "core/backend/probe.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/backend/library_file.hpp"
#include "core/backend/loader.hpp"
#include "core/backend/reject.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/subprocess.hpp"
#include "core/config/options.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPhase = "loading, in a separate process";
constexpr std::pair<int32_t, const char*> kDevices[] = {{YOKE_DEVICE_CPU, "cpu"},
                                                        {YOKE_DEVICE_CUDA, "cuda"}};

// Returns one limit of an option as JSON; null if it is infinite, that is, if there is no limit.
Json limit_json(double limit, int32_t type) {
  if (!std::isfinite(limit)) return nullptr;
  return type == YOKE_OPTION_INT ? Json(static_cast<int64_t>(limit)) : Json(limit);
}

Json option_json(const YokeOptionInfo& option) {
  Json json = {{"key", view(option.key)},
               {"type", option_type_name(option.type)},
               {"default", view(option.default_value)},
               {"choices", Json::array()},
               {"min", nullptr},
               {"max", nullptr},
               {"doc", view(option.doc)}};
  std::string_view choices = view(option.choices);
  while (!choices.empty()) {
    const size_t bar = choices.find('|');
    json["choices"].push_back(choices.substr(0, bar));
    choices.remove_prefix(bar == std::string_view::npos ? choices.size() : bar + 1);
  }
  // In the contract, min > max means that there is no limit.
  if (option.min <= option.max) {
    json["min"] = limit_json(option.min, option.type);
    json["max"] = limit_json(option.max, option.type);
  }
  return json;
}

Json description_json(const LoadedBackend& backend) {
  const YokeDescription& d = backend.description();
  Json json = {{"name", view(d.name)},
               {"version", view(d.version)},
               {"vendor", view(d.vendor)},
               {"summary", view(d.summary)},
               {"torch_tag", view(d.torch_tag)},
               {"axes", Json::array()},
               {"zero_stages", Json::array()},
               {"devices", Json::array()},
               {"param_dtypes", Json::array()}};
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if ((d.axes & YOKE_AXIS_BIT(axis)) != 0) json["axes"].push_back(yoke_axis_name(axis));
  }
  for (int stage = 0; stage < 4; ++stage) {
    if ((d.zero_stages & (1u << stage)) != 0) json["zero_stages"].push_back(stage);
  }
  for (const auto& [device, name] : kDevices) {
    if ((d.devices & (1u << device)) != 0) json["devices"].push_back(name);
  }
  for (uint64_t i = 0; i < d.num_param_dtypes; ++i)
    json["param_dtypes"].push_back(dtype_name(d.param_dtypes[i]));
  json["local_updates"] = (d.traits & YOKE_LOCAL_UPDATES) != 0;
  json["own_update"] = (d.traits & YOKE_OWN_UPDATE) != 0;
  json["ranks_change_update"] = (d.traits & YOKE_RANKS_CHANGE_UPDATE) != 0;
  json["state_kinds"] = Json::array();
  for (const StateKind& kind : state_kinds(d))
    json["state_kinds"].push_back({{"kind", kind.name}, {"per_rank", kind.per_rank}});
  json["abi"] = concat(backend.table().abi_major, ".", backend.table().abi_minor);
  json["options"] = Json::array();
  for (uint64_t i = 0; i < d.num_options; ++i)
    json["options"].push_back(option_json(*d.options[i]));
  return json;
}

// Redirects stdout to stderr and returns a stream for the old stdout. Text that a constructor
// prints must not mix with our answer, the JSON object.
FILE* take_stdout() {
  std::fflush(stdout);
  // The copy is closed on exec: a program that a constructor starts must not be able to write into
  // the answer either.
  FILE* answer = ::fdopen(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), "w");
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  return answer;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

std::string trimmed(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Describes how the worker ended if probe_main() did not return: by a signal, an exit() of the
// backend, or a hang.
std::string crash_reason(const SubprocessResult& result, std::chrono::milliseconds limit) {
  if (result.timed_out) {
    return string_printf("it did not finish loading within %g s",
                         static_cast<double>(limit.count()) / 1000);
  }
  std::string reason =
      result.ending.signal != 0
          ? "killed by " + ending_text(result.ending) + " while loading"
          : "it ended the process with " + ending_text(result.ending) + " while loading";
  // What the library printed last is often the only hint at the reason.
  const std::string last = last_line(result.err);
  return last.empty() ? reason : reason + "; its last line: " + last;
}

// Returns the JSON that probe_main() printed, or throws Error. worker: the program that loaded the
// library.
std::string answer_of(const SubprocessResult& result,
                      const std::string& worker,
                      const std::string& path,
                      std::chrono::milliseconds limit) {
  // An exit code of 0 alone is not an answer: a constructor may have called exit(0).
  if (result.ending.ok() && Json::accept(result.out)) return trimmed(result.out);
  // The worker refused the library, and its text gives the reason.
  if (result.ending.exit_code == kExitPlugin)
    throw Error(YOKE_FAILED_PRECONDITION, trimmed(result.err));
  throw_rejected(YOKE_FAILED_PRECONDITION,
                 {path,
                  kPhase,
                  crash_reason(result, limit),
                  "unknown",
                  "load it in a debugger: gdb --args " + worker + " --probe " + path});
}

}  // namespace

int probe_main(const std::string& path) {
  // If the process that waits for the answer dies, this process must not outlive it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  FILE* answer = take_stdout();
  try {
    // Texts of a backend may not be UTF-8; a strict dump() would throw for them.
    const std::string line =
        description_json(load_backend(path)).dump(-1, ' ', false, Json::error_handler_t::replace);
    const bool written = answer != nullptr && std::fprintf(answer, "%s\n", line.c_str()) > 0 &&
                         std::fflush(answer) == 0;
    // A full disk or a closed pipe must not look like a successful probe.
    return written ? kExitOk : kExitFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return kExitPlugin;
  }
}

std::string probe_backend(const std::string& worker,
                          const std::string& path,
                          std::chrono::milliseconds limit) {
  check_library_file(path);
  const SubprocessResult result = run_subprocess({worker, "--probe", path}, {.limit = limit});
  // 127: the dynamic loader did not find a library that the worker itself needs.
  if (result.ending.exit_code == 127) {
    throw Error(
        YOKE_INTERNAL,
        worker + " cannot run (" + ending_text(result.ending) + "): " + trimmed(result.err));
  }
  return answer_of(result, worker, path, limit);
}

void probe_in_copy(const std::string& path, std::chrono::milliseconds limit) {
  const std::string worker = std::filesystem::read_symlink("/proc/self/exe").string();
  answer_of(run_copy([&] { return probe_main(path); }, {.limit = limit}), worker, path, limit);
}

}  // namespace yoke
