// Calls are traced by a backend that is stacked on the one of the run, so that runs without a trace
// have no code for it between host and backend. The build defines YOKE_TRACER as the name of that
// backend, if it has one. Its options `inner` and `trace` are the backend below and the file.
#include "core/cli/trace_abi.hpp"

#include "core/base/exit_code.hpp"
#include "core/cli/output_file.hpp"
#include "core/cli/stop.hpp"

namespace yoke {
namespace {

#ifdef YOKE_TRACER
const std::string kTracer = YOKE_TRACER;
#else
const std::string kTracer;
#endif

// Replaces an override, because a key may be given only once.
void set(Request& request, const std::string& key, const std::string& value) {
  std::erase_if(request.overrides, [&](const std::string& word) {
    const size_t end = word.find_first_of(" =");
    return word.substr(0, end) == key;
  });
  request.overrides.push_back(key + "=" + value);
}

}  // namespace

void check_trace_abi(const std::string& file) {
  if (file.empty()) return;
  if (kTracer.empty()) {
    throw Stop{kExitUsage,
               "--trace-abi " + file +
                   ": this build of Yoke has no backend that traces calls; use a build with all "
                   "plugins"};
  }
  require_writable("--trace-abi", file);
}

void add_tracer(Request& request, const RunConfig& run) {
  if (request.trace_abi.empty()) return;
  if (run.parallel_backend != kTracer) {
    set(request, kTracer + ".inner", run.parallel_backend);
    set(request, "parallel_backend", kTracer);
  }
  set(request, kTracer + ".trace", request.trace_abi);
}

}  // namespace yoke
