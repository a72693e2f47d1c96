#include "core/data/token_stream.hpp"

#include <gmock/gmock.h>

#include "tests/unit/data/scratch_file.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return Error(YOKE_OK, "nothing was thrown");
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Id>
std::string token_file(const std::vector<Id>& ids, uint32_t vocab, uint64_t promised) {
  std::string out = kTokenFileMagic;
  append<uint32_t>(out, sizeof(Id));
  append<uint32_t>(out, vocab);
  append<uint64_t>(out, promised);
  for (Id id : ids) append(out, id);
  return out;
}

TEST(TokenStream, ReadsTheBytesOfATextAsUnsignedIds) {
  ScratchFile file(std::string("a\xff\0z", 4));
  auto stream = TokenStream::open(file.path());
  EXPECT_EQ(stream->size(), 4);
  EXPECT_EQ(stream->vocab(), 256);
  std::vector<int64_t> out(3);
  stream->read(1, 3, out.data());
  EXPECT_THAT(out, ElementsAre(255, 0, 'z'));
}

TEST(TokenStream, ReadsFilesOfTwoAndFourByteIds) {
  ScratchFile two(token_file<uint16_t>({7, 31999, 0}, 32000, 3), ".bin");
  ScratchFile four(token_file<uint32_t>({100000, 5}, 128256, 2), ".bin");
  std::vector<int64_t> out(2);
  auto stream = TokenStream::open(two.path());
  EXPECT_EQ(stream->size(), 3);
  EXPECT_EQ(stream->vocab(), 32000);
  stream->read(1, 2, out.data());
  EXPECT_THAT(out, ElementsAre(31999, 0));
  TokenStream::open(four.path())->read(0, 2, out.data());
  EXPECT_THAT(out, ElementsAre(100000, 5));
}

TEST(TokenStream, SaysHowToGetTheDemoTextWhenTheFileIsMissing) {
  const Error e = error_of([] { TokenStream::open("no/such/novels.txt"); });
  EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
  EXPECT_THAT(e.what(), HasSubstr("no/such/novels.txt"));
  EXPECT_THAT(e.what(), HasSubstr("scripts/fetch_text data/novels.txt"));
  EXPECT_THAT(e.what(), HasSubstr("scripts/demo"));
}

TEST(TokenStream, RefusesAFolder) {
  const Error e = error_of([] { TokenStream::open("/tmp"); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("not a regular file"));
}

TEST(TokenStream, RefusesABinWithoutTheMagic) {
  ScratchFile file("just some text, and long enough", ".bin");
  const Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("YOKETOK1"));
}

TEST(TokenStream, NoticesACutFileOfIds) {
  ScratchFile file(token_file<uint16_t>({1, 2, 3}, 10, 5), ".bin");
  const Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr("promises 5 ids"));
}

TEST(TokenStream, NoticesAnIdAboveThePromisedVocabulary) {
  ScratchFile file(token_file<uint16_t>({1, 10}, 10, 2), ".bin");
  auto stream = TokenStream::open(file.path());
  int64_t out[2];
  EXPECT_NO_THROW(stream->read(0, 1, out));
  const Error e = error_of([&] { stream->read(0, 2, out); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr("token 1 of the stream is 10"));
}

TEST(TokenStream, RefusesReadsBeyondItsEnd) {
  ScratchFile file("abc");
  auto stream = TokenStream::open(file.path());
  int64_t out[8];
  EXPECT_EQ(error_of([&] { stream->read(2, 2, out); }).code(), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(error_of([&] { stream->read(-1, 2, out); }).code(), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(error_of([&] { stream->read(0, INT64_MAX, out); }).code(), YOKE_INVALID_ARGUMENT);
  EXPECT_NO_THROW(stream->read(3, 0, out));
}

}  // namespace
}  // namespace yoke
