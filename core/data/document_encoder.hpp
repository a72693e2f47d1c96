// Turns documents into token ids, for `yoke data prepare`. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/document_input.hpp"
#include "core/text/chat_template.hpp"
#include "core/text/tokenizer.hpp"

namespace yoke {

struct EncodingOptions {
  std::string field = "text";  // key of the text in an object of .jsonl, or column of Parquet
  bool bos = false;            // documents begin with the tokenizer's token for it
  std::optional<int32_t> end;  // token that ends each document
  std::string chat;  // name of a template: each object or row is a conversation; "" = a text
};

// EncodedDocuments are the tokens of consecutive documents.
struct EncodedDocuments {
  std::vector<int32_t> ids;
  std::string mask;  // a byte for each id of a conversation: 1 = it is a target, 0 = it is not
  int64_t documents = 0;
  int64_t empty = 0;  // documents without text, which are left out
};

// Belongs to one thread. The tokenizer must outlive it.
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const EncodingOptions& options);
  // Appends the documents of a part of the input. Throws Error(DATA_LOSS) with the file and the
  // place in it if a document is not as expected.
  void encode(const DocumentInput& input, const InputPart& part, EncodedDocuments& out);

 private:
  void encode_line(std::string_view line, EncodedDocuments& out);
  void encode_text(std::string_view text, EncodedDocuments& out);
  void encode_chat(const std::vector<ChatMessage>& messages, EncodedDocuments& out);

  const Tokenizer& tokenizer_;
  EncodingOptions options_;
  std::unique_ptr<TextEncoder> encoder_;
  std::optional<ChatTemplate> chat_;
};

}  // namespace yoke
