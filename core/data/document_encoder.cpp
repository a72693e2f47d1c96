#include "core/data/document_encoder.hpp"

#include <nlohmann/json.hpp>

#include "core/base/strict_json.hpp"
#include "yoke/error.hpp"

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

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, const EncodingOptions& options)
    : tokenizer_(tokenizer), options_(options), encoder_(tokenizer.encoder()) {
  if (!options.chat.empty()) chat_.emplace(options.chat, tokenizer);
}

void DocumentEncoder::encode(const TextInput& input,
                             size_t begin,
                             size_t end,
                             EncodedDocuments& out) {
  input.for_each_document(begin, end, [&](std::string_view document, size_t offset) {
    try {
      if (input.is_jsonl()) {
        const nlohmann::json object = parse_json_object(std::string(document), "the line");
        if (chat_) {
          encode_chat(object, out);
        } else {
          encode_text(text_field(object, options_.field), out);
        }
      } else {
        encode_text(document, out);
      }
    } catch (const Error& e) {
      throw Error(YOKE_DATA_LOSS, input.place(offset) + ": " + e.what());
    }
  });
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
void DocumentEncoder::encode_chat(const nlohmann::json& object, EncodedDocuments& out) {
  const EncodedChat chat = chat_->encode(chat_messages(object), *encoder_);
  out.ids.insert(out.ids.end(), chat.ids.begin(), chat.ids.end());
  out.mask += chat.targets;
  if (options_.end) {
    out.ids.push_back(*options_.end);
    out.mask += '\0';
  }
  ++out.documents;
}

}  // namespace yoke
