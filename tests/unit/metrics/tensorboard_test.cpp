// This file contains an independent reader of event files, written from the specification of the
// format. The oracle tests read a file with TensorBoard itself.
#include "core/metrics/tensorboard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/base/crc32c.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// A parsed protobuf message: the raw bytes of each value by field number, in order.
using Fields = std::multimap<int, std::string>;

uint64_t take_varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(in.at(0));
    in.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

Fields parse(std::string_view in) {
  Fields fields;
  while (!in.empty()) {
    const uint64_t key = take_varint(in);
    size_t size = 0;
    switch (key & 7) {
      case 0: {
        const uint64_t value = take_varint(in);
        fields.emplace(key >> 3, std::string(reinterpret_cast<const char*>(&value), 8));
        continue;
      }
      case 1:
        size = 8;
        break;
      case 2:
        size = take_varint(in);
        break;
      case 5:
        size = 4;
        break;
    }
    fields.emplace(key >> 3, std::string(in.substr(0, size)));
    in.remove_prefix(size);
  }
  return fields;
}

template <class T>
T number(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

uint32_t unmasked(const std::string& bytes) {
  const uint32_t rotated = number<uint32_t>(bytes) - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

std::vector<Fields> events(const std::string& folder) {
  std::vector<Fields> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = slurp(entry.path());
    for (size_t at = 0; at < file.size();) {
      const std::string length = file.substr(at, 8);
      EXPECT_EQ(unmasked(file.substr(at + 8, 4)), crc32c_by_table(0, length.data(), 8));
      const std::string data = file.substr(at + 12, number<uint64_t>(length));
      at += 12 + data.size();
      EXPECT_EQ(unmasked(file.substr(at, 4)), crc32c_by_table(0, data.data(), data.size()));
      at += 4;
      all.push_back(parse(data));
    }
  }
  return all;
}

std::map<std::string, float> values(const Fields& event) {
  std::map<std::string, float> found;
  const Fields summary = parse(event.find(5)->second);
  for (const auto& [field, bytes] : summary) {
    const Fields value = parse(bytes);
    found[value.find(1)->second] = number<float>(value.find(2)->second);
  }
  return found;
}

TEST(EventFile, HoldsWhatWasWrittenUnderItsStep) {
  const TempDir folder;
  EventFile file(folder / "tb", 0);
  file.write(300, {{"loss", 1.5F}, {"a longer name", -2.25F}});
  const auto all = events(folder / "tb");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].find(3)->second, "brain.Event:2");
  EXPECT_EQ(number<int64_t>(all[1].find(2)->second), 300);
  EXPECT_THAT(values(all[1]), ElementsAre(Pair("a longer name", -2.25F), Pair("loss", 1.5F)));
  EXPECT_GT(number<double>(all[1].find(1)->second), 1.6e9);  // time in seconds since 1970
}

TEST(EventFile, TellsReadersToForgetTheStepsThatAreDoneAgain) {
  const TempDir folder;
  { const EventFile first(folder / "tb", 0); }
  const EventFile second(folder / "tb", 100);
  int restarts = 0;
  for (const Fields& event : events(folder / "tb")) {
    const auto session = event.find(7);
    if (session == event.end()) continue;
    ++restarts;
    EXPECT_EQ(number<int64_t>(event.find(2)->second), 101);
    EXPECT_EQ(number<int64_t>(parse(session->second).find(1)->second), 1);  // START
  }
  EXPECT_EQ(restarts, 1);
}

TEST(EventFile, TellsReadersToForgetARunThatStartsAgain) {
  const TempDir folder;
  { const EventFile first(folder / "tb", 0); }
  const EventFile second(folder / "tb", 0);
  std::vector<int64_t> restarts;
  for (const Fields& event : events(folder / "tb")) {
    if (event.contains(7)) restarts.push_back(number<int64_t>(event.find(2)->second));
  }
  EXPECT_THAT(restarts, ElementsAre(1));
}

TEST(Scalars, HaveTorchtitansNamesAndNoNumberThatIsNone) {
  StepMetrics m;
  m.loss = 2.5;
  m.grad_norm = NAN;
  m.memory_bytes = int64_t{1} << 30;
  m.memory_total_bytes = int64_t{4} << 30;
  std::map<std::string, float> named;
  for (const Scalar& s : scalars(m)) named[s.tag] = s.value;
  EXPECT_EQ(named.at("loss_metrics/global_avg_loss"), 2.5F);
  EXPECT_EQ(named.at("memory/max_active(GiB)"), 1.0F);
  EXPECT_EQ(named.at("memory/max_active(%)"), 25.0F);
  EXPECT_EQ(named.count("grad_norm") + named.count("mfu(%)"), 0u);
  EXPECT_EQ(named.count("loss_scale") + named.count("skipped"), 0u);
  StepMetrics scaled;
  scaled.loss_scale = 1024;
  scaled.skipped = 3;
  for (const Scalar& s : scalars(scaled)) named[s.tag] = s.value;
  EXPECT_EQ(named.at("loss_scale"), 1024.0F);
  EXPECT_EQ(named.at("skipped"), 3.0F);
  EXPECT_EQ(scalars(EvalMetrics{.loss = 3.0})[0].tag, "validation_metrics/loss");
}

TEST(Scalars, HaveProductsIfTheyAreMeasured) {
  const auto named = [](const std::optional<ProductUse>& products) {
    StepMetrics m;
    m.products = products;
    std::map<std::string, float> all;
    for (const Scalar& s : scalars(m)) all[s.tag] = s.value;
    return all;
  };
  EXPECT_EQ(named({}).count("time_metrics/products(%)"), 0u);
  const auto uncounted = named(ProductUse{.percent = 50, .rounding_percent = 3});
  EXPECT_EQ(uncounted.at("time_metrics/products(%)"), 50.0F);
  EXPECT_EQ(uncounted.count("fp8/max(%)"), 0u);
  const auto fp8 = named(ProductUse{50, 25, 400, 1, 8});
  EXPECT_EQ(fp8.at("time_metrics/fp8_rounding(%)"), 25.0F);
  EXPECT_EQ(fp8.at("fp8/max(%)"), 0.25F);
  EXPECT_EQ(fp8.at("fp8/zero(%)"), 2.0F);
}

}  // namespace
}  // namespace yoke
