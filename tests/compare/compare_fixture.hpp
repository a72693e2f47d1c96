// What the tests of `yoke compare` share.
#pragma once

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/playground.hpp"

namespace yoke {

using Json = nlohmann::json;
using testing::Playground;

inline std::string faulty(const std::string& fault) {
  return std::string(YOKE_FAULTY_DIR) + "/faulty_" + fault + ".so";
}

inline std::string faulty_case(const std::string& fault) {
  return fault + ":parallel_backend=" + faulty(fault);
}

class Compare : public ::testing::Test {
 protected:
  SubprocessResult run(std::vector<std::string> args,
                       const std::vector<std::string>& variables = {}) const {
    args.insert(args.begin(), {"compare", "run.toml"});
    return playground.yoke(args, variables);
  }
  // Runs a comparison on 2 ranks, expects this exit code, and returns the cases of its JSON by
  // name.
  std::map<std::string, Json> cases(std::vector<std::string> args, int exit_code) {
    args.insert(args.end(), {"--nproc", "2", "--repeats", "1", "--json-file", "out.json"});
    const SubprocessResult r = run(args);
    EXPECT_EQ(r.ending.exit_code, exit_code) << r.err << r.out;
    std::ifstream file(playground.folder().path() / "out.json");
    std::map<std::string, Json> by_name;
    json = Json::parse(file);
    for (const Json& c : json.at("cases")) by_name[c.at("name")] = c;
    return by_name;
  }

  Playground playground;
  Json json;
};

// The expected result for a faulty backend.
struct Found {
  const char* fault;   // name of the case
  const char* cause;   // id of the likely cause
  int step;            // first step that differs
  const char* tensor;  // first tensor that differs
};

inline void expect_found(std::map<std::string, Json>& all, const Found& f) {
  const Json& c = all.at(f.fault);
  EXPECT_EQ(c.at("failure"), "");
  EXPECT_FALSE(c.at("passed")) << f.fault;
  ASSERT_TRUE(c.at("cause").is_object()) << f.fault;
  EXPECT_EQ(c.at("cause").at("id"), f.cause) << c.at("cause");
  EXPECT_EQ(c.at("cause").at("step"), f.step) << c.at("cause");
  EXPECT_EQ(c.at("cause").at("tensor"), f.tensor) << c.at("cause");
}

inline constexpr char kFirst[] = "model.embed_tokens.weight";

}  // namespace yoke
