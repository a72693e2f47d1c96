// Checks one of the faulty backends of this folder as a user does.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

namespace fs = std::filesystem;

inline std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Copies a backend into a temporary folder and checks it with `yoke backends check`.
class Trial {
 public:
  explicit Trial(const std::string& fault)
      : fault_(fault), path_(folder_ / (lower(fault) + ".so")), canary_(folder_ / "canary") {
    fs::permissions(folder_.path(), static_cast<fs::perms>(0755));
    fs::copy_file(std::string(YOKE_FAULTY "/") + lower(fault) + ".so", path_);
    fs::permissions(path_, static_cast<fs::perms>(0644));
  }
  const std::string& path() const { return path_; }
  bool ran() const { return fs::exists(canary_); }

  // Runs these checks, "" = all, and returns the status of each id: "passed", "failed" or "not
  // run".
  std::map<std::string, std::string> check(const std::string& only,
                                           int32_t expected_code,
                                           const std::string& nproc = "2") {
    const std::string report = folder_ / "report.json";
    std::vector<std::string> argv = {"/usr/bin/env",
                                     "YOKE_TEST_CANARY=" + canary_,
                                     std::string(std::getenv("YOKE_BIN")) + "/yoke",
                                     "backends",
                                     "check",
                                     path_,
                                     "--nproc",
                                     nproc,
                                     "--timeout",
                                     fault_ == "HANGS" ? "10" : "120",
                                     "--json-file",
                                     report};
    if (!only.empty()) argv.insert(argv.end(), {"--only", only});
    const SubprocessResult result = run_subprocess(argv);
    EXPECT_EQ(result.ending.exit_code, expected_code) << result.out << result.err;
    output_ = result.out;
    std::map<std::string, std::string> status;
    const auto json = nlohmann::json::parse(read_file(report), nullptr, false);
    if (!json.is_object()) return status;
    roots_.clear();
    for (const auto& row : json["checks"]) {
      status[row["id"]] = row["status"];
      if (row["status"] == "failed" && !row.contains("follows")) roots_.push_back(row["id"]);
    }
    return status;
  }
  // Returns the ids of the failed checks of the last check() that follow from no other failure.
  const std::vector<std::string>& roots() const { return roots_; }
  const std::string& output() const { return output_; }

 private:
  TempFolder folder_;
  std::string fault_, path_, canary_, output_;
  std::vector<std::string> roots_;
};

}  // namespace yoke::testing
