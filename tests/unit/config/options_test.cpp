#include "core/config/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/config/support.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using testing::least;
using testing::Loading;
using ::testing::StartsWith;

const OptionOwner kOx{"ox", "backend 'ox'"};

OptionInfo info(const std::string& key, int32_t type, const std::string& preset) {
  OptionInfo made;
  made.key = key;
  made.type = type;
  made.default_value = preset;
  return made;
}

std::vector<OptionInfo> infos() {
  std::vector<OptionInfo> all{info("unit_bytes", YOKE_OPTION_INT, "1048576"),
                              info("ratio", YOKE_OPTION_DOUBLE, "0.5"),
                              info("reshard", YOKE_OPTION_BOOL, "true"),
                              info("mode", YOKE_OPTION_STRING, "sharded"),
                              info("file", YOKE_OPTION_STRING, "")};
  all[0].min = 0;
  all[1].max = 1;
  all[3].choices = {"sharded", "unsharded"};
  return all;
}

OptionList check(const std::string& table, const std::vector<std::string>& overrides = {}) {
  return check_options(Loading({least(table), overrides}).run().backend_options, kOx, infos());
}

std::vector<std::string> faults(const std::string& table,
                                const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> found;
  try {
    check(table, overrides);
  } catch (const ConfigError& e) {
    for (std::string fault : e.faults()) {
      // Remove the path of the temporary folder from the message.
      if (fault[0] == '/') fault.erase(0, fault.find("run.toml"));
      found.push_back(fault);
    }
  }
  return found;
}

TEST(CheckOptions, FillsInEveryDefault) {
  const OptionList list = check("");
  ASSERT_EQ(list.size(), 5u);
  const YokeOption* o = list.data();
  EXPECT_EQ(view(o[0].key), "unit_bytes");
  EXPECT_EQ(o[0].type, YOKE_OPTION_INT);
  EXPECT_EQ(o[0].int_value, 1048576);
  EXPECT_EQ(o[1].double_value, 0.5);
  EXPECT_EQ(o[2].int_value, 1);
  EXPECT_EQ(view(o[3].string_value), "sharded");
  EXPECT_EQ(view(o[4].string_value), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(o[i].given, 0);
}

TEST(CheckOptions, PassesTheVariablesThatAreRequested) {
  ::setenv("OX_TEST_B", "two\nlines", 1);
  ::setenv("OX_TEST_A", "1", 1);
  ::setenv("OXEN", "no", 1);
  const std::vector<OptionInfo> asks = {
      info("environment", YOKE_OPTION_VARIABLES, "OX_TEST_*|OX_NOT_SET")};
  const auto content = [&](const std::vector<std::string>& overrides) {
    const OptionList list =
        check_options(Loading({least(""), overrides}).run().backend_options, kOx, asks);
    return std::string(view(list.data()->content));
  };
  EXPECT_EQ(content({}), "OX_TEST_A=1\nOX_TEST_B=two lines\n");
  EXPECT_EQ(content({"ox.environment=OXEN"}), "OXEN=no\n");
  EXPECT_EQ(content({"ox.environment="}), "");
}

TEST(CheckOptions, TakesWhatTheUserWrote) {
  const OptionList list = check("[ox]\nunit_bytes = 0x10\nratio = 1\nreshard = false\n",
                                {"ox.mode=unsharded", "ox.file=12"});
  const YokeOption* o = list.data();
  EXPECT_EQ(o[0].int_value, 16);
  EXPECT_EQ(o[1].double_value, 1.0);
  EXPECT_EQ(o[2].int_value, 0);
  EXPECT_EQ(view(o[3].string_value), "unsharded");
  EXPECT_EQ(view(o[4].string_value), "12");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(o[i].given, 1);
}

TEST(CheckOptions, PassesTheOptionsOfOtherBackendsBy) {
  EXPECT_EQ(check("[draught_horse]\nanything = 1\n").size(), 5u);
}

TEST(CheckOptions, ReportsEveryFaultAtOnce) {
  EXPECT_THAT(
      faults("[ox]\nunit_bites = 1\nunit_bytes = -1\nratio = 1.5\nreshard = 1\nmode = "
             "\"shraded\"\nfile = 3\n"),
      ElementsAre(
          "run.toml:9: ox.file = 3: expected a string, got an integer",
          "run.toml:8: ox.mode = \"shraded\": allowed: sharded, unsharded; did you mean 'sharded'?",
          "run.toml:6: ox.ratio = 1.5: out of range; allowed: at most 1.0",
          "run.toml:7: ox.reshard = 1: expected true or false, got an integer",
          "run.toml:4: backend 'ox' has no option 'unit_bites'; known: unit_bytes, ratio, reshard, "
          "mode, file; did you mean 'unit_bytes'?",
          "run.toml:5: ox.unit_bytes = -1: out of range; allowed: 0 or more"));
}

TEST(CheckOptions, WordsOfTheCommandLineMustFitTheTypeToo) {
  EXPECT_THAT(
      faults("", {"ox.unit_bytes=big"}),
      ElementsAre("command line: ox.unit_bytes = \"big\": expected an integer, got a string"));
  EXPECT_THAT(faults("", {"ox.unit_bytes=1.5"}),
              ElementsAre("command line: ox.unit_bytes = 1.5: expected an integer, got a float"));
  EXPECT_THAT(faults("", {"ox.ratio=nan"}),
              ElementsAre("command line: ox.ratio = nan: expected a finite number, got a float"));
  EXPECT_THAT(
      faults("", {"ox.reshard=on"}),
      ElementsAre("command line: ox.reshard = \"on\": expected true or false, got a string"));
}

TEST(CheckOptions, SaysThatABackendHasNone) {
  const auto given = Loading({least("[ox]\nx = 1\n")}).run().backend_options;
  try {
    check_options(given, kOx, {});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(),
                ::testing::HasSubstr("backend 'ox' has no option 'x'; it has no options"));
  }
}

TEST(CheckOptions, ADefaultThatContradictsItsTypeIsTheBackendsFault) {
  try {
    check_options({}, kOx, {info("size", YOKE_OPTION_INT, "big")});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INTERNAL);
    EXPECT_STREQ(
        e.what(),
        "backend 'ox' declares option 'size' with the default 'big': expected an integer; this is "
        "a bug in backend 'ox'");
  }
}

TEST(CheckOptions, ANumberWithoutDefaultStaysUnsetAndOutOfTheResolvedRun) {
  const std::vector<OptionInfo> declared{info("stage", YOKE_OPTION_INT, ""),
                                         info("overlap", YOKE_OPTION_BOOL, "")};
  LoadedConfig config = Loading({least("[ox]\noverlap = false\n")}).config();
  const OptionList list = check_options(config.run.backend_options, kOx, declared);
  EXPECT_EQ(list.data()[0].given, 0);
  EXPECT_EQ(list.data()[1].given, 1);
  fill_options(config, "ox", list);
  EXPECT_THAT(to_toml(config), ::testing::EndsWith("[ox]\noverlap = false\n"));
}

TEST(CheckOptions, PassesTheBytesOfAFile) {
  const testing::TempFolder folder;
  const std::string path = folder.write("foreign.json", std::string("{\0\n", 3));
  const auto given = Loading({least("[ox]\nforeign = \"" + path + "\"\n")}).run().backend_options;
  const OptionList list = check_options(given, kOx, {info("foreign", YOKE_OPTION_FILE, "")});
  EXPECT_EQ(view(list.data()[0].string_value), path);
  EXPECT_EQ(view(list.data()[0].content), std::string_view("{\0\n", 3));
}

TEST(CheckOptions, AFileThatCannotBeReadIsAFault) {
  for (const auto& [path, reason] :
       {std::pair{"/no/such.json", "No such file"}, std::pair{"/tmp", "it is a folder"}}) {
    const auto given =
        Loading({least("[ox]\nforeign = \"" + std::string(path) + "\"\n")}).run().backend_options;
    try {
      check_options(given, kOx, {info("foreign", YOKE_OPTION_FILE, "")});
      FAIL() << path;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(),
                  ::testing::HasSubstr("ox.foreign = \"" + std::string(path) +
                                       "\": the file cannot be read: " + reason));
    }
  }
}

TEST(OptionList, KeepsItsTextWhenMoved) {
  std::vector<OptionList> lists;
  for (int i = 0; i < 20; ++i) lists.push_back(check("[ox]\nfile = \"f\"\n"));
  for (const OptionList& list : lists) {
    EXPECT_EQ(view(list.data()[4].string_value), "f");
    EXPECT_EQ(view(list.data()[3].string_value), "sharded");
    EXPECT_EQ(list.data()[3].string_value.data[7], '\0');
  }
}

TEST(FillOptions, MakesTheResolvedRunComplete) {
  LoadedConfig config =
      Loading({least("[draught_horse]\nsize = 1\n"), {"ox.file=12", "ox.ratio=1"}}).config();
  const OptionList list = check_options(config.run.backend_options, kOx, infos());
  fill_options(config, "ox", list);
  const std::string text = to_toml(config);
  EXPECT_THAT(text,
              ::testing::HasSubstr("[ox]\nunit_bytes = 1048576\nratio = 1.0\nreshard = true\n"
                                   "mode = \"sharded\"\nfile = \"12\"\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("[draught_horse]\nsize = 1\n"));
  const Loading again({text});
  const OptionList same = check_options(again.run().backend_options, kOx, infos());
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(same.items()[i].string_value, list.items()[i].string_value);
    EXPECT_EQ(same.items()[i].int_value, list.items()[i].int_value);
    EXPECT_EQ(same.items()[i].double_value, list.items()[i].double_value);
  }
}

TEST(OptionInfos, CopiesWhatABackendDeclares) {
  YokeOptionInfo from{};
  from.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO);
  from.key = view("mode");
  from.default_value = view("a");
  from.choices = view("a|b|c");
  from.doc = view("what it does");
  from.min = 1;
  from.max = 0;
  from.type = YOKE_OPTION_STRING;
  const YokeOptionInfo* list[] = {&from};
  YokeDescription description{};
  description.options = list;
  description.num_options = 1;
  const OptionInfo copy = option_infos(description).at(0);
  EXPECT_EQ(copy.key, "mode");
  EXPECT_THAT(copy.choices, ElementsAre("a", "b", "c"));
  EXPECT_EQ(copy.doc, "what it does");
  EXPECT_LT(copy.min, copy.max);  // no limit
}

// The host would take the value of such an option for itself.
TEST(CheckOptions, AFamilyMayNotDeclareAKeyOfAnyFamily) {
  for (const std::string key : {"family", "freeze"}) {
    const std::vector<OptionInfo> declared{info(key, YOKE_OPTION_STRING, "")};
    EXPECT_NO_THROW(check_options({}, kOx, declared));
    try {
      check_options({}, {"model", "model family 'mine'"}, declared);
      FAIL() << key;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
      EXPECT_THAT(e.what(),
                  StartsWith("model family 'mine' declares the option '" + key + "', but model."));
    }
  }
}

}  // namespace
}  // namespace yoke
