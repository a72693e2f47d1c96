#include "core/text/chat_template.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::TokenizerFolder;

// Returns a folder with the tiny tokenizer and the special tokens of chatml and llama3.
TokenizerFolder& chat_folder() {
  static TokenizerFolder folder = [] {
    json file = testing::tiny_tokenizer();
    int id = 261;
    for (const char* token :
         {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
      file["added_tokens"].push_back(
          {{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
    return TokenizerFolder(file);
  }();
  folder.write("tokenizer_config", {{"bos_token", "<|begin|>"}, {"eos_token", "<|end|>"}});
  return folder;
}

const std::vector<ChatMessage> kTalk = {
    {"system", "be"}, {"user", "hel "}, {"assistant", " the"}, {"user", "b"}, {"assistant", "c"}};

// Returns the whole text, and the parts of it that are targets, with a | after each of them.
std::pair<std::string, std::string> texts(const std::string& name,
                                          const std::vector<ChatMessage>& messages) {
  const auto tokenizer = chat_folder().open();
  const auto encoder = tokenizer->encoder();
  const EncodedChat chat = ChatTemplate(name, *tokenizer).encode(messages, *encoder);
  std::string targets;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    if (chat.targets[i] == 1) targets += tokenizer->decode({chat.ids[i]}, true);
    if (chat.targets[i] == 0 && i > 0 && chat.targets[i - 1] == 1) targets += "|";
  }
  return {tokenizer->decode(chat.ids, true), targets};
}

TEST(ChatTemplate, ChatmlMarksTheAnswersAndTheirEnds) {
  EXPECT_EQ(
      texts("chatml", kTalk),
      std::pair(std::string("<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhel <|im_end|>\n"
                            "<|im_start|>assistant\n the<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
                            "<|im_start|>assistant\nc<|im_end|>\n"),
                std::string(" the<|im_end|>|c<|im_end|>|")));
}

TEST(ChatTemplate, Llama3TrimsContentsAndBeginsTheText) {
  const std::vector<ChatMessage> messages = {{"user", " a\u00a0\n"}, {"assistant", " b "}};
  const std::string text =
      "<|begin|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>";
  EXPECT_EQ(texts("llama3", messages), std::pair(text, std::string("b<|eot_id|>")));
  const auto tokenizer = chat_folder().open();
  const auto encoder = tokenizer->encoder();
  EXPECT_EQ(
      tokenizer->decode(ChatTemplate("llama3", *tokenizer).encode_open(messages, *encoder), true),
      text + "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// If each answer were found by encoding the text before it, this would take many minutes.
TEST(ChatTemplate, EncodesAConversationOfManyTurns) {
  constexpr size_t kTurns = 20000;
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < kTurns; ++i)
    messages.insert(messages.end(), {{"user", "hel"}, {"assistant", "b"}});
  const auto tokenizer = chat_folder().open();
  const auto encoder = tokenizer->encoder();
  for (const char* name : {"chatml", "llama3", "mistral", "zephyr"}) {
    const std::string targets = ChatTemplate(name, *tokenizer).encode(messages, *encoder).targets;
    EXPECT_EQ(std::count(targets.begin(), targets.end(), 1), 2 * kTurns) << name;
  }
}

TEST(ChatTemplate, MistralAndZephyrEndAnswersWithTheEndOfText) {
  EXPECT_EQ(texts("mistral", {{"user", "a"}, {"assistant", "b"}, {"user", "c"}}),
            std::pair(std::string("<|begin|>[INST] a [/INST]b<|end|>[INST] c [/INST]"),
                      std::string("b<|end|>|")));
  EXPECT_EQ(texts("zephyr", {{"user", "a"}, {"assistant", "b"}}).second, "b<|end|>|");
  const auto tokenizer = chat_folder().open();
  EXPECT_TRUE(ChatTemplate("zephyr", *tokenizer).ends_turns_with(259));
  EXPECT_FALSE(ChatTemplate("chatml", *tokenizer).ends_turns_with(259));
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ChatTemplate, RefusesWhatATemplateLacks) {
  EXPECT_THAT(error_of([] { texts("lama3", kTalk); }),
              HasSubstr("there is no chat template 'lama3'; allowed: chatml, llama3, mistral, "
                        "zephyr; did you mean 'llama3'?"));
  EXPECT_THAT(error_of([] { texts("mistral", kTalk); }),
              HasSubstr("messages[0]: the role \"system\" is not one of the chat template mistral; "
                        "allowed: user, assistant"));
  EXPECT_THAT(error_of([] {
                texts("mistral", {{"user", "a"}, {"user", "b"}});
              }),
              HasSubstr("messages[1]: the role is \"user\""));
  EXPECT_THAT(error_of([] {
                texts("chatml", {{"tool", "a"}});
              }),
              HasSubstr("allowed: system, user, assistant"));
  const TokenizerFolder plain;
  const auto tokenizer = plain.open();
  EXPECT_THAT(error_of([&] { ChatTemplate("chatml", *tokenizer); }),
              HasSubstr("needs the token <|im_start|> among the added tokens of"));
  EXPECT_THAT(error_of([&] { ChatTemplate("zephyr", *tokenizer); }),
              HasSubstr("needs \"eos_token\""));
}

// A token of the vocabulary that is not added would be split into several tokens.
TEST(ChatTemplate, RefusesTokensThatAreNotAdded) {
  json file = testing::tiny_tokenizer();
  file["model"]["vocab"]["<|im_start|>"] = 261;
  file["model"]["vocab"]["<|im_end|>"] = 262;
  TokenizerFolder folder(file);
  folder.write("tokenizer_config", {{"bos_token", "<|begin|>"}, {"eos_token", "hel"}});
  const auto tokenizer = folder.open();
  EXPECT_THAT(error_of([&] { ChatTemplate("chatml", *tokenizer); }),
              HasSubstr("the chat template chatml needs the token <|im_start|> among the added "
                        "tokens of " +
                        folder.path()));
  EXPECT_THAT(error_of([&] { ChatTemplate("mistral", *tokenizer); }),
              HasSubstr("needs the token hel among the added tokens"));
  folder.write("tokenizer_config", {{"bos_token", "hel"}, {"eos_token", "<|end|>"}});
  EXPECT_THAT(error_of([&] { ChatTemplate("mistral", *folder.open()); }),
              HasSubstr("needs the token hel among the added tokens"));
  // The text of this token, " t", is no name of a token.
  std::filesystem::remove(folder.path() + "/tokenizer_config.json");
  folder.write("config", {{"eos_token_id", 258}});
  EXPECT_THAT(error_of([&] { ChatTemplate("zephyr", *folder.open()); }),
              HasSubstr("needs the token  t among the added tokens"));
}

// The text up to the end of the empty answer ends with a token that takes the white space before
// it, and the whole text has another token there: the first differing token lies before the answer.
TEST(ChatTemplate, AnAnswerThatLiesInsideATokenIsNoTarget) {
  json file = testing::tiny_tokenizer();
  file["added_tokens"] = {
      {{"id", 259}, {"content", "<|end|>"}, {"lstrip", true}, {"normalized", true}},
      {{"id", 260}, {"content", "<|end|>\n"}, {"normalized", true}}};
  TokenizerFolder folder(file);
  folder.write("tokenizer_config", {{"eos_token", "<|end|>"}});
  const auto tokenizer = folder.open();
  const auto encoder = tokenizer->encoder();
  const EncodedChat chat =
      ChatTemplate("zephyr", *tokenizer).encode({{"user", "a"}, {"assistant", ""}}, *encoder);
  EXPECT_EQ(chat.targets, std::string(chat.ids.size(), '\0'));
}

TEST(ChatTemplate, ReadsTheMessagesOfAnObject) {
  const auto error = [](const json& object) { return error_of([&] { chat_messages(object); }); };
  EXPECT_EQ(chat_messages({{"messages", {{{"role", "user"}, {"content", "a"}}}}})[0].content, "a");
  EXPECT_THAT(error({{"text", "a"}}), HasSubstr("\"messages\" must be a list"));
  EXPECT_THAT(error({{"messages", json::array()}}), HasSubstr("one or more"));
  EXPECT_THAT(error({{"messages", {{{"role", "user"}}}}}),
              HasSubstr("messages[0] has no text \"content\""));
  EXPECT_THAT(error({{"messages", {"a"}}}), HasSubstr("messages[0] is not an object"));
}

}  // namespace
}  // namespace yoke
