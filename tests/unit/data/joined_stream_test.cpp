#include "core/data/joined_stream.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <memory>

#include "tests/unit/data/scratch_file.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

NamedStream open(const ScratchFile& file, const std::string& format = "auto") {
  return {file.path(), TokenStream::open(file.path(), format)};
}

// The oracle is one file with the contents of all parts.
TEST(JoinedStream, ReadsLikeOneFile) {
  EXPECT_TRUE(rc::check([] {
    const auto texts = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(
        rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127))));
    std::vector<std::unique_ptr<ScratchFile>> files;
    std::vector<NamedStream> parts;
    std::string all;
    for (const std::string& text : texts) {
      files.push_back(std::make_unique<ScratchFile>(text));
      parts.push_back(open(*files.back(), "text"));
      all += text;
    }
    const auto joined = join_streams("data.path", parts);
    RC_ASSERT(joined->size() == static_cast<int64_t>(all.size()));
    RC_ASSERT(joined->vocab() == 256);
    const auto begin = *rc::gen::inRange<size_t>(0, all.size() + 1);
    const auto count = *rc::gen::inRange<size_t>(0, all.size() - begin + 1);
    std::vector<int64_t> ids(count);
    joined->read(static_cast<int64_t>(begin), static_cast<int64_t>(count), ids.data());
    RC_ASSERT(std::string(ids.begin(), ids.end()) == all.substr(begin, count));
  }));
}

TEST(JoinedStream, RefusesReadsBeyondItsEnd) {
  const ScratchFile a("ab"), b("c");
  const auto joined = join_streams("data.path", {open(a), open(b)});
  int64_t out[8];
  EXPECT_EQ(error_of([&] { joined->read(2, 2, out); }).code(), YOKE_INVALID_ARGUMENT);
  EXPECT_EQ(error_of([&] { joined->read(-1, 2, out); }).code(), YOKE_INVALID_ARGUMENT);
  EXPECT_NO_THROW(joined->read(3, 0, out));
}

TEST(JoinedStream, NamesTheFileWithAWrongId) {
  const ScratchFile good(token_file<uint16_t>({1, 2}, 9, 2), ".bin");
  std::vector<uint16_t> ids(3000, 1);
  ids[2500] = 9;
  const ScratchFile bad(token_file<uint16_t>(ids, 9, ids.size()), ".bin");
  const FileUse use{"data.path", 1024};
  const auto joined = join_streams(
      "data.path", {open(good), {bad.path(), TokenStream::open(bad.path(), "auto", 0, use)}});
  std::vector<int64_t> out(3000);
  const Error e = error_of([&] { joined->read(0, 3000, out.data()); });
  EXPECT_THAT(e.what(), HasSubstr(bad.path()));
  EXPECT_THAT(e.what(), HasSubstr("token 2500 (byte 5024) is 9"));
}

TEST(JoinedStream, RefusesFilesOfDifferentFormatsOrVocabularies) {
  const ScratchFile text("abc"), small(token_file<uint16_t>({1}, 9, 1), ".bin"),
      large(token_file<uint32_t>({1}, 10, 1), ".bin"),
      npy(npy_file(npy_literal("<u2", 1), raw<uint16_t>({1})), ".npy");
  const std::vector<std::vector<NamedStream>> rows = {
      {open(small), open(text)}, {open(small), open(large)}, {open(small), open(small), open(npy)}};
  for (const std::vector<NamedStream>& parts : rows) {
    const Error e = error_of([&] { join_streams("eval.path", parts); });
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr("eval.path joins"));
    EXPECT_THAT(e.what(), HasSubstr(parts.front().path));
    EXPECT_THAT(e.what(), HasSubstr(parts.back().path));
  }
}

TEST(JoinedStream, ComparesTheTokensOfSources) {
  const ScratchFile text("abc"), nine(token_file<uint16_t>({1}, 9, 1), ".bin"),
      ten(token_file<uint16_t>({1}, 10, 1), ".bin"),
      npy(npy_file(npy_literal("<u2", 1), raw<uint16_t>({1})), ".npy");
  const auto refused = [](const NamedStream& a, const NamedStream& b) {
    return error_of([&] { require_same_tokens("data.path", a, b); }).code() ==
           YOKE_INVALID_ARGUMENT;
  };
  EXPECT_FALSE(refused(open(nine), open(nine)));
  EXPECT_FALSE(refused(open(nine), open(npy))) << "a .npy file declares no vocabulary";
  EXPECT_TRUE(refused(open(nine), open(ten)));
  EXPECT_TRUE(refused(open(text), open(npy)));
  EXPECT_TRUE(refused(open(npy), open(text)));
}

}  // namespace
}  // namespace yoke
