#include "core/data/token_stream.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/data/scratch_file.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenStream, ReadsTheBytesOfATextAsUnsignedIds) {
  ScratchFile file(std::string("a\xff\0z", 4));
  auto stream = TokenStream::open(file.path(), "text");
  EXPECT_STREQ(stream->format(), "text");
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
  EXPECT_THAT(e.what(), HasSubstr("scripts/generate_text"));
}

TEST(TokenStream, NamesTheFilesThatAreNearestToAMissingOne) {
  const ScratchFile file("abc", "_near.txt");
  const std::string missing = file.path().substr(0, file.path().size() - 5) + "t.txt";
  const Error e = error_of([&] { TokenStream::open(missing); });
  EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
  EXPECT_THAT(e.what(), HasSubstr("does not exist; nearest names in"));
  EXPECT_THAT(e.what(), HasSubstr("_near.txt"));
  EXPECT_THAT(error_of([] { TokenStream::open("a.bin,b.bin"); }).what(),
              HasSubstr("write a list as [\"a\", \"b\"]"));
}

TEST(TokenStream, NamesTheFormatOfAParquetFile) {
  const ScratchFile file("PAR1abcd", ".parquet");
  EXPECT_THAT(error_of([&] { TokenStream::open(file.path()); }).what(),
              HasSubstr("is a Parquet file"));
}

TEST(TokenStream, RefusesAFolder) {
  const Error e = error_of([] { TokenStream::open("/tmp"); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("not a regular file"));
}

// Opening a pipe would wait for somebody who writes.
TEST(TokenStream, RefusesAPipe) {
  const ScratchFile file("");
  const std::string pipe = file.path() + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Error e = error_of([&] { TokenStream::open(pipe); });
  ::unlink(pipe.c_str());
  EXPECT_THAT(e.what(), HasSubstr("not a regular file"));
}

std::string llmc_file(int32_t magic, int32_t version, int32_t promised, const std::string& ids) {
  std::string out;
  for (const int32_t word : {magic, version, promised}) append(out, word);
  out.resize(1024);
  return out + ids;
}

TEST(TokenStream, ReadsBothKindsOfLlmcFiles) {
  ScratchFile gpt2(llmc_file(20240520, 1, 3, raw<uint16_t>({50256, 0, 7})), ".bin");
  ScratchFile llama(llmc_file(20240801, 7, 2, raw<uint32_t>({128000, 1})), ".bin");
  const auto two = TokenStream::open(gpt2.path()), four = TokenStream::open(llama.path(), "llmc");
  EXPECT_STREQ(two->format(), "llmc");
  EXPECT_EQ(two->vocab(), 0) << "the header promises none";
  EXPECT_THAT(all_ids(*two), ElementsAre(50256, 0, 7));
  EXPECT_THAT(all_ids(*four), ElementsAre(128000, 1));
}

TEST(TokenStream, ReadsRawIdsOnlyOnRequest) {
  ScratchFile file(raw<uint16_t>({1, 50256, 2}), ".bin");
  EXPECT_THAT(all_ids(*TokenStream::open(file.path(), "nanogpt")), ElementsAre(1, 50256, 2));
  const Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("no known header"));
  EXPECT_THAT(e.what(), HasSubstr("data.format = \"nanogpt\""));
}

TEST(TokenStream, DoesNotTakeRawIdsForAText) {
  ScratchFile file("a text to begin with" + raw<uint16_t>({1, 2}), ".dat");
  const Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(e.what(), HasSubstr("its byte 21 is zero"));
  EXPECT_THAT(e.what(), HasSubstr("data.format = \"nanogpt\""));
}

TEST(TokenStream, RefusesAFileInAnotherFormat) {
  const ScratchFile yoke(token_file<uint16_t>({1}, 10, 1), ".bin");
  const ScratchFile llmc(llmc_file(20240520, 1, 1, "ab"), ".bin");
  const ScratchFile odd("abc", ".bin");
  const std::tuple<const ScratchFile*, const char*, int32_t, const char*> rows[] = {
      {&llmc, "yoke", YOKE_INVALID_ARGUMENT, "does not begin with \"YOKETOK1\""},
      {&yoke, "llmc", YOKE_INVALID_ARGUMENT, "20240520, 20240801"},
      {&yoke, "nanogpt", YOKE_INVALID_ARGUMENT, "data.format = \"yoke\""},
      {&llmc, "nanogpt", YOKE_INVALID_ARGUMENT, "data.format = \"llmc\""},
      {&odd, "nanogpt", YOKE_DATA_LOSS, "has 3 bytes"},
      {&odd, "numpy", YOKE_INVALID_ARGUMENT, "allowed: auto, text, yoke, nanogpt, llmc, npy"},
  };
  for (const auto& [file, format, code, fragment] : rows) {
    const Error e = error_of([&, f = file, as = format] { TokenStream::open(f->path(), as); });
    EXPECT_EQ(e.code(), code) << format;
    EXPECT_THAT(e.what(), HasSubstr(fragment));
  }
}

TEST(TokenStream, NoticesAHeaderThatDoesNotMatchTheFile) {
  const std::string yoke = token_file<uint16_t>({1, 2, 3}, 10, 3);
  const std::pair<std::string, const char*> rows[] = {
      {token_file<uint16_t>({1, 2, 3}, 10, 5), "promises 5 ids"},
      {yoke + "x", "3 and a part of one"},
      {yoke.substr(0, 20), "fewer than its header of 24"},
      {token_file<uint16_t>({}, 0, 0), "a vocabulary of 0"},
      {token_file<uint64_t>({1}, 10, 1), "ids of 8 bytes"},
      {llmc_file(20240520, 1, 2, "ab"), "promises 2 ids"},
      {llmc_file(20240520, 1, -1, "ab"), "promises 4294967295 ids"},
      {llmc_file(20240520, 1, 1, "abc"), "1 and a part of one"},
      {llmc_file(20240520, 2, 1, "ab"), "llm.c's format 20240520 has version 2; supported: 1"},
      {llmc_file(20240801, 1, 1, "abcd"), "supported: 7"},
      {llmc_file(20240520, 1, 1, "ab").substr(0, 1000), "fewer than its header of 1024"},
  };
  for (const auto& [content, fragment] : rows) {
    const ScratchFile file(content, ".bin");
    const Error e = error_of([&] { TokenStream::open(file.path()); });
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS) << fragment;
    EXPECT_THAT(e.what(), HasSubstr(fragment));
    EXPECT_THAT(e.what(), HasSubstr(file.path()));
  }
}

TEST(TokenStream, NoticesAnIdAboveThePromisedVocabularyAtOnce) {
  ScratchFile file(token_file<uint16_t>({1, 10}, 10, 2), ".bin");
  const Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr("token 1 (byte 26) is 10, but its header promises ids below 10"));
}

TEST(TokenStream, NoticesAnIdBeyondTheModelsVocabularyAtOnce) {
  ScratchFile file(raw<uint16_t>({1, 999, 1000}), ".bin");
  EXPECT_NO_THROW(TokenStream::open(file.path(), "nanogpt", 1001));
  const Error e = error_of([&] { TokenStream::open(file.path(), "nanogpt", 1000); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr(file.path()));
  EXPECT_THAT(e.what(), HasSubstr("token 2 (byte 4) is 1000, but model.vocab = 1000"));
}

TEST(TokenStream, NoticesAnIdFarIntoTheFileWhenItIsRead) {
  std::vector<uint16_t> ids(1'100'000, 3);
  ids[1'090'000] = 500;
  ScratchFile file(raw(ids), ".bin");
  const auto stream = TokenStream::open(file.path(), "nanogpt", 300);
  int64_t out[2];
  EXPECT_NO_THROW(stream->read(1'089'998, 2, out));
  EXPECT_THAT(error_of([&] { stream->read(1'089'999, 2, out); }).what(),
              HasSubstr("token 1090000 (byte 2180000) is 500"));
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
