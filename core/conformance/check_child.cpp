// A check calls a backend that may crash, hang, leak or end the process. The parent must still
// learn what happened, so this process limits its own memory and reports every call before making
// it. If the process dies, the last line of the report shows in which call.
#include "core/conformance/check_child.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/base/exit_code.hpp"
#include "core/conformance/crash_report.hpp"
#include "core/conformance/torch_test_bed.hpp"
#include "sdk/conformance/check.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// Limit of the address space, most of which is LibTorch's libraries. A check that exceeds it has a
// leak.
constexpr rlim_t kMostBytes = rlim_t{16} << 30;

void limit_resources() {
  const rlimit memory{kMostBytes, kMostBytes}, core{0, 0};
  ::setrlimit(RLIMIT_AS, &memory);
  ::setrlimit(RLIMIT_CORE, &core);
}

// The report file. Every line is one write, so lines of several threads do not mix, and the last
// line before a crash is complete.
class Report {
 public:
  explicit Report(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)) {
    if (fd_ < 0) throw Error(YOKE_INVALID_ARGUMENT, "--report " + path + " cannot be opened");
  }
  int fd() const { return fd_; }
  void line(const std::string& text) const {
    const std::string whole = text + "\n";
    if (::write(fd_, whole.data(), whole.size()) < 0) return;  // the parent is gone
  }

 private:
  int fd_;
};

nlohmann::json run_check(const conformance::Check& check, conformance::Subject& subject) {
  nlohmann::json result;
  try {
    result = {{"status", "passed"}, {"text", check.live(subject)}};
  } catch (const conformance::NotRun& e) {
    result = {{"status", "not run"}, {"text", first_part(e.what())}};
  } catch (const conformance::Failed& e) {
    result = {{"status", "failed"},
              {"text", first_part(e.what())},
              {"root", e.cause().root},
              {"fix", e.cause().fix}};
  } catch (const std::exception& e) {  // an error of the host is a failure too
    result = {{"status", "failed"}, {"text", first_part(e.what())}};
  }
  result["axes_declared"] = subject.axes_declared.load();
  result["axes_run"] = subject.axes_run.load();
  return result;
}

}  // namespace

int check_main(const std::vector<std::string>& words) {
  const std::string& id = words.at(0);
  std::map<std::string, std::string> given;
  for (size_t i = 1; i + 1 < words.size(); i += 2) given[words[i]] = words[i + 1];
  const conformance::Check* check = conformance::find_check(id);
  if (check == nullptr || check->live == nullptr)
    throw Error(YOKE_INVALID_ARGUMENT, "yoke-worker --check " + id + ": no such check");
  limit_resources();
  const Report report(given["--report"]);
  report_crashes({.fd = report.fd(), .before_frame = "frame ", .most_frames = 32});
  conformance::set_progress([&](const std::string& where) { report.line("at " + where); });
  TorchTestBed test_bed;
  conformance::Subject subject{
      given["--backend"], test_bed, std::max(1, std::atoi(given["--nproc"].c_str()))};
  report.line(
      run_check(*check, subject).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  // End without destructors, so that neither they nor threads of the backend can change the result.
  ::_exit(kExitOk);
}

}  // namespace yoke
