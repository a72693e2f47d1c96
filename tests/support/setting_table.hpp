// Tables of settings as the documents of backends print them, and the classes of their rows.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "sdk/compat/setting.hpp"
#include "yoke/text.hpp"

namespace yoke::testing {

// Returns the text of a file of the repository.
inline std::string read_source(const std::string& path) {
  std::ifstream file(std::string(std::getenv("YOKE_SOURCE")) + "/" + path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the name of a class in the lists of settings.
inline const char* name_of(compat::Handling handling) {
  switch (handling) {
    case compat::Handling::kHonoured:
      return "honoured";
    case compat::Handling::kRun:
    case compat::Handling::kNote:
      return "run";
    case compat::Handling::kNoEffect:
      return "no_effect";
    case compat::Handling::kInert:
      return "inert";
    case compat::Handling::kRefused:
      break;
  }
  return "refused";
}

// Returns a table cell: code that has no Markdown in it.
inline std::string code(std::string_view text) {
  return text.empty() ? "" : concat("`", text, "`");
}

inline std::string choices(std::string_view accepted) {
  std::string text;
  for (size_t begin = 0; begin < accepted.size();) {
    const size_t end = std::min(accepted.find('|', begin), accepted.size());
    text += concat(text.empty() ? "" : ", ", code(accepted.substr(begin, end - begin)));
    begin = end + 1;
  }
  return text;
}

inline std::string setting_rows(std::string_view what, std::span<const compat::Setting> table) {
  std::string text = concat("| ", what, " | accepted | here |\n|---|---|---|\n");
  for (const compat::Setting& a : table) {
    const std::string accepted = a.accepted.empty() && a.handling != compat::Handling::kRefused
                                     ? "any"
                                     : choices(a.accepted);
    text += concat("| `", a.name, "` | ", accepted.empty() ? "-" : accepted, " | ", a.why, " |\n");
  }
  return text;
}

template <class Group>
std::string setting_groups(std::string_view what, std::span<const Group> table) {
  std::string text = concat("| why | ", what, " |\n|---|---|\n");
  for (const Group& group : table) {
    text += concat("| ", group.why, " | ");
    for (size_t i = 0; i < group.names.size(); ++i)
      text += concat(i > 0 ? ", " : "", "`", group.names[i], "`");
    text += " |\n";
  }
  return text;
}

}  // namespace yoke::testing
