#include "tests/fuzz/mutate.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/base/crc32c.hpp"

namespace yoke::testing {
namespace {

constexpr const char* kWords[] = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "\"",
                                  "null",
                                  "true",
                                  "false",
                                  "\"\"",
                                  "[]",
                                  "{}",
                                  "\"F32\"",
                                  "\"BF16\"",
                                  "\"I64\"",
                                  "\"dtype\"",
                                  "\"shape\"",
                                  "\"data_offsets\"",
                                  "\"__metadata__\"",
                                  "\"weight_map\"",
                                  "\"llama\"",
                                  "\"head_dim\"",
                                  "\"..\"",
                                  "\\u0000",
                                  "\xff",
                                  "   ",
                                  "\"a\":1,"};
constexpr const char* kNumbers[] = {"0",
                                    "-1",
                                    "1",
                                    "2",
                                    "255",
                                    "65536",
                                    "4294967296",
                                    "281474976710656",
                                    "281474976710657",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "1e308",
                                    "1e999",
                                    "0.5",
                                    "-0"};

size_t below(Random& random, size_t n) {
  return n == 0 ? 0 : static_cast<size_t>(random() % n);
}

template <size_t N>
const char* one_of(const char* const (&list)[N], Random& random) {
  return list[below(random, N)];
}

void replace_number(std::string& text, Random& random) {
  const size_t digit = text.find_first_of("0123456789", below(random, text.size()));
  if (digit == std::string::npos) return;
  const size_t end = std::min(text.find_first_not_of("0123456789.eE+-", digit), text.size());
  text.replace(digit, end - digit, one_of(kNumbers, random));
}

void change(std::string& text, Random& random) {
  const size_t at = below(random, text.size() + 1);
  const size_t length = below(random, std::min<size_t>(text.size() - at, 64) + 1);
  switch (random() % 8) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(below(random, text.size() + 1), text.substr(at, length));
      break;
    case 4:
      text.insert(at, one_of(kWords, random));
      break;
    case 5:
      text.replace(at, length, one_of(kWords, random));
      break;
    case 6:
      replace_number(text, random);
      break;
    default:
      if (random() % 8 == 0) text.resize(at);
  }
}

// Changes only the JSON of a safetensors file, which consists of a length, JSON and data, and
// adjusts the length.
std::string change_header(const std::string& good, Random& random, int changes) {
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  std::string json = good.substr(8, length);
  const std::string data = good.substr(8 + length);
  for (int i = 0; i < changes; ++i) change(json, random);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  length = json.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + json + data;
}

std::string change_manifest(const std::string& good, Random& random, int changes) {
  const std::string tail = "\"self_crc32c\":\"";
  std::string body = good.substr(0, good.rfind(tail));
  for (int i = 0; i < changes; ++i) change(body, random);
  char digest[16];
  std::snprintf(digest, sizeof digest, "%08x", crc32c(0, body.data(), body.size()));
  return body + tail + digest + "\"}\n";
}

}  // namespace

std::string mutate(const std::string& file_name, const std::string& good, Random& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  const bool fitting = random() % 2 == 0;
  if (fitting && file_name.ends_with(".safetensors")) return change_header(good, random, changes);
  if (fitting && file_name == "manifest.json") return change_manifest(good, random, changes);
  std::string bad = good;
  for (int i = 0; i < changes; ++i) change(bad, random);
  return bad;
}

}  // namespace yoke::testing
