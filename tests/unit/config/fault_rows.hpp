// Rows for parametrised tests: each loads one wrong configuration and expects one message.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/unit/config/support.hpp"

namespace yoke::testing {

// A configuration with one error, and the message that reports it.
struct Row {
  Given given;
  std::string fault;
};

inline void PrintTo(const Row& row, std::ostream* out) {
  *out << row.fault;
}

// The error is in the run file: `more` follows the two keys that every run needs, so it starts at
// line 3.
inline Row file(const std::string& more, const std::string& fault) {
  return {{least(more)}, fault};
}
// The error is in an argument of the command line.
inline Row word(const std::string& word, const std::string& fault) {
  return {{least(), {word}}, fault};
}
// The error is in an environment variable.
inline Row variable(const std::string& name, const std::string& value, const std::string& fault) {
  return {{least(), {}, {{name, value}}}, fault};
}

inline void expect_one_message(const Row& row) {
  EXPECT_THAT(Loading(row.given).faults(), ::testing::ElementsAre(row.fault));
}

}  // namespace yoke::testing
