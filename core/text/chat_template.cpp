// Templates are known by name: a tokenizer's own template is a program in Jinja's language, which
// would need an interpreter.
//
// A conversation is encoded as one text, as transformers encodes it, and the encoder counts the
// tokens before the beginning and the end of each answer. A token across the beginning of an answer
// counts as a part of it. Encoding each turn alone was rejected: tokens could then differ from
// those of transformers where two turns meet, and some tokenizers add a space to each text.
#include "core/text/chat_template.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/base/utf8.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {

// {bos} and {eos} stand for the tokens of the tokenizer.
struct ChatLayout {
  struct Turn {
    const char* role;
    const char* begin;  // nullptr = the template lacks the role
    const char* end;
  };
  const char* name;
  const char* begin;  // begins a conversation
  std::array<Turn, 3> turns;
  const char* answer_end;            // token that ends an answer, with which its `end` begins
  std::vector<const char*> control;  // tokens that the tokenizer must have
  bool trims = false;                // white space around contents is dropped
  bool alternates = false;           // user and assistant take turns, and the user begins
};

namespace {

constexpr char kUser[] = "user", kAssistant[] = "assistant", kSystem[] = "system";

const std::vector<ChatLayout>& layouts() {
  static const std::vector<ChatLayout> all = {
      {"chatml",
       "",
       {{{kSystem, "<|im_start|>system\n", "<|im_end|>\n"},
         {kUser, "<|im_start|>user\n", "<|im_end|>\n"},
         {kAssistant, "<|im_start|>assistant\n", "<|im_end|>\n"}}},
       "<|im_end|>",
       {"<|im_start|>", "<|im_end|>"}},
      {"llama3",
       "{bos}",
       {{{kSystem, "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
         {kUser, "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
         {kAssistant, "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}}},
       "<|eot_id|>",
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       true},
      {"mistral",
       "{bos}",
       {{{kSystem, nullptr, nullptr}, {kUser, "[INST] ", " [/INST]"}, {kAssistant, "", "{eos}"}}},
       "{eos}",
       {},
       false,
       true},
      {"zephyr",
       "",
       {{{kSystem, "<|system|>\n", "{eos}\n"},
         {kUser, "<|user|>\n", "{eos}\n"},
         {kAssistant, "<|assistant|>\n", "{eos}\n"}}},
       "{eos}",
       {}},
  };
  return all;
}

const ChatLayout& find_layout(const std::string& name) {
  std::vector<std::string> names;
  for (const ChatLayout& layout : layouts()) {
    if (name == layout.name) return layout;
    names.emplace_back(layout.name);
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "there is no chat template '" + name + "'; allowed: " + join(names) +
                  did_you_mean(name, names));
}

const ChatLayout::Turn* find_turn(const ChatLayout& layout, const std::string& role) {
  for (const ChatLayout::Turn& turn : layout.turns)
    if (role == turn.role && turn.begin != nullptr) return &turn;
  return nullptr;
}

// Returns true for the white space that Python's str.strip() drops, which templates use.
bool is_stripped(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string trimmed(const std::string& text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    if (!c.valid || !is_stripped(c.code)) {
      begin = std::min(begin, at);
      end = at + c.bytes;
    }
    at += c.bytes;
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

std::string text_of(const nlohmann::json& message, const std::string& where, const char* key) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_string())
    throw Error(YOKE_DATA_LOSS, where + " has no text \"" + key + "\"");
  return found->get<std::string>();
}

}  // namespace

std::vector<ChatMessage> chat_messages(const nlohmann::json& object) {
  const auto list = object.find("messages");
  if (list == object.end() || !list->is_array() || list->empty())
    throw Error(YOKE_DATA_LOSS, "the field \"messages\" must be a list of one or more messages");
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& message : *list) {
    const std::string where = concat("messages[", messages.size(), "]");
    if (!message.is_object()) throw Error(YOKE_DATA_LOSS, where + " is not an object");
    messages.push_back({text_of(message, where, "role"), text_of(message, where, "content")});
  }
  return messages;
}

// A conversation as text, and where its answers begin and end, in turn.
struct ChatTemplate::Rendered {
  std::string text;
  std::vector<size_t> ends;
};

ChatTemplate::ChatTemplate(const std::string& name, const Tokenizer& tokenizer)
    : layout_(find_layout(name)) {
  const TokenizerFacts& facts = tokenizer.facts();
  const std::string needs = "the chat template " + name + " needs ";
  // Other tokens are not found in a text as a whole.
  const auto require_added = [&](const std::string& token) {
    const std::optional<int32_t> id = tokenizer.id_of(token);
    if (id && tokenizer.is_added(*id)) return *id;
    throw Error(YOKE_INVALID_ARGUMENT,
                needs + "the token " + token + " among the added tokens of " + facts.path +
                    "; choose the template of the model");
  };
  std::string texts = layout_.begin;
  for (const ChatLayout::Turn& turn : layout_.turns)
    if (turn.begin != nullptr) texts += std::string(turn.begin) + turn.end;
  const auto end =
      [&](const char* place, const char* key, std::optional<int32_t> id) -> std::string {
    if (texts.find(place) == texts.npos) return "";
    if (!id) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  needs + "\"" + key + "\" in tokenizer_config.json beside " + facts.path);
    }
    const std::string token = tokenizer.decode({*id}, true);
    require_added(token);
    return token;
  };
  bos_ = end("{bos}", "bos_token", facts.bos);
  eos_ = end("{eos}", "eos_token", facts.eos);
  for (const char* control : layout_.control) require_added(control);
  answer_end_ = require_added(with_ends(layout_.answer_end));
}

std::string ChatTemplate::with_ends(const std::string& text) const {
  return replace_all(replace_all(text, "{bos}", bos_), "{eos}", eos_);
}

void ChatTemplate::check_roles(const std::vector<ChatMessage>& messages) const {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = concat("messages[", i, "]: ");
    const std::string& role = messages[i].role;
    if (find_turn(layout_, role) == nullptr) {
      std::string allowed;
      for (const ChatLayout::Turn& turn : layout_.turns)
        if (turn.begin != nullptr) allowed += concat(allowed.empty() ? "" : ", ", turn.role);
      throw Error(YOKE_DATA_LOSS,
                  where + "the role \"" + role + "\" is not one of the chat template " +
                      layout_.name + "; allowed: " + allowed);
    }
    const char* expected = i % 2 == 0 ? kUser : kAssistant;
    if (layout_.alternates && role != expected) {
      throw Error(YOKE_DATA_LOSS,
                  where + "the role is \"" + role + "\", but the chat template " + layout_.name +
                      " needs user and assistant in turn, so that \"" + expected + "\" is next");
    }
  }
}

ChatTemplate::Rendered ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  check_roles(messages);
  Rendered chat{with_ends(layout_.begin), {}};
  for (const ChatMessage& message : messages) {
    const ChatLayout::Turn& turn = *find_turn(layout_, message.role);
    chat.text += with_ends(turn.begin);
    const size_t begin = chat.text.size();
    chat.text += layout_.trims ? trimmed(message.content) : message.content;
    const size_t end = chat.text.size() + with_ends(layout_.answer_end).size();
    chat.text += with_ends(turn.end);
    if (message.role == kAssistant) chat.ends.insert(chat.ends.end(), {begin, end});
  }
  return chat;
}

EncodedChat ChatTemplate::encode(const std::vector<ChatMessage>& messages,
                                 TextEncoder& encoder) const {
  const Rendered chat = render(messages);
  EncodedChat encoded;
  const std::vector<size_t> before = encoder.encode(chat.text, chat.ends, encoded.ids);
  encoded.targets.assign(encoded.ids.size(), 0);
  for (size_t i = 0; i + 1 < before.size(); i += 2) {
    const size_t first = before[i], last = std::max(first, before[i + 1]);
    std::fill_n(encoded.targets.begin() + static_cast<std::ptrdiff_t>(first), last - first, 1);
  }
  return encoded;
}

std::vector<int32_t> ChatTemplate::encode_open(const std::vector<ChatMessage>& messages,
                                               TextEncoder& encoder) const {
  std::vector<int32_t> ids;
  encoder.encode(render(messages).text + with_ends(find_turn(layout_, kAssistant)->begin), ids);
  return ids;
}

}  // namespace yoke
