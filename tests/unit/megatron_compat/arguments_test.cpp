// Compares the tables of arguments with a list of all arguments of Megatron's releases core 0.8.0
// to 0.19.0 (arguments.tsv), and with plugins/megatron_compat/ARGUMENTS.md.
#include "plugins/megatron_compat/config/arguments.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/support/setting_table.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using yoke::testing::name_of;
using yoke::testing::read_source;
using yoke::testing::setting_groups;
using yoke::testing::setting_rows;

// Degrees, which the run decides, and arguments of data and rates that a run file cannot express.
// The list has the class that they would have.
const std::map<std::string, Handling> kElsewhere = {
    {"--tensor-model-parallel-size", Handling::kRun},
    {"--pipeline-model-parallel-size", Handling::kRun},
    {"--context-parallel-size", Handling::kRun},
    {"--yaml-cfg", Handling::kRefused},
    {"--warmup", Handling::kRefused},
    {"--eod-mask-loss", Handling::kRefused},
    {"--decoupled-lr", Handling::kRefused},
    {"--decoupled-min-lr", Handling::kRefused},
};

TEST(Arguments, AreThoseOfMegatronWithTheirClasses) {
  std::istringstream lines(read_source("tests/unit/megatron_compat/arguments.tsv"));
  std::set<std::string> listed;
  for (std::string line; std::getline(lines, line);) {
    const size_t tab = line.find('\t');
    const std::string name = line.substr(0, tab), handling = line.substr(tab + 1);
    listed.insert(name);
    const Argument* argument = find_argument(name);
    ASSERT_NE(argument, nullptr) << name;
    const auto elsewhere = kElsewhere.find(name);
    EXPECT_STREQ(name_of(argument->handling),
                 elsewhere == kElsewhere.end() ? handling.c_str() : name_of(elsewhere->second))
        << name;
  }
  EXPECT_EQ(listed.size(), 899u);
  for (const Argument& argument : arguments())
    EXPECT_EQ(listed.count(std::string(argument.name)), 1u);
}

TEST(Arguments, AreListedOnceAndSayWhy) {
  std::set<std::string> names;
  for (const std::string& spelling : spellings())
    EXPECT_TRUE(names.insert(spelling).second) << spelling;
  for (const Argument& argument : arguments()) EXPECT_FALSE(argument.why.empty()) << argument.name;
  for (const Alias& alias : aliases())
    EXPECT_EQ(find_argument(alias.alias), find_argument(alias.name)) << alias.alias;
}

TEST(Values, AreComparedAsNumbersIfTheyAreNumbers) {
  EXPECT_TRUE(accepts(*find_argument("--hidden-dropout"), "0.0"));
  EXPECT_TRUE(accepts(*find_argument("--hidden-dropout"), "0"));
  EXPECT_FALSE(accepts(*find_argument("--hidden-dropout"), "0.1"));
  EXPECT_TRUE(accepts(*find_argument("--normalization"), "RMSNorm"));
  EXPECT_FALSE(accepts(*find_argument("--normalization"), "rmsnorm"));
  EXPECT_TRUE(accepts(*find_argument("--lr"), "3e-4"));
  EXPECT_FALSE(accepts(*find_argument("--num-experts"), "8"));
  EXPECT_TRUE(accepts(*find_argument("--expert-model-parallel-size"), "1"));
}

// ---- The document ----

TEST(Arguments, AreAllInTheDocument) {
  const std::string document = read_source("plugins/megatron_compat/ARGUMENTS.md");
  const std::string expected[] = {setting_rows("argument", honoured_arguments()),
                                  setting_rows("argument", run_arguments()),
                                  setting_rows("argument", refused_arguments()),
                                  setting_groups("arguments", no_effect_groups()),
                                  setting_groups("arguments", inert_groups())};
  for (const std::string& part : expected)
    EXPECT_NE(document.find(part), std::string::npos) << "the document must contain:\n" << part;
  for (const Alias& alias : aliases())
    EXPECT_NE(document.find(concat("| `", alias.alias, "` | `", alias.name, "` |")),
              std::string::npos)
        << alias.alias;
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
