// Viewers tell processes apart by their ids, and events that belong together by theirs. Both are
// unique only within one file: ranks on two machines may have the same process id, and the GPU of
// every rank is "process 0". So both are numbered anew, rank by rank.
#include "core/metrics/merged_trace.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr int64_t kProcesses = 1000;          // most processes of a rank
constexpr int64_t kFlows = int64_t{1} << 32;  // most connections of a rank

[[noreturn]] void refuse(const std::string& path) {
  throw Error(YOKE_DATA_LOSS, path + " is not a trace; it may be cut off, so trace the run again");
}

Json read_trace(const std::string& path) {
  Json trace = Json::parse(std::ifstream(path), nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    refuse(path);
  return trace;
}

// The processes of one rank: the program, and a process for each GPU. Labels in the file, such as
// "GPU 0", tell them apart.
class Processes {
 public:
  explicit Processes(int rank) : rank_(rank) {}

  // Returns the number in the merged trace for a process id of the rank's file.
  int64_t number(const Json& pid) {
    const auto [found, fresh] = numbers_.emplace(pid.dump(), numbers_.size());
    return rank_ * kProcesses + static_cast<int64_t>(found->second);
  }

 private:
  const int64_t rank_;
  std::map<std::string, size_t> numbers_;
};

// Adjusts an event of a rank's file to the merged trace. shift: microseconds from the clock of the
// file to that of the merged trace. Returns false if the event is left out.
bool adjust(Json& event, Processes& processes, int rank, double shift) {
  // The profiler's report about itself would be a process of each rank.
  if (!event.contains("pid") || event["pid"].is_string()) return false;
  event["pid"] = processes.number(event["pid"]);
  if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift;
  if (event.contains("id") && event["id"].is_number_integer())
    event["id"] = rank * kFlows + event["id"].get<int64_t>();
  const std::string name = event.value("name", "");
  if (name == "process_name") {
    event["args"]["name"] = concat("rank ", rank);
  } else if (name == "process_sort_index") {
    event["args"]["sort_index"] = event["pid"];
  } else if (name.starts_with("ProfilerStep#")) {
    event["name"] = "step " + name.substr(name.find('#') + 1);
  }
  return true;
}

// Appends the events of a rank's trace to the merged one, which is null before the first.
void append(Json trace, int rank, Json& merged) {
  const auto base = trace.value("baseTimeNanoseconds", int64_t{0});
  Json events = std::move(trace["traceEvents"]);
  if (merged.is_null()) {
    merged = std::move(trace);
    merged["traceEvents"] = Json::array();
  }
  const int64_t first_base = merged.value("baseTimeNanoseconds", int64_t{0});
  const double shift = static_cast<double>(base - first_base) / 1e3;
  Processes processes(rank);
  for (Json& event : events)
    if (adjust(event, processes, rank, shift)) merged["traceEvents"].push_back(std::move(event));
}

}  // namespace

std::map<int, std::string> trace_files(const std::string& run_dir) {
  std::map<int, std::string> files;
  const std::string folder = run_dir + "/profile";
  if (!std::filesystem::is_directory(folder)) return files;
  const std::regex pattern("rank_([0-9]{1,9})\\.json");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::smatch match; std::regex_match(name, match, pattern))
      files[std::stoi(match[1])] = entry.path().string();
  }
  return files;
}

std::string merge_traces(const std::map<int, std::string>& files) {
  Json merged;
  for (const auto& [rank, path] : files) {
    try {
      append(read_trace(path), rank, merged);
    } catch (const Json::exception&) {  // a value has another type than the profiler writes
      refuse(path);
    }
  }
  return merged.dump();
}

}  // namespace yoke
