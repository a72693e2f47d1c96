#include "core/data/document_encoder.hpp"

#include <nlohmann/json.hpp>

#include "core/base/strict_json.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns the text of one object of a .jsonl file.
std::string text_field(const nlohmann::json& object, const std::string& field) {
  const auto found = object.find(field);
  if (found == object.end()) {
    std::string keys;
    for (const auto& [key, value] : object.items()) keys += (keys.empty() ? "" : ", ") + key;
    throw Error(YOKE_DATA_LOSS,
                "the field \"" + field + "\" is missing; the object has: " + keys +
                    "; name the field of the text with --field");
  }
  if (!found->is_string()) throw Error(YOKE_DATA_LOSS, "the field \"" + field + "\" is not a text");
  return found->get<std::string>();
}

// Returns the messages of a row.
std::vector<ChatMessage> checked(const std::vector<MessageCell>& cells) {
  if (cells.empty()) throw Error(YOKE_DATA_LOSS, "\"messages\" is null or has no message");
  std::vector<ChatMessage> messages;
  for (const MessageCell& cell : cells) {
    for (const auto& [name, field] :
         {std::pair("role", &cell.role), std::pair("content", &cell.content)}) {
      if (!field->has_value())
        throw Error(YOKE_DATA_LOSS, concat("messages[", messages.size(), "].", name, " is null"));
    }
    messages.push_back({*cell.role, *cell.content});
  }
  return messages;
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, const EncodingOptions& options)
    : tokenizer_(tokenizer), options_(options), encoder_(tokenizer.encoder()) {
  if (!options.chat.empty()) chat_.emplace(options.chat, tokenizer);
}

void DocumentEncoder::encode(const DocumentInput& input,
                             const InputPart& part,
                             EncodedDocuments& out) {
  input.for_each_document(part, [&](const Document& document, size_t place) {
    try {
      if (document.messages != nullptr) {
        encode_chat(checked(*document.messages), out);
      } else if (input.format() == DocumentInput::Format::kJsonl) {
        encode_line(document.text, out);
      } else {
        encode_text(document.text, out);
      }
    } catch (const Error& e) {
      throw Error(YOKE_DATA_LOSS, input.name_of(place) + ": " + e.what());
    }
  });
}

void DocumentEncoder::encode_line(std::string_view line, EncodedDocuments& out) {
  const nlohmann::json object = parse_json_object(std::string(line), "the line");
  if (chat_) {
    encode_chat(chat_messages(object), out);
  } else {
    encode_text(text_field(object, options_.field), out);
  }
}

void DocumentEncoder::encode_text(std::string_view text, EncodedDocuments& out) {
  if (text.empty()) {
    ++out.empty;
    return;
  }
  if (options_.bos) out.ids.push_back(tokenizer_.facts().bos.value());
  encoder_->encode(text, out.ids);
  if (options_.end) out.ids.push_back(*options_.end);
  ++out.documents;
}

// The template writes the token that begins a text, where it has one. What is added after the last
// turn is no part of an answer.
void DocumentEncoder::encode_chat(const std::vector<ChatMessage>& messages, EncodedDocuments& out) {
  const EncodedChat chat = chat_->encode(messages, *encoder_);
  out.ids.insert(out.ids.end(), chat.ids.begin(), chat.ids.end());
  out.mask += chat.targets;
  if (options_.end) {
    out.ids.push_back(*options_.end);
    out.mask += '\0';
  }
  ++out.documents;
}

}  // namespace yoke
