#include "core/base/strict_json.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string fault(const std::string& text) {
  try {
    parse_json_object(text, "here.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), StartsWith("here.json"));
    return e.what();
  }
  return "";
}

TEST(StrictJson, ReadsAnObject) {
  const nlohmann::json json = parse_json_object(R"({"a": {"x": [1, null]}, "b": {"x": 2}})", "f");
  EXPECT_EQ(json["a"]["x"][0], 1);
  EXPECT_EQ(json["b"]["x"], 2);
}

TEST(StrictJson, RefusesAKeyTwiceInOneObject) {
  EXPECT_THAT(fault(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("the key 'a' appears twice"));
  EXPECT_THAT(fault(R"({"a": [{"k": 1, "k": 1}]})"), HasSubstr("the key 'k' appears twice"));
}

TEST(StrictJson, RefusesWhatIsNoObject) {
  EXPECT_THAT(fault(""), HasSubstr("is not JSON"));
  EXPECT_THAT(fault("{\"a\": 1"), HasSubstr("is not JSON"));
  EXPECT_THAT(fault("{\"a\": \"\xff\"}"), HasSubstr("is not JSON"));
  EXPECT_THAT(fault("[1]"), HasSubstr("is not a JSON object"));
}

TEST(StrictJson, RefusesDeepNesting) {
  EXPECT_EQ(fault("{\"a\": " + std::string(20, '[') + std::string(20, ']') + "}"), "");
  EXPECT_THAT(fault("{\"a\": " + std::string(40, '[') + std::string(40, ']') + "}"),
              HasSubstr("deeper than 32"));
  EXPECT_THAT(fault("{\"a\": " + std::string(1'000'000, '[')), HasSubstr("here.json"));
}

}  // namespace
}  // namespace yoke
