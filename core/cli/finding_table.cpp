#include "core/cli/finding_table.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/exit_code.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kStatusNames[] = {"ok", "warning", "problem"};

void print_text(const std::vector<MachineFinding>& findings) {
  for (const MachineFinding& f : findings) {
    std::printf("%-8s %-19s %s\n", kStatusNames[f.status], f.what.c_str(), f.found.c_str());
    if (!f.fix.empty()) std::printf("%-8s %-19s try: %s\n", "", "", f.fix.c_str());
  }
}

void print_json(const std::vector<MachineFinding>& findings) {
  Json rows = Json::array();
  for (const MachineFinding& f : findings) {
    rows.push_back({{"what", f.what},
                    {"verdict", kStatusNames[f.status]},
                    {"found", f.found},
                    {"try", f.fix}});
  }
  std::puts(rows.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

void print_findings(const std::vector<MachineFinding>& findings, bool json) {
  json ? print_json(findings) : print_text(findings);
}

int exit_code_of(const std::vector<MachineFinding>& findings) {
  for (const MachineFinding& f : findings) {
    if (f.status == MachineFinding::kProblem) return kExitFailed;
  }
  return kExitOk;
}

}  // namespace yoke
