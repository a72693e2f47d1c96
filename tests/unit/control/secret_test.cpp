#include "core/control/secret.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

Secret from(const std::string& path) {
  return Secret::from_environment([&](const char*) { return path.c_str(); });
}

std::string refusal(const std::string& path) {
  try {
    from(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    text += two;
  }
  return text;
}

TEST(Secret, ProvesItselfByHmacSha256) {
  // Computed by `openssl dgst -sha256 -hmac 0123456789abcdef` from the text of secret.cpp.
  const Secret secret("0123456789abcdef");
  EXPECT_EQ(hex(secret.proof("hub", "H", "M")),
            "342758d840297630504dd17cba81744675bfa7b14bcd61e138331bf913c92e2d");
  EXPECT_NE(secret.proof("hub", "H", "M"), secret.proof("member", "H", "M"));
  EXPECT_NE(secret.proof("hub", "H", "M"), secret.proof("hub", "M", "H"));
  EXPECT_EQ(Secret().proof("hub", "H", "M"), "");
}

TEST(Secret, ComesFromAPrivateFile) {
  const testing::TempFolder folder;
  const std::string path = folder / "secret";
  std::ofstream(path) << "0123456789abcdef\n";
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(from(path).proof("hub", "H", "M"), Secret("0123456789abcdef").proof("hub", "H", "M"));
  ::chmod(path.c_str(), 0640);
  EXPECT_THAT(refusal(path), HasSubstr("other users may use the file (mode 640)"));
  ::chmod(path.c_str(), 0600);
  std::ofstream(path) << "short\n";
  EXPECT_THAT(refusal(path), HasSubstr("the file has 5 bytes; allowed: 16"));
  EXPECT_THAT(refusal(path + "-not-there"), HasSubstr("No such file"));
  EXPECT_FALSE(Secret::from_environment([](const char*) { return nullptr; }).given());
}

TEST(Secret, ComesFromADescriptor) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  ASSERT_EQ(::write(fds[1], "0123456789abcdef", 16), 16);
  ::close(fds[1]);
  EXPECT_TRUE(from("/dev/fd/" + std::to_string(fds[0])).given());
  ::close(fds[0]);
}

TEST(MakeNonce, NeverRepeats) {
  EXPECT_EQ(make_nonce().size(), 32u);
  EXPECT_NE(make_nonce(), make_nonce());
}

TEST(SameProof, ComparesAllBytes) {
  EXPECT_TRUE(same_proof("abc", "abc"));
  EXPECT_TRUE(same_proof("", ""));
  EXPECT_FALSE(same_proof("abc", "abd"));
  EXPECT_FALSE(same_proof("abc", "ab"));
}

}  // namespace
}  // namespace yoke
