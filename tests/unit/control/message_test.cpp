#include "core/control/message.hpp"

#include <gtest/gtest.h>

#include <random>

#include "yoke/error.hpp"

namespace yoke {
namespace {

std::vector<Message> messages_in(const std::string& bytes, size_t piece) {
  FrameReader reader(1000);
  std::vector<Message> messages;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.append(bytes.data() + at, std::min(piece, bytes.size() - at));
    while (auto message = reader.next()) messages.push_back(*message);
  }
  return messages;
}

TEST(FrameReader, ReadsMessagesFromPiecesOfAnySize) {
  const std::string zeros(3, '\0');
  const std::string bytes = encode({MessageType::kHello, {"a", "", zeros}}) +
                            encode({MessageType::kGoodbye, {}}) +
                            encode({MessageType::kSet, {"1", "key", std::string(300, 'x')}});
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const auto messages = messages_in(bytes, piece);
    ASSERT_EQ(messages.size(), 3u) << piece;
    EXPECT_EQ(messages[0].type, MessageType::kHello);
    EXPECT_EQ(messages[0].fields, (std::vector<std::string>{"a", "", zeros}));
    EXPECT_EQ(messages[1].type, MessageType::kGoodbye);
    EXPECT_TRUE(messages[1].fields.empty());
    EXPECT_EQ(messages[2].fields[2], std::string(300, 'x'));
  }
}

TEST(FrameReader, RefusesWhatIsNoFrame) {
  const std::string good = encode({MessageType::kHello, {"field"}});
  std::string longer_field = good, unknown_type = good, no_type(4, '\0');
  longer_field[5] = 100;
  unknown_type[4] = 99;
  for (const std::string& bad :
       {longer_field, unknown_type, no_type, good + "GET / HTTP/1.1\r\n"}) {
    EXPECT_THROW(messages_in(bad, bad.size()), Error);
  }
}

TEST(FrameReader, RefusesALargeFrameBeforeItArrives) {
  FrameReader reader(1000);
  reader.append("\xff\xff\xff\x7f", 4);
  EXPECT_THROW(reader.next(), Error);
}

// A fixed seed, so that a failure can be repeated.
TEST(FrameReader, SurvivesRandomBytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = encode({MessageType::kJoin, {"a", "bc", "def"}});
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      messages_in(bytes, 1 + random() % bytes.size());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    }
  }
}

TEST(NumberIn, AcceptsWholeNumbersOnly) {
  EXPECT_EQ(number_in("0"), 0);
  EXPECT_EQ(number_in("123456789012"), 123456789012);
  for (const char* bad : {"", "-1", "1x", " 1", "99999999999999999999"})
    EXPECT_EQ(number_in(bad), -1) << bad;
}

}  // namespace
}  // namespace yoke
