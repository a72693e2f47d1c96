#include "core/checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/crc32c.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

Manifest example() {
  Manifest m;
  m.info.step = 100;
  m.info.next_sample = 1600;
  m.info.config_digest = "a \"quoted\" digest";
  m.info.finished = true;
  m.info.fixed_digest = "another digest";
  m.info.data = "20 bytes, sample 1a2b3c4d";
  m.info.eval_loss = 3.1;
  m.info.loss_scale = {.scale = 0.25, .good_steps = 3, .hysteresis = 2, .skipped = 7};
  m.world_size = 2;
  m.files = {{"model.safetensors", 4194304 + 164, 128, 0x12345678}};
  StoredTensor t;
  t.name = "w";
  t.kind = "param";
  t.dtype = YOKE_F32;
  t.shape = {1048585};
  t.file = "model.safetensors";
  t.offset = 128;
  t.pieces = {{StridedSpan::flat(0, 1048577), {1, 2}, -1},
              {StridedSpan::flat(1048577, 8), {0xffffffff}, -1}};
  StoredTensor columns = t;
  columns.name = "x";
  columns.shape = {4, 6};
  columns.pieces = {{{0, 8, 2, 6}, {3}, -1}, {{2, 16, 4, 6}, {4}, -1}};
  m.tensors = {t, columns};
  return m;
}

// Recomputes the checksum of a manifest that a test has edited, and returns the new text.
std::string with_digest(std::string text) {
  const std::string marker = "\"self_crc32c\":\"";
  text.resize(text.rfind(marker));
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(0, text.data(), text.size()));
  return text + marker + digits + "\"}\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest m = parse_manifest(to_text(example()));
  EXPECT_EQ(to_text(m), to_text(example()));
  EXPECT_EQ(m.info.config_digest, "a \"quoted\" digest");
  EXPECT_EQ(m.info.fixed_digest, "another digest");
  EXPECT_EQ(m.info.data, "20 bytes, sample 1a2b3c4d");
  EXPECT_EQ(m.info.eval_loss, 3.1);
  EXPECT_EQ(m.info.loss_scale, example().info.loss_scale);
  EXPECT_EQ(m.info.skipped, 7);
  EXPECT_EQ(m.tensors[0].pieces[1].crc[0], 0xffffffffU);
  EXPECT_EQ(m.files[0].head_crc, 0x12345678U);
}

// Only fp16 runs have a loss scale, not every step is evaluated, and older releases have saved one
// digest.
TEST(Manifest, LeavesOutWhatTheRunDoesNotHave) {
  Manifest without = example();
  without.info.loss_scale.reset();
  without.info.eval_loss.reset();
  without.info.fixed_digest.clear();
  without.info.data.clear();
  const nlohmann::json json = nlohmann::json::parse(to_text(without));
  for (const char* field : {"loss_scale", "skipped", "eval_loss", "fixed_digest", "data"})
    EXPECT_FALSE(json.contains(field)) << field;
  const CheckpointInfo info = parse_manifest(to_text(without)).info;
  EXPECT_FALSE(info.loss_scale.has_value());
  EXPECT_EQ(info.skipped, 0);
  without.info.skipped = 3;
  EXPECT_EQ(parse_manifest(to_text(without)).info.skipped, 3);
  EXPECT_FALSE(info.eval_loss.has_value());
  EXPECT_EQ(info.fixed_digest, "");
}

TEST(Manifest, IsPlainJson) {
  const auto json = nlohmann::json::parse(to_text(example()));
  EXPECT_EQ(json["format"], "yoke-checkpoint");
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["finished"], true);
  EXPECT_EQ(json["tensors"][0]["pieces"][1].dump(), "[1048577,8,\"ffffffff\"]");
  EXPECT_EQ(json["tensors"][1]["pieces"][1].dump(), "[2,16,\"00000004\",4,6]");
}

TEST(Manifest, NoticesEveryFlippedBitAndEveryTruncation) {
  const std::string text = to_text(example());
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_EQ(error_of([&] { parse_manifest(damaged); }).code, YOKE_DATA_LOSS) << i;
    }
    ASSERT_EQ(error_of([&] { parse_manifest(text.substr(0, i)); }).code, YOKE_DATA_LOSS) << i;
  }
}

TEST(Manifest, NoticesContradictionsUnderARightChecksum) {
  const std::string text = to_text(example());
  EXPECT_EQ(with_digest(text), text);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"yoke-checkpoint\"", "\"other\""},
      {"\"version\":1", "\"version\":0"},
      {"\"step\":100", "\"step\":\"100\""},
      {"\"file\":\"model.safetensors\",\"bytes\"", "\"file\":\"../model.safetensors\",\"bytes\""},
      {"\"file\":\"model.safetensors\",\"bytes\"", "\"file\":\".hidden\",\"bytes\""},
      {"\"head_bytes\":128", "\"head_bytes\":4194469"},
      {"\"12345678\"", "\"1234567\""},
      {"\"12345678\"", "\"1234567g\""},
      {"\"F32\"", "\"F31\""},
      {"[1048585]", "[1048586]"},
      {"[1048585]", "[-1]"},
      {"[1048585]", "[281474976710656,281474976710656,281474976710656]"},
      {"[0,1048577,", "[0,1048576,"},
      {"[0,1048577,", "[0,9223372036854775807,"},
      {"[1048577,8,", "[1048577,9,"},
      {"[1048577,8,", "[1048576,9,"},
      {"0000000100000002", "00000001"},
      {"\"00000004\",4,6]", "\"00000004\",4]"},
      {"\"00000004\",4,6]", "\"00000004\",4,12]"},
      {"\"00000004\",4,6]", "\"00000004\",4,5]"},
      {"\"00000004\",4,6]", "\"00000004\",0,6]"},
      {"\"00000004\",4,6]", "\"00000004\",3,6]"},
      {"[2,16,", "[2,9223372036854775807,"},
      {"\"files\":[", "\"file\":["},
      {"\"scale\":0.25", "\"scale\":0"},
      {"\"scale\":0.25", "\"scale\":\"1\""},
      {"\"good_steps\":3", "\"good_steps\":-1"},
      {"\"hysteresis\":2", "\"hysteresis\":0"},
      {"\"skipped\":7", "\"other\":7"},
  };
  for (const auto& [from, to] : changes) {
    const std::string changed = with_digest(replaced(text, from, to));
    EXPECT_EQ(error_of([&] { parse_manifest(changed); }).code, YOKE_DATA_LOSS)
        << from << " -> " << to;
  }
}

TEST(Manifest, TellsANewerFormatFromDamage) {
  const std::string newer =
      with_digest(replaced(to_text(example()), "\"version\":1", "\"version\":2"));
  const Outcome error = error_of([&] { parse_manifest(newer); });
  EXPECT_EQ(error.code, YOKE_FAILED_PRECONDITION);
  EXPECT_THAT(error.text, HasSubstr("written by a newer Yoke (format 2)"));
}

}  // namespace
}  // namespace yoke
