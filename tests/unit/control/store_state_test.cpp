#include "core/control/store_state.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

// Sends a request of connection 1 and returns the value of the only answer, "none" without one.
std::string ask(StoreState& store, MessageType type, std::vector<std::string> fields) {
  fields.insert(fields.begin(), "9");
  const auto answers = store.handle(1, {type, fields});
  return answers.size() == 1 && answers[0].request == "9" ? answers[0].value : "none";
}

TEST(StoreState, KeepsValues) {
  StoreState store;
  EXPECT_EQ(ask(store, MessageType::kCheck, {"a"}), "0");
  EXPECT_EQ(ask(store, MessageType::kSet, {"a", "1"}), "");
  EXPECT_EQ(ask(store, MessageType::kGet, {"a"}), "1");
  EXPECT_EQ(ask(store, MessageType::kCheck, {"a"}), "1");
  EXPECT_EQ(ask(store, MessageType::kCheck, {"a", "b"}), "0");
  EXPECT_EQ(ask(store, MessageType::kAppend, {"a", "23"}), "");
  EXPECT_EQ(ask(store, MessageType::kGet, {"a"}), "123");
  EXPECT_EQ(ask(store, MessageType::kCount, {}), "1");
  EXPECT_EQ(ask(store, MessageType::kDelete, {"a"}), "1");
  EXPECT_EQ(ask(store, MessageType::kDelete, {"a"}), "0");
  EXPECT_EQ(ask(store, MessageType::kCount, {}), "0");
}

TEST(StoreState, AddsNumbers) {
  StoreState store;
  EXPECT_EQ(ask(store, MessageType::kAdd, {"n", "5"}), "5");
  EXPECT_EQ(ask(store, MessageType::kAdd, {"n", "-7"}), "-2");
  EXPECT_EQ(ask(store, MessageType::kGet, {"n"}), "-2");
}

TEST(StoreState, ReplacesAnExpectedValue) {
  StoreState store;
  EXPECT_EQ(ask(store, MessageType::kReplace, {"k", "x", "y"}), "x") << "absent, not expected";
  EXPECT_EQ(ask(store, MessageType::kCheck, {"k"}), "0");
  EXPECT_EQ(ask(store, MessageType::kReplace, {"k", "", "y"}), "y");
  EXPECT_EQ(ask(store, MessageType::kReplace, {"k", "x", "z"}), "y");
  EXPECT_EQ(ask(store, MessageType::kReplace, {"k", "y", "z"}), "z");
}

TEST(StoreState, AnswersWaitingRequestsWhenTheKeyIsSet) {
  StoreState store;
  EXPECT_TRUE(store.handle(1, {MessageType::kGet, {"9", "k"}}).empty());
  EXPECT_TRUE(store.handle(2, {MessageType::kGet, {"4", "k"}}).empty());
  EXPECT_TRUE(store.handle(3, {MessageType::kGet, {"5", "k"}}).empty());
  store.closed(2);
  const auto answers = store.handle(4, {MessageType::kSet, {"1", "k", "v"}});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].connection, 1);
  EXPECT_EQ(answers[0].value, "v");
  EXPECT_EQ(answers[1].connection, 3);
  EXPECT_EQ(answers[2].connection, 4);
}

TEST(StoreState, SurvivesRequestsWithoutFields) {
  for (int type = 1; type <= static_cast<int>(kLastMessageType); ++type) {
    if (!StoreState::handles(static_cast<MessageType>(type))) continue;
    StoreState store;
    store.handle(1, {static_cast<MessageType>(type), {}});
  }
}

}  // namespace
}  // namespace yoke
