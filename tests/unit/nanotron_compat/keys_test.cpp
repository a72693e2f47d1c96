// Compares the tables of keys with a list of all keys of nanotron 0.4 and of its repository up to
// April 2026 (keys.tsv), and with plugins/nanotron_compat/KEYS.md.
#include "plugins/nanotron_compat/config/keys.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/support/setting_table.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using compat::Handling;
using yoke::testing::name_of;
using yoke::testing::read_source;
using yoke::testing::setting_groups;
using yoke::testing::setting_rows;

// Degrees, and keys of data and decay, which the run decides. The list has the class that they
// would have.
const std::map<std::string, Handling> kElsewhere = {
    {"parallelism.dp", Handling::kRun},
    {"parallelism.pp", Handling::kRun},
    {"parallelism.tp", Handling::kRun},
    {"parallelism.context_parallel_size", Handling::kRun},
    {"optimizer.weight_decay_exclude_named_params", Handling::kRun},
    {"data_stages[].data.dataset.hf_dataset_or_datasets", Handling::kNote},
};

// Returns the name of a key without the model that has it: "a.b (qwen2)" is "a.b".
std::string without_model(const std::string& key) {
  return key.substr(0, key.find(" ("));
}

TEST(Keys, AreThoseOfNanotronWithTheirClasses) {
  std::istringstream lines(read_source("tests/unit/nanotron_compat/keys.tsv"));
  std::map<std::string, std::string> listed;
  for (std::string key, handling, versions; std::getline(lines, key, '\t') &&
                                            std::getline(lines, handling, '\t') &&
                                            std::getline(lines, versions);) {
    // Starcoder2, which is refused, has keys with the names of other models' keys.
    if (key.ends_with(" (starcoder2)")) {
      listed.emplace(without_model(key), handling);
    } else {
      listed[without_model(key)] = handling;
    }
  }
  EXPECT_EQ(listed.size(), 224u);
  for (const auto& [name, handling] : listed) {
    const Key* key = find_key(name);
    ASSERT_NE(key, nullptr) << name;
    const auto elsewhere = kElsewhere.find(name);
    EXPECT_STREQ(name_of(key->handling),
                 elsewhere == kElsewhere.end() ? handling.c_str() : name_of(elsewhere->second))
        << name;
  }
  for (const Key& key : keys()) EXPECT_EQ(listed.count(std::string(key.name)), 1u) << key.name;
}

TEST(Keys, AreListedOnceAndSayWhy) {
  std::set<std::string_view> names;
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.why.empty()) << key.name;
    EXPECT_FALSE(is_section(key.name)) << key.name;
  }
}

TEST(Keys, AreAllInTheDocument) {
  const std::string document = read_source("plugins/nanotron_compat/KEYS.md");
  const std::string expected[] = {setting_rows("key", honoured_keys()),
                                  setting_rows("key", run_keys()),
                                  setting_rows("key", refused_keys()),
                                  setting_groups("keys", no_effect_groups()),
                                  setting_groups("keys", inert_groups())};
  for (const std::string& part : expected)
    EXPECT_NE(document.find(part), std::string::npos) << "the document must contain:\n" << part;
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
