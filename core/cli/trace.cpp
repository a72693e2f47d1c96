#include "core/cli/trace.hpp"

#include <cstdio>

#include "core/base/exit_code.hpp"
#include "core/cli/command.hpp"
#include "core/cli/output_file.hpp"
#include "core/cli/stop.hpp"
#include "core/metrics/merged_trace.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

int merge(const std::string& run, const std::string& out) {
  const std::map<int, std::string> files = trace_files(run);
  if (files.empty()) {
    std::fprintf(stderr,
                 "yoke: %s/profile has no traces; give a run folder whose run had "
                 "profile.steps=FIRST,LAST\n",
                 run.c_str());
    return kExitUsage;
  }
  const std::string path = out.empty() ? run + "/profile/all_ranks.json" : out;
  require_writable("-o", path);
  write_output(path, merge_traces(files));
  std::printf("%s: %zu %s; open it in https://ui.perfetto.dev\n",
              path.c_str(),
              files.size(),
              files.size() == 1 ? "rank" : "ranks");
  return kExitOk;
}

}  // namespace

int trace_command(const std::vector<std::string>& args) {
  CLI::App app("Joins the traces of all ranks of a run into one file.", "yoke trace");
  std::string run, out;
  app.add_option("RUN", run, "run folder")->required();
  app.add_option("-o", out, "file to write; default: RUN/profile/all_ranks.json")
      ->type_name("FILE");
  return run_command(app, args, [&]() -> int {
    try {
      return merge(run, out);
    } catch (const Stop& stop) {
      std::fprintf(stderr, "yoke: %s\n", stop.text.c_str());
      return stop.exit_code;
    } catch (const Error& e) {
      std::fprintf(stderr, "yoke: %s\n", e.what());
      return kExitFailed;
    }
  });
}

}  // namespace yoke
