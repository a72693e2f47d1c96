// Tests the errors of the C++ layer (yoke/error.hpp): the text in the caller's struct, and the way
// back from a code to an exception.
#include "yoke/error.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace yoke::testing {
namespace {

TEST(ErrorText, IsCutAndTerminatedToTheCallersRoom) {
  const std::string text(10000, 'x');
  for (uint32_t room : {1u, 2u, 16u, 4096u}) {
    YokeError err = make_error();
    err.header.struct_size = static_cast<uint32_t>(offsetof(YokeError, text)) + room;
    std::memset(err.text, '#', sizeof err.text);
    EXPECT_EQ(fill(&err, YOKE_INTERNAL, text), YOKE_INTERNAL);
    EXPECT_EQ(std::strlen(err.text), room - 1);
    if (room < sizeof err.text) {
      EXPECT_EQ(err.text[room], '#') << "wrote behind the end";
    }
  }
}

TEST(ErrorText, AStructWithoutRoomIsLeftAlone) {
  YokeError err = make_error();
  err.header.struct_size = offsetof(YokeError, text);
  err.code = 99;
  EXPECT_EQ(fill(&err, YOKE_INTERNAL, "text"), YOKE_INTERNAL);
  EXPECT_EQ(err.code, 99);
  err = make_error();
  err.header.struct_id = YOKE_ID_BATCH;
  EXPECT_EQ(fill(&err, YOKE_INTERNAL, "text"), YOKE_INTERNAL);
  EXPECT_EQ(err.text[0], '\0');
}

TEST(ErrorText, ChecksTurnACodeBackIntoAnError) {
  YokeError err = make_error();
  EXPECT_NO_THROW(check(YOKE_OK, err));
  fill(&err, YOKE_DATA_LOSS, "shard 3 is damaged", 2, 5);
  try {
    check(YOKE_DATA_LOSS, err);
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_EQ(e.rank(), 2);
    EXPECT_EQ(e.step(), 5);
    EXPECT_STREQ(e.what(), "shard 3 is damaged");
  }
}

}  // namespace
}  // namespace yoke::testing
