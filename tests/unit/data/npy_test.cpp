#include "core/data/npy.hpp"

#include <gmock/gmock.h>

#include "tests/unit/data/scratch_file.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The bytes that NumPy 2 writes for numpy.save(f, numpy.array([1, 50256, 7], dtype="<u2")).
TEST(Npy, ReadsWhatNumpyWrites) {
  const std::string file = std::string("\x93NUMPY\x01\x00v\x00", 10) +
                           "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }" +
                           std::string(60, ' ') + "\n" + std::string("\x01\x00P\xc4\x07\x00", 6);
  EXPECT_EQ(file, npy_file(npy_literal("<u2", 3), raw<uint16_t>({1, 50256, 7})));
  const ScratchFile scratch(file, ".npy");
  const auto stream = TokenStream::open(scratch.path());
  EXPECT_STREQ(stream->format(), "npy");
  EXPECT_EQ(stream->vocab(), 0);
  EXPECT_THAT(all_ids(*stream), ElementsAre(1, 50256, 7));
}

TEST(Npy, ReadsAllFourTypesAndThreeVersions) {
  const std::tuple<const char*, std::string, int> rows[] = {{"<u2", raw<uint16_t>({65535, 2}), 1},
                                                            {"<u4", raw<uint32_t>({65535, 2}), 2},
                                                            {"<i4", raw<int32_t>({65535, 2}), 3},
                                                            {"<i8", raw<int64_t>({65535, 2}), 2}};
  for (const auto& [dtype, data, version] : rows) {
    const ScratchFile file(npy_file(npy_literal(dtype, 2), data, version), ".npy");
    EXPECT_THAT(all_ids(*TokenStream::open(file.path())), ElementsAre(65535, 2)) << dtype;
  }
}

TEST(Npy, ReadsAnEmptyArray) {
  const ScratchFile file(npy_file(npy_literal("<u2", 0), ""), ".npy");
  EXPECT_EQ(TokenStream::open(file.path(), "npy")->size(), 0);
}

TEST(Npy, RefusesNegativeAndLargeIdsWithTheirPlace) {
  const ScratchFile file(npy_file(npy_literal("<i8", 3), raw<int64_t>({4, 5, -1})), ".npy");
  Error e = error_of([&] { TokenStream::open(file.path()); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr("token 2 (byte 144) is -1; allowed: 0 or more"));
  e = error_of([&] { TokenStream::open(file.path(), "auto", 5); });
  EXPECT_THAT(e.what(), HasSubstr("token 1 (byte 136) is 5, but model.vocab = 5"));
}

TEST(Npy, RefusesOtherArrays) {
  const std::string ids = raw<uint16_t>({1, 2});
  const auto shaped = [&](const std::string& shape, const std::string& fortran = "False") {
    return npy_file("{'descr': '<u2', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }",
                    ids);
  };
  const std::tuple<std::string, int32_t, const char*> rows[] = {
      {npy_file(npy_literal(">u2", 2), ids),
       YOKE_INVALID_ARGUMENT,
       "of dtype '>u2'; allowed: '<u2'"},
      {npy_file(npy_literal("<f8", 2), ids), YOKE_INVALID_ARGUMENT, "of dtype '<f8'"},
      {npy_file(npy_literal("|u1", 2), ids), YOKE_INVALID_ARGUMENT, "of dtype '|u1'"},
      {npy_file("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,), }", ids),
       YOKE_INVALID_ARGUMENT,
       "of dtype [('a'"},
      {shaped("(1, 2)"), YOKE_INVALID_ARGUMENT, "of the shape (1, 2); allowed: one dimension"},
      {shaped("()"), YOKE_INVALID_ARGUMENT, "of the shape ()"},
      {shaped("(2,)", "True"), YOKE_INVALID_ARGUMENT, "in Fortran order"},
      {npy_file(npy_literal("<u2", 2), ids, 4), YOKE_INVALID_ARGUMENT, "of version 4"},
      {npy_file(npy_literal("<u2", 5), ids), YOKE_DATA_LOSS, "promises 5 ids of 2 bytes, but 4"},
      {npy_file("{'fortran_order': False, 'shape': (2,), }", ids), YOKE_DATA_LOSS, "lacks 'descr'"},
      {npy_file("{'descr'", ids), YOKE_DATA_LOSS, "has no value for 'descr'"},
      {npy_file(npy_literal("<u2", 2), ids).substr(0, 100), YOKE_DATA_LOSS, "is cut off"},
      {npy_file(npy_literal("<u2", 2), ids).substr(0, 9), YOKE_DATA_LOSS, "is cut off"},
  };
  for (const auto& [content, code, fragment] : rows) {
    const ScratchFile file(content, ".npy");
    const Error e = error_of([&] { TokenStream::open(file.path()); });
    EXPECT_EQ(e.code(), code) << fragment;
    EXPECT_THAT(e.what(), HasSubstr(file.path()));
    EXPECT_THAT(e.what(), HasSubstr(fragment));
  }
}

TEST(Npy, IsNotTakenForAnotherFormat) {
  const ScratchFile npy(npy_file(npy_literal("<u2", 1), raw<uint16_t>({1})), ".bin");
  EXPECT_THAT(error_of([&] { TokenStream::open(npy.path(), "nanogpt"); }).what(),
              HasSubstr("data.format = \"npy\""));
  const ScratchFile text("abc");
  EXPECT_THAT(error_of([&] { TokenStream::open(text.path(), "npy"); }).what(),
              HasSubstr("does not begin as a .npy file"));
}

}  // namespace
}  // namespace yoke
