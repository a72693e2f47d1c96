#include "core/conformance/check_child.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/base/exit_code.hpp"
#include "core/conformance/torch_stage.hpp"
#include "sdk/conformance/check.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// Address space, most of it LibTorch's libraries: who needs more leaks.
constexpr rlim_t kMostBytes = rlim_t{16} << 30;

void limit_resources() {
  const rlimit memory{kMostBytes, kMostBytes}, core{0, 0};
  ::setrlimit(RLIMIT_AS, &memory);
  ::setrlimit(RLIMIT_CORE, &core);
}

// One write per line, so that lines of several threads stay whole, and so does the last one before
// a crash.
class Report {
 public:
  explicit Report(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)) {
    if (fd_ < 0) throw Error(YOKE_INVALID_ARGUMENT, "--report " + path + " cannot be opened");
  }
  void line(const std::string& text) const {
    const std::string whole = text + "\n";
    if (::write(fd_, whole.data(), whole.size()) < 0) return;  // nobody listens any more
  }

 private:
  int fd_;
};

nlohmann::json verdict_of(const conformance::Check& check, conformance::Subject& subject) {
  try {
    return {{"status", "passed"}, {"text", check.live(subject)}};
  } catch (const std::exception& e) {  // also what the host itself has to say
    return {{"status", "failed"}, {"text", first_part(e.what())}};
  }
}

}  // namespace

int check_main(const std::vector<std::string>& words) {
  std::map<std::string, std::string> given;
  for (size_t i = 0; i + 1 < words.size(); i += 2) given[words[i]] = words[i + 1];
  const conformance::Check* check = conformance::find_check(given["--check"]);
  if (check == nullptr || check->live == nullptr)
    throw Error(YOKE_INVALID_ARGUMENT,
                "yoke-worker --check " + given["--check"] + ": no such check");
  limit_resources();
  const Report report(given["--report"]);
  conformance::set_progress([&](const std::string& where) { report.line("at " + where); });
  TorchStage stage;
  conformance::Subject subject{
      given["--backend"], stage, std::max(1, std::atoi(given["--nproc"].c_str()))};
  report.line(
      verdict_of(*check, subject).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  // Neither destructors nor what the backend left running can change the verdict now.
  ::_exit(kExitOk);
}

}  // namespace yoke
