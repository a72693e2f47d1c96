// Ranks of one pipeline stage that have issued equally many collectives are at the same place, so
// they are one group. Different stages issue different collectives, so only the groups of a stage
// are compared. Those that are behind come first, because the others wait for them.
#include "core/cli/hang_summary.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/metrics/run_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownFrames = 12;

std::vector<Json> read_reports(const std::string& run_dir) {
  std::vector<Json> reports;
  for (const std::string& path : hang_reports(run_dir)) {
    std::ifstream in(path);
    Json report = Json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (!report.is_object()) throw Error(YOKE_DATA_LOSS, path + ": not a report of a rank");
    reports.push_back(std::move(report));
  }
  return reports;
}

// "ranks 0, 1 (node0), 2 (node1)"
std::string names_of(const std::vector<const Json*>& group) {
  std::string text = group.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < group.size(); ++i) {
    const Json& report = *group[i];
    text += concat(i > 0 ? ", " : " ", report.value("rank", -1));
    const bool last_of_host =
        i + 1 == group.size() || group[i + 1]->value("host", "") != report.value("host", "");
    if (last_of_host) text += " (" + report.value("host", "") + ")";
  }
  return text;
}

// The last collective of the communicator that was used last cannot be told from the others, so all
// of them are listed.
std::string last_collectives(const Json& report) {
  std::string text;
  for (const Json& c : report.value("communicators", Json::array())) {
    const Json latest = c.value("latest", Json::array());
    if (!latest.empty())
      text += "\n    last of " + c.value("name", "") + ": " + latest.back().get<std::string>();
  }
  return text;
}

std::string main_thread(const Json& report) {
  const Json threads = report.value("threads", Json::array());
  if (threads.empty()) return "";
  std::string text = "\n    its main thread:";
  const Json frames = threads[0].value("frames", Json::array());
  for (size_t i = 0; i < std::min(frames.size(), kShownFrames); ++i)
    text += "\n      " + frames[i].get<std::string>();
  return frames.empty() ? text + " did not answer" : text;
}

}  // namespace

std::string hang_summary(const std::string& run_dir) {
  const std::vector<Json> reports = read_reports(run_dir);
  if (reports.empty()) return "";
  try {
    using Place = std::pair<int64_t, int64_t>;                            // step, collectives
    std::map<int64_t, std::map<Place, std::vector<const Json*>>> stages;  // key: pp rank
    for (const Json& report : reports) {
      const Place place{report.value("step", int64_t{0}), report.value("collectives", int64_t{0})};
      stages[report.value("pp_rank", int64_t{0})][place].push_back(&report);
    }
    std::string behind, others;
    for (const auto& [pp_rank, groups] : stages) {
      const std::string stage = stages.size() > 1 ? concat(" of pp rank ", pp_rank) : "";
      for (const auto& [place, group] : groups) {
        const bool is_behind = place != groups.rbegin()->first;
        std::string& text = is_behind ? behind : others;
        text += "\n  " + names_of(group) + stage + concat(": step ", place.first, ", ") +
                concat(place.second, " collectives") +
                (is_behind ? ", behind the others" + stage : "") +
                last_collectives(*group.front()) + main_thread(*group.front());
      }
    }
    return "cause: " + reports.front().value("cause", "") + behind + others;
  } catch (const nlohmann::json::exception& e) {
    throw Error(YOKE_DATA_LOSS, run_dir + "/logs: a damaged report of a rank: " + e.what());
  }
}

}  // namespace yoke
