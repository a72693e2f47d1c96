// A configuration that is written as a run file and read again is unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/config/options.hpp"
#include "core/config/schema.hpp"
#include "tests/unit/config/support.hpp"

namespace yoke {
namespace {

using testing::least;
using testing::Loading;

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs pairs(const LoadedConfig& config) {
  Pairs all;
  for (const Resolved& item : config.values) all.emplace_back(item.key, item.value);
  return all;
}

// Expects the same values; the files and layers that they come from may differ.
void expect_same(const LoadedConfig& a, const LoadedConfig& b) {
  EXPECT_EQ(pairs(a), pairs(b));
  EXPECT_EQ(resume_digest(a), resume_digest(b));
  ASSERT_EQ(a.run.backend_options.size(), b.run.backend_options.size());
}

TEST(ToToml, ReadsBackAsTheSameRun) {
  const Loading first({least("dp_shards = 2\nbackend_path = [\"/a b\", \"/\\\"c\\\"\"]\n"
                             "[train]\nlr = 3e-4\nbetas = [0.9, 0.999]\n"
                             "[ox]\nmode = \"x y\"\nunit_bytes = 7\n"),
                       {"model.tied=true", "draught_horse.size=12"}});
  const Loading second({to_toml(first.config())});
  expect_same(first.config(), second.config());
  EXPECT_EQ(second.run().train.lr, 3e-4);
  EXPECT_EQ(to_toml(first.config()), to_toml(second.config()));
}

TEST(ToToml, WithOriginsIsStillARunFile) {
  const Loading first({least(), {"train.steps=7"}});
  const std::string text = to_toml_with_origins(first.config());
  EXPECT_THAT(text, ::testing::HasSubstr("steps = 7  # command line\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("lr = 3e-4  # default\n"));
  expect_same(first.config(), Loading({text}).config());
}

TEST(ToToml, LeavesUnsetKeysOut) {
  const std::string text = to_toml(Loading({least()}).config());
  for (const char* key : {"dp_shards", "micro_batch =", "dim", "tied"}) {
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(std::string("\n") + key))) << text;
  }
}

TEST(OriginsJson, HoldsValuesOfTheirTypeAndNullForUnset) {
  const auto json = nlohmann::json::parse(
      origins_json(Loading({least("[ox]\nmode = \"m\"\n"), {"train.steps=7"}}).config()));
  EXPECT_EQ(json["train.steps"]["value"], 7);
  EXPECT_EQ(json["train.steps"]["origin"], "command line");
  EXPECT_EQ(json["train.lr"]["value"], 3e-4);
  EXPECT_EQ(json["train.betas"]["value"], nlohmann::json({0.9, 0.95}));
  EXPECT_EQ(json["parallel_backend"]["value"], "ox");
  EXPECT_TRUE(json["dp_shards"]["value"].is_null());
  EXPECT_EQ(json["dp_shards"]["origin"], "default");
  EXPECT_EQ(json["ox.mode"]["value"], "m");
}

std::string digest(const std::vector<std::string>& overrides) {
  return resume_digest(Loading({least(), overrides}).config());
}

TEST(ResumeChanges, NamesBothValuesOfWhatDoesNotChangeFreely) {
  const auto changes = [](const std::vector<std::string>& overrides) {
    return resume_changes(Loading({least(), {}}).config(), Loading({least(), overrides}).config());
  };
  for (const char* free : {"dp_shards=2", "eval.every=3", "checkpoint.keep=9", "metrics.every=7"}) {
    EXPECT_TRUE(changes({free}).tunable.empty()) << free;
    EXPECT_TRUE(changes({free}).fixed.empty()) << free;
  }
  const ResumeChanges tuned = changes(
      {"train.steps=200", "train.lr=1e-3", "train.schedule=wsd", "lr_schedule.decay_steps=9"});
  EXPECT_TRUE(tuned.fixed.empty());
  EXPECT_EQ(tuned.tunable,
            (std::vector<std::string>{"lr_schedule.decay_steps = 9 (unset before)",
                                      "train.lr = 0.001 (3e-4 before)",
                                      "train.schedule = \"wsd\" (\"constant\" before)",
                                      "train.steps = 200 (100 before)"}));
  EXPECT_EQ(changes({"train.clip=2", "train.lr=1e-3"}).fixed,
            std::vector<std::string>{"train.clip = 2.0 (1.0 before)"});
}

// A newer release must still resume runs of an older one, so keys that are added later must not
// change the digest of a run file without them.
TEST(ResumeDigest, StaysTheSameForOldRunFiles) {
  EXPECT_EQ(digest({}), "90fcf3ad4678508c");
  EXPECT_EQ(digest({"data.path=a b/c.txt", "data.holdout=0", "seed=7"}), "93341fb5e8df43fd");
}

TEST(ResumeDigest, DependsOnWhatIsRead) {
  const std::string two = digest({"data.path=[\"a\", \"b\"]"});
  EXPECT_EQ(digest({"data.path=[\"text\"]"}), digest({}));
  EXPECT_NE(two, digest({}));
  EXPECT_NE(digest({"data.path=[\"b\", \"a\"]"}), two);
  EXPECT_NE(digest({"data.path=[\"a\", \"b\"]", "data.weights=1,2"}), two);
  EXPECT_NE(digest({"eval.path=v", "eval.every=1"}), digest({"data.holdout=0"}));
}

TEST(ResumeDigest, IgnoresLayoutBackendAndWhatOnlyWatches) {
  const std::string same = digest({});
  EXPECT_EQ(same.size(), 16u);
  for (const char* word : {"dp_shards=2",
                           "dp_degree=2",
                           "train.micro_batch=4",
                           "train.max_micro_batch=2",
                           "parallel_backend=draught_horse",
                           "ox.mode=m",
                           "metrics.every=1",
                           "comm.check=full",
                           "comm.timeout=5",
                           "comm.transport=gloo",
                           "checkpoint.every=3",
                           "checkpoint.resume=auto",
                           "run.dir=elsewhere",
                           "eval.every=5",
                           "eval.batches=2",
                           "device=cpu",
                           "worker=/mine",
                           "backend_path=[\"/x\"]"}) {
    EXPECT_EQ(digest({word}), same) << word;
  }
}

TEST(ResumeDigest, ChangesWithEverythingThatChangesTheNumbers) {
  const std::string same = digest({});
  for (const char* word : {"seed=2",
                           "model.family=other",
                           "model.preset=x",
                           "model.dim=8",
                           "model.tied=true",
                           "data.path=b",
                           "data.seq_len=8",
                           "data.order=sequential",
                           "data.holdout=0.1",
                           "train.steps=5",
                           "train.global_batch=8",
                           "train.optimizer=sgd",
                           "train.bias_correction=false",
                           "train.lr=1",
                           "train.warmup=1",
                           "train.schedule=wsd",
                           "train.betas=[0.5,0.5]",
                           "train.eps=1",
                           "train.momentum=0.5",
                           "train.weight_decay=0",
                           "train.decay=matrices",
                           "train.clip=0",
                           "precision.reduce=fp64",
                           "model.from=x",
                           "data.format=yoke"}) {
    EXPECT_NE(digest({word}), same) << word;
  }
}

// ---- Property: every accepted configuration is unchanged after writing and reading ----

std::string any_text() {
  // Code points of every length, with quotes, line breaks and control characters.
  const auto points = *rc::gen::container<std::vector<uint32_t>>(
      rc::gen::oneOf(rc::gen::inRange<uint32_t>(1, 0x80),
                     rc::gen::inRange<uint32_t>(0x80, 0x800),
                     rc::gen::inRange<uint32_t>(0x800, 0xd800),
                     rc::gen::inRange<uint32_t>(0x10000, 0x110000)));
  std::string text;
  for (const uint32_t p : points) {
    const auto byte = [&](uint32_t b) { text += static_cast<char>(b); };
    const auto tail = [&](int shift) { byte(0x80 | ((p >> shift) & 0x3f)); };
    if (p < 0x80) byte(p);
    if (p >= 0x80 && p < 0x800) byte(0xc0 | p >> 6), tail(0);
    if (p >= 0x800 && p < 0x10000) byte(0xe0 | p >> 12), tail(6), tail(0);
    if (p >= 0x10000) byte(0xf0 | p >> 18), tail(12), tail(6), tail(0);
  }
  return text;
}

double any_double() {
  const uint64_t bits = *rc::gen::arbitrary<uint64_t>();
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Value any_value(const Key& key) {
  const std::vector<std::string> words = choices(key);
  if (!words.empty()) return {*rc::gen::elementOf(words)};
  const std::string type = type_name(key);
  if (type == "int")
    return {*rc::gen::inRange<int64_t>(0, *rc::gen::element<int64_t>(2, 100, 1LL << 40))};
  if (type == "bool") return {*rc::gen::arbitrary<bool>()};
  if (type == "float") return {*rc::gen::arbitrary<bool>() ? any_double() : std::abs(any_double())};
  if (type == "two floats") {
    const auto unit = [] {
      return Value{std::ldexp(*rc::gen::inRange<int64_t>(0, 1LL << 53), -53)};
    };
    return {std::vector<Value>{unit(), unit()}};
  }
  if (type == "two ints") return {std::vector<Value>{{int64_t{1}}, {int64_t{1}}}};
  if (type == "strings") return {std::vector<Value>{{"/" + any_text()}, {"/" + any_text()}}};
  return {any_text()};
}

// Returns a run file of random assignments, each of which is valid on its own.
std::string any_file() {
  std::string text = "\"parallel_backend\" = \"ox\"\n\"precision\".\"reduce\" = \"fp64\"\n";
  for (const Key& key : schema()) {
    if (key.name == "parallel_backend" || key.name == "precision.reduce" || key.name == "worker" ||
        key.name.starts_with("precision.fp8_") || *rc::gen::inRange(0, 3) == 0) {
      continue;
    }
    const Value value = any_value(key);
    if (!check_key(key, value).empty()) continue;
    text += std::string(key.name) + " = " + to_text(value) + "\n";
  }
  if (*rc::gen::arbitrary<bool>()) text += "ox.text = " + toml_string(any_text()) + "\n";
  if (*rc::gen::arbitrary<bool>())
    text += "ox.number = " + std::to_string(*rc::gen::arbitrary<int64_t>()) + "\n";
  return text;
}

TEST(ToToml, EveryAcceptedConfigurationReadsBackAsItself) {
  int accepted = 0;
  const bool held = rc::check("every accepted configuration reads back", [&] {
    const std::string file = any_file();
    const Loading first({file, {"data.path=t" + any_text()}});
    // The values of a random file may contradict each other; such a file is skipped.
    if (!first.faults().empty()) return;
    ++accepted;
    const std::string written = to_toml(first.config());
    const Loading second({written});
    RC_ASSERT(second.faults().empty());
    RC_ASSERT(pairs(first.config()) == pairs(second.config()));
    RC_ASSERT(resume_digest(first.config()) == resume_digest(second.config()));
    RC_ASSERT(to_toml(second.config()) == written);
  });
  EXPECT_TRUE(held);
  EXPECT_GT(accepted, 20);
}

}  // namespace
}  // namespace yoke
