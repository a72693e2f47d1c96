// Conversations as texts, in the layouts that families of models were trained on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/text/tokenizer.hpp"

namespace yoke {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

// Returns the messages of {"messages": [{"role": "user", "content": "Hello"}, ...]}. Throws
// Error(DATA_LOSS) if a field is missing or has the wrong type, or if there is no message.
std::vector<ChatMessage> chat_messages(const nlohmann::json& object);

// The token ids of a conversation.
struct EncodedChat {
  std::vector<int32_t> ids;
  std::string targets;  // one byte for each id: 1 in answers and the token that ends them, else 0
};

struct ChatLayout;  // the texts of one template

// Immutable; may be used from any thread. The tokenizer must outlive it.
class ChatTemplate {
 public:
  // Throws Error(INVALID_ARGUMENT) with all names and the nearest one if there is no such template,
  // or if a token of the template is no added token of the tokenizer.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer);

  // Returns the conversation. Throws Error: DATA_LOSS for a role, or an order of roles, that the
  // template lacks; otherwise as the encoder does.
  EncodedChat encode(const std::vector<ChatMessage>& messages, TextEncoder& encoder) const;
  // Returns the ids of the conversation and of the beginning of an answer, which a model then
  // writes. Throws the same errors.
  std::vector<int32_t> encode_open(const std::vector<ChatMessage>& messages,
                                   TextEncoder& encoder) const;

  // Returns the token that ends an answer.
  int32_t answer_end() const { return answer_end_; }
  // Returns true if the token ends the turns of the template, and not only a conversation.
  bool ends_turns_with(int32_t id) const { return id == answer_end_; }

 private:
  struct Rendered;
  Rendered render(const std::vector<ChatMessage>& messages) const;
  void check_roles(const std::vector<ChatMessage>& messages) const;
  // Replaces {bos} and {eos} by the tokens of the tokenizer.
  std::string with_ends(const std::string& text) const;

  const ChatLayout& layout_;
  std::string bos_, eos_;
  int32_t answer_end_ = 0;
};

}  // namespace yoke
