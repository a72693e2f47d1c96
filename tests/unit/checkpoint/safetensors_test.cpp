#include "core/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/base/files.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string padded(std::string json) {
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

// Returns the error for a header that is followed by `data_bytes` bytes; "" = it is accepted.
std::string error_for(const std::string& json, uint64_t data_bytes, bool pad = true) {
  const std::string text = pad ? padded(json) : json;
  const Outcome error =
      error_of([&] { parse_safetensors_header(text, 8 + text.size() + data_bytes); });
  EXPECT_TRUE(error.code == YOKE_OK || error.code == YOKE_DATA_LOSS) << error.text;
  return error.text;
}

// Concatenates by appending, because gcc 12 prints a false warning for "x" + string.
std::string join(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

std::string object(std::initializer_list<std::string_view> parts) {
  std::string text(1, '{');
  for (const std::string_view part : parts) {
    if (text.size() > 1) text += ',';
    text += part;
  }
  return text += '}';
}

std::string entry(
    std::string_view name, std::string_view dtype, std::string_view shape, int begin, int end) {
  return join({"\"",
               name,
               "\":{\"dtype\":\"",
               dtype,
               "\",\"shape\":",
               shape,
               ",\"data_offsets\":[",
               std::to_string(begin),
               ",",
               std::to_string(end),
               "]}"});
}

const std::string kGood =
    object({entry("a", "F32", "[2,3]", 0, 24), entry("b", "U8", "[]", 24, 25)});

std::string file_with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

std::string file_error(const std::string& content) {
  const TempDir dir;
  spill(dir / "x.safetensors", content);
  return error_of([&] { read_safetensors_header(File::open_for_reading(dir / "x.safetensors")); })
      .text;
}

TEST(Safetensors, ReadsWhatItWrites) {
  std::vector<SafetensorsTensor> tensors = {{"model.w", YOKE_F32, {2, 3}, 0, 0},
                                            {"\"quoted\" \\ \xc3\xa4", YOKE_BF16, {5}, 0, 0},
                                            {"s", YOKE_I64, {}, 0, 0},
                                            {"empty", YOKE_F64, {0, 4}, 0, 0}};
  const std::string head = make_safetensors_header(&tensors, {{"format", "pt"}});
  EXPECT_EQ(head.size() % 64, 0U);
  const uint64_t size = tensors.back().end;
  EXPECT_EQ(size, head.size() + 24 + 10 + 8);
  const SafetensorsHeader header = parse_safetensors_header(std::string_view(head).substr(8), size);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(header.tensors.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(header.tensors[i].name, tensors[i].name);
    EXPECT_EQ(header.tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header.tensors[i].begin, tensors[i].begin);
    EXPECT_EQ(header.tensors[i].end, tensors[i].end);
  }
}

TEST(Safetensors, WritesNoTensorsAtAll) {
  std::vector<SafetensorsTensor> none;
  const std::string head = make_safetensors_header(&none, {});
  EXPECT_TRUE(
      parse_safetensors_header(std::string_view(head).substr(8), head.size()).tensors.empty());
}

TEST(Safetensors, AcceptsTensorsInAnyOrder) {
  EXPECT_EQ(error_for(kGood, 25), "");
  EXPECT_EQ(error_for(object({entry("a", "BOOL", "[3]", 0, 3)}), 3), "");
  EXPECT_EQ(
      error_for(object({entry("b", "U8", "[]", 24, 25), entry("a", "F32", "[2,3]", 0, 24)}), 25),
      "");
}

// ---- One case per rule ----

TEST(SafetensorsLength, MustFitTheFile) {
  EXPECT_THAT(file_error(""), HasSubstr("a file of 0 bytes has no header"));
  EXPECT_THAT(file_error("1234567"), HasSubstr("a file of 7 bytes has no header"));
  EXPECT_THAT(file_error(file_with_length(0, "{}      ")), HasSubstr("the header's length is 0"));
  EXPECT_THAT(file_error(file_with_length(1, "{}      ")), HasSubstr("the header's length is 1"));
  EXPECT_THAT(file_error(file_with_length(16, "{}      ")), HasSubstr("the header's length is 16"));
  EXPECT_THAT(file_error(file_with_length(~uint64_t{0}, "{}      ")),
              HasSubstr("18446744073709551615"));
  EXPECT_EQ(file_error(file_with_length(8, "{}      ")), "");
}

TEST(SafetensorsLength, IsAtMost100MB) {
  const TempDir dir;
  File file = File::create(dir / "x.safetensors");
  const uint64_t length = 100'000'008;
  file.reserve(length + 8);
  file.write_at(&length, 8, 0);
  EXPECT_THAT(
      error_of([&] {
        read_safetensors_header(File::open_for_reading(dir / "x.safetensors"));
      }).text,
      AllOf(HasSubstr("the header's length is 100000008"), HasSubstr(dir / "x.safetensors")));
}

TEST(SafetensorsLength, KeepsTheDataAligned) {
  EXPECT_THAT(error_for("{}  ", 0, false), HasSubstr("multiple of 8"));
}

TEST(SafetensorsText, BeginsWithABraceAndEndsWithSpacesOnly) {
  EXPECT_THAT(error_for(join({" ", kGood}), 25), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error_for(join({"\xef\xbb\xbf", kGood}), 25), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(error_for(kGood + "\n", 25), HasSubstr("does not end with '}' and trailing spaces"));
  EXPECT_THAT(error_for(kGood + std::string(3, '\0'), 25), HasSubstr("does not end"));
  EXPECT_THAT(error_for(kGood + " {}", 25), HasSubstr("not JSON"));
  EXPECT_THAT(error_for(object({kGood}), 25), HasSubstr("not JSON"));
}

TEST(SafetensorsText, IsUtf8) {
  EXPECT_THAT(error_for(object({entry("a\xff", "U8", "[1]", 0, 1)}), 1),
              HasSubstr("not JSON in UTF-8"));
  EXPECT_THAT(error_for(object({entry("a\xc0\x80", "U8", "[1]", 0, 1)}), 1),
              HasSubstr("not JSON in UTF-8"));
}

TEST(SafetensorsText, HasNoKeyTwice) {
  const std::string a = entry("a", "U8", "[0]", 0, 0);
  EXPECT_THAT(error_for(object({a, a}), 0), HasSubstr("the name 'a' occurs twice"));
  EXPECT_THAT(error_for(object({a, entry("\\u0061", "U8", "[0]", 0, 0)}), 0),
              HasSubstr("occurs twice"));
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("tensor 'a': the key 'dtype' occurs twice"));
  EXPECT_THAT(error_for(R"({"__metadata__":{"x":"1","x":"2"}})", 0),
              HasSubstr("the key 'x' occurs twice"));
  EXPECT_THAT(error_for(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("occurs twice"));
}

TEST(SafetensorsText, HasTheThreeKeysOfATensorAndNoOther) {
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","shape":[0]}})", 0), HasSubstr("is missing"));
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0),
              HasSubstr("is missing"));
  EXPECT_THAT(error_for(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", 0), HasSubstr("is missing"));
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
              HasSubstr("unknown key 'x'"));
}

TEST(SafetensorsText, HasEveryValueOfTheRightType) {
  for (const char* json :
       {R"({"a":1})",
        R"({"a":null})",
        R"({"a":"x"})",
        R"({"a":[]})",
        R"({"a":true})",
        R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":["U8"],"shape":[0],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":0,"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":["0"],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":[[0]],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":[0.0],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"U8","shape":[0],"data_offsets":"0"}})"}) {
    EXPECT_NE(error_for(json, 0), "") << json;
  }
}

TEST(SafetensorsName, IsShortAndPrintable) {
  EXPECT_THAT(error_for(object({entry("", "U8", "[0]", 0, 0)}), 0), HasSubstr("is empty"));
  EXPECT_EQ(error_for(object({entry(std::string(512, 'n'), "U8", "[0]", 0, 0)}), 0), "");
  EXPECT_THAT(error_for(object({entry(std::string(513, 'n'), "U8", "[0]", 0, 0)}), 0),
              HasSubstr("512"));
  EXPECT_THAT(error_for(object({entry("a\\u0000b", "U8", "[0]", 0, 0)}), 0),
              HasSubstr("control characters"));
  EXPECT_THAT(error_for(object({entry("a\\nb", "U8", "[0]", 0, 0)}), 0), HasSubstr("'a?b'"));
}

TEST(SafetensorsName, StandsForAtMostAMillionTensors) {
  std::string json(1, '{');
  for (int i = 0; i <= 1'000'000; ++i)
    json.append(entry(std::to_string(i), "U8", "[0]", 0, 0)).append(1, ',');
  json.back() = '}';
  EXPECT_THAT(error_for(json, 0), HasSubstr("more than 1000000 tensors"));
}

TEST(SafetensorsMetadata, MapsStringsToStringsInAtMost64KiB) {
  EXPECT_EQ(error_for(R"({"__metadata__":{"format":"pt"}})", 0), "");
  EXPECT_NE(error_for(R"({"__metadata__":{"format":1}})", 0), "");
  EXPECT_NE(error_for(R"({"__metadata__":{"format":{}}})", 0), "");
  EXPECT_NE(error_for(R"({"__metadata__":[]})", 0), "");
  EXPECT_EQ(error_for(join({"{\"__metadata__\":{\"k\":\"", std::string(65535, 'x'), "\"}}"}), 0),
            "");
  EXPECT_THAT(error_for(join({"{\"__metadata__\":{\"k\":\"", std::string(65536, 'x'), "\"}}"}), 0),
              HasSubstr("65536"));
}

TEST(SafetensorsTensor, HasAKnownDtype) {
  EXPECT_THAT(error_for(object({entry("a", "F8_E4M3", "[0]", 0, 0)}), 0),
              HasSubstr("dtype 'F8_E4M3' is not known"));
  for (const char* dtype : {"F64", "F32", "BF16", "F16", "I64", "I32", "U8"}) {
    EXPECT_EQ(error_for(object({entry("a", dtype, "[0]", 0, 0)}), 0), "") << dtype;
    EXPECT_STREQ(safetensors_dtype(dtype_from_safetensors(dtype)), dtype);
  }
}

TEST(SafetensorsTensor, HasBoundedDims) {
  EXPECT_EQ(error_for(object({entry("a", "U8", "[1,1,1,1,1,1,1,1]", 0, 1)}), 1), "");
  EXPECT_THAT(error_for(object({entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1)}), 1),
              HasSubstr("more than 8 dims"));
  EXPECT_THAT(error_for(object({entry("a", "U8", "[281474976710657]", 0, 1)}), 1),
              HasSubstr("2^48"));
  // The products of these dims wrap around to something small.
  EXPECT_THAT(error_for(object({entry("a", "F32", "[281474976710656,65536]", 0, 0)}), 0),
              HasSubstr("64 bits"));
  EXPECT_THAT(error_for(object({entry("a", "F64", "[281474976710656,8192,4]", 0, 0)}), 0),
              HasSubstr("64 bits"));
}

TEST(SafetensorsTensor, HasOffsetsThatMatchItsSize) {
  EXPECT_THAT(error_for(object({entry("a", "F32", "[2]", 0, 7)}), 7),
              HasSubstr("do not hold its 8 bytes"));
  EXPECT_THAT(error_for(object({entry("a", "U8", "[1]", 1, 0)}), 1), HasSubstr("do not hold"));
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1),
              HasSubstr("two numbers"));
  EXPECT_THAT(error_for(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1),
              HasSubstr("two numbers"));
}

TEST(SafetensorsData, HasNoHoleNoOverlapAndNothingBehind) {
  const auto two = [](int begin, int end) {
    return object({entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", begin, end)});
  };
  EXPECT_EQ(error_for(two(4, 8), 8), "");
  EXPECT_THAT(error_for(two(5, 9), 9), HasSubstr("tensor 'b' begins at byte 5"));
  EXPECT_THAT(error_for(two(3, 7), 7), HasSubstr("tensor 'b' begins at byte 3"));
  EXPECT_THAT(error_for(two(0, 4), 4), HasSubstr("begins at byte 0"));
  EXPECT_THAT(error_for(object({entry("a", "U8", "[4]", 1, 5)}), 5), HasSubstr("begins at byte 1"));
  EXPECT_THAT(error_for(two(4, 8), 7), HasSubstr("after the end of the file"));
  EXPECT_THAT(error_for(two(4, 8), 9), HasSubstr("9 bytes of data, but its tensors end at 8"));
  EXPECT_THAT(error_for("{}", 1), HasSubstr("1 bytes of data"));
}

TEST(SafetensorsTensor, IsNamedWithItsFile) {
  const std::string text = padded(object({entry("a", "F32", "[2]", 0, 7)}));
  EXPECT_THAT(file_error(file_with_length(text.size(), text + std::string(7, 'x'))),
              AllOf(HasSubstr("x.safetensors: "), HasSubstr("tensor 'a'")));
}

// ---- Random damage: a file is rejected, or all its tensors are within the file ----

void expect_sane(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const std::string text = file.substr(8);
  try {
    const SafetensorsHeader header = parse_safetensors_header(
        std::string_view(text).substr(0, std::min<uint64_t>(length, text.size())), file.size());
    uint64_t expected = header.data_begin;
    for (const SafetensorsTensor& tensor : header.tensors) {
      ASSERT_EQ(tensor.begin, expected);
      expected = tensor.end;
    }
    ASSERT_EQ(expected, file.size());
  } catch (const Error& e) {
    ASSERT_EQ(e.code(), YOKE_DATA_LOSS);
  }
}

TEST(Safetensors, SurvivesRandomDamage) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<SafetensorsTensor> tensors;
    for (uint64_t t = 0; t < random() % 4; ++t) {
      tensors.push_back(
          {std::string(t + 1, 't'), YOKE_F32, {static_cast<int64_t>(random() % 4)}, 0, 0});
    }
    std::string file = make_safetensors_header(&tensors, {{"format", "pt"}});
    file.resize(tensors.empty() ? file.size() : tensors.back().end, 'x');
    for (uint64_t change = 0; change <= random() % 4; ++change) {
      const size_t at = random() % file.size();
      switch (random() % 6) {
        case 0:
          file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
          break;
        case 1:
          file[at] = static_cast<char>(random());
          break;
        case 2:
          file[at] = "0123456789{}[],:\"-"[random() % 18];
          break;
        case 3:
          file.erase(at, random() % 8);
          break;
        case 4:
          file.insert(at, file.substr(random() % file.size(), random() % 30));
          break;
        default:
          file.resize(at);
          break;
      }
      if (file.size() < 9) file.resize(9, ' ');
    }
    expect_sane(file);
  }
}

}  // namespace
}  // namespace yoke
