// The worker asks the backend what a step will take and prints it as JSON. This program, which does
// not link LibTorch, only turns that into tables and drawings.
#include "core/cli/plan.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/exit_code.hpp"
#include "core/base/text.hpp"
#include "core/cli/check_run.hpp"
#include "core/cli/command.hpp"
#include "core/cli/layout_table.hpp"
#include "core/cli/output_file.hpp"
#include "core/cli/start_ranks.hpp"
#include "core/cli/step_drawing.hpp"
#include "core/cli/table.hpp"
#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 96;  // width of a drawing on a terminal

struct PlanRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string world;  // as given; "" = the product of the degrees
  bool layouts = false;
  bool schedule = false;
  std::string svg;  // file to write; "" = none
  bool json = false;
};

std::string bytes(int64_t n) {
  return n < 0 ? "unknown" : bytes_text(static_cast<uint64_t>(n));
}

std::string percent(double share) {
  return string_printf("%.1f %%", share * 100);
}

// Returns "0-3, 12": the blocks of a rank.
std::string blocks_text(const RankForecast& rank) {
  std::string text;
  for (const BlockRange& stage : rank.stages) {
    text += concat(text.empty() ? "" : ", ", stage.first);
    if (stage.count > 1) text += concat("-", stage.first + stage.count - 1);
  }
  return text;
}

// Returns "Forward of block 3, micro-batch 1".
std::string action_text(const ForecastAction& action) {
  std::string text = action.name;
  if (action.block >= 0) text += concat(" of block ", action.block);
  if (action.micro >= 0) text += concat(", micro-batch ", action.micro);
  return text;
}

std::string memory_table(const StepForecast& forecast) {
  Table table({"pp rank",
               "blocks",
               "load",
               "parameters",
               "gradients",
               "optimizer",
               "unsharded",
               "activations",
               "temporary",
               "total at peak",
               "action at peak"});
  for (size_t r = 0; r < forecast.ranks.size(); ++r) {
    const RankForecast& rank = forecast.ranks[r];
    const size_t peak = rank.peak();
    const ForecastAction& at = rank.actions[peak];
    table.add({concat(r),
               blocks_text(rank),
               string_printf("%.2f", forecast.load(r)),
               bytes(rank.param_bytes),
               bytes(rank.grad_bytes),
               bytes(rank.optimizer_bytes),
               bytes(at.unsharded_bytes),
               bytes(at.activation_bytes),
               bytes(at.temporary_bytes),
               bytes(rank.bytes_at(peak)),
               action_text(at)});
  }
  return table.text();
}

// Returns calls and bytes of a step by axis and kind of action; "" if nothing is communicated.
std::string traffic_table(const StepForecast& forecast) {
  struct Sum {
    int64_t calls = 0, bytes = 0;
    bool known = true;
  };
  Table table({"pp rank", "axis", "action", "calls", "bytes"});
  for (size_t r = 0; r < forecast.ranks.size(); ++r) {
    std::map<std::pair<int32_t, std::string>, Sum> sums;
    for (const ForecastAction& a : forecast.ranks[r].actions) {
      if (a.axis < 0) continue;
      Sum& sum = sums[{a.axis, a.name}];
      ++sum.calls;
      sum.bytes += a.payload_bytes;
      sum.known = sum.known && a.payload_bytes >= 0;
    }
    for (const auto& [key, sum] : sums)
      table.add({concat(r),
                 yoke_axis_name(key.first),
                 key.second,
                 concat(sum.calls),
                 bytes(sum.known ? sum.bytes : -1)});
  }
  return table.empty() ? "" : table.text();
}

// Returns the path of the run file, the backend and the degrees.
std::string title_of(const PlanRequest& request, const Json& answer) {
  const std::string row = answer.at("table").at(1);  // "backend    NAME ..."
  return request.config + ": " + row.substr(row.find_first_not_of(' ', row.find(' ')));
}

void print_text(const Json& answer, const StepForecast& forecast, bool schedule) {
  for (const std::string line : answer.at("table")) std::puts(line.c_str());
  if (forecast.ranks.empty()) {
    std::printf(
        "\nBackend '%s' reports no forecast, so memory, traffic and schedule are unknown.\n",
        answer.at("backend").get<std::string>().c_str());
    return;
  }
  std::printf("\nMemory of a rank\n\n%s", memory_table(forecast).c_str());
  if (forecast.lacks_temporary()) {
    std::puts(
        "\nThe totals do not include temporary memory, which exists only while a block runs: the "
        "blocks of this model do not report it (BlockCosts::pass_bytes).");
  }
  if (const std::string traffic = traffic_table(forecast); !traffic.empty())
    std::printf("\nTraffic of a rank in a step\n\n%s", traffic.c_str());
  if (forecast.ranks.size() > 1) {
    std::printf("\nRanks are idle for %s of a step if communication takes no time.\n",
                percent(forecast.bubble()).c_str());
  }
  if (!schedule) return;
  std::printf(
      "\nSchedule. Upper lines: F forward, R recompute, B backward, I and W its input and weight "
      "parts; lower case from the rank's second stage on; '.' idle. Lower lines: number of the "
      "micro-batch modulo 36 (0-9, a-z).\n\n%s",
      text_drawing(forecast, kColumns).c_str());
}

// Returns what the worker answers to `question`.
Json ask(const char* question, const PlanRequest& request) {
  const int world = count_of("--nproc", request.world, "ranks", 1, kMostRanks).value_or(0);
  const CheckedRun run =
      check_config(request.config, request.overrides, world, FirstLoad::kByWorker);
  std::vector<std::string> words{question};
  if (world > 0) words.insert(words.end(), {"--world", concat(world)});
  words.push_back(request.config);
  words.insert(words.end(), request.overrides.begin(), request.overrides.end());
  return Json::parse(ask_worker(run, words));
}

// Returns why no layout is possible, if there is a single reason; "" if there are several.
std::string only_reason(const Json& layouts) {
  const Json &possible = layouts.at("possible"), &refused = layouts.at("refused");
  if (!possible.empty()) return "";
  if (refused.empty())
    return "no layout of so many ranks has the degrees that the run sets: their product must "
           "divide the number of ranks, and the backend must have an axis for the rest of it; "
           "change a degree or --nproc";
  const std::string first = refused[0].at("reason");
  const bool same = std::all_of(
      refused.begin(), refused.end(), [&](const Json& r) { return r.at("reason") == first; });
  return same ? first : "";
}

int show_layouts(const PlanRequest& request) {
  if (request.world.empty())
    throw Stop{kExitUsage, "--layouts needs the number of ranks; add --nproc N"};
  const Json answer = ask("--layouts", request);
  if (const std::string reason = only_reason(answer); !reason.empty())
    throw Stop{kExitUsage, reason};
  const std::string text = request.json ? answer.dump(2) + "\n" : layout_table(answer);
  std::fputs(text.c_str(), stdout);
  return answer.at("possible").empty() ? kExitUsage : kExitOk;
}

int show(const PlanRequest& request) {
  require_writable("--svg", request.svg);
  const Json answer = ask("--forecast", request);
  if (request.json) {
    std::puts(answer.dump(2).c_str());
    return kExitOk;
  }
  const Json& json = answer.at("forecast");
  const StepForecast forecast = json.is_null() ? StepForecast() : forecast_from_json(json);
  if (!request.svg.empty() && forecast.ranks.empty())
    throw Stop{kExitUsage, "--svg: the backend reports no forecast, so there is nothing to draw"};
  for (const std::string note : answer.at("notes")) print_message("note: " + note);
  print_text(answer, forecast, request.schedule);
  if (!request.svg.empty()) {
    write_output(request.svg, svg_drawing(forecast, title_of(request, answer)));
    std::printf("\nwrote the drawing to %s\n", request.svg.c_str());
  }
  return kExitOk;
}

}  // namespace

int plan_command(const std::vector<std::string>& args) {
  CLI::App app(
      "Predicts memory, traffic and idle time of a step, without starting ranks, and draws which "
      "rank computes which micro-batch at what time. With --layouts, compares all layouts.",
      "yoke plan");
  PlanRequest request;
  app.add_option("CONFIG", request.config, "run file (TOML)")->required();
  app.add_option("KEY=VALUE", request.overrides, "overrides, e.g. pp_degree=4");
  app.add_option(
      "--world,--nproc", request.world, "number of ranks; default: the product of the degrees");
  CLI::Option* layouts = app.add_flag("--layouts",
                                      request.layouts,
                                      "list all layouts of so many ranks that have the given "
                                      "degrees, with what they cost, and why others are refused");
  CLI::Option* schedule = app.add_flag("--schedule", request.schedule, "draw the schedule as text");
  CLI::Option* svg = app.add_option(
      "--svg", request.svg, "file for a drawing of the schedule and of the memory over time");
  app.add_flag("--json", request.json, "print the forecast with all actions as JSON")
      ->excludes(schedule)
      ->excludes(svg);
  layouts->excludes(schedule)->excludes(svg);
  return run_command(app, args, [&] {
    try {
      return request.layouts ? show_layouts(request) : show(request);
    } catch (const Stop& stop) {
      if (!stop.text.empty()) print_message(stop.text);
      return stop.exit_code;
    } catch (const Json::exception& e) {
      print_message(std::string("the worker printed something that is not a forecast (") +
                    e.what() + "); is it a yoke-worker of this version?");
      return static_cast<int>(kExitFailed);
    } catch (const Error& e) {
      print_message(e.what());
      return static_cast<int>(kExitFailed);
    }
  });
}

}  // namespace yoke
