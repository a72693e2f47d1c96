// A file of documents for `yoke data prepare`: a text, a .jsonl file or a Parquet file. No
// LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Says what ends a document of a text file. Each line of a .jsonl file is a document, and each row
// of a Parquet file.
struct DocumentSplit {
  enum class Kind { kWholeFile, kBlankLines, kSeparator };
  Kind kind = Kind::kWholeFile;
  std::string separator;  // not empty, for kSeparator
};

// A message of a conversation in a Parquet file. A field that is null there has no value.
struct MessageCell {
  std::optional<std::string> role, content;
};

// A document: a text, a line of a .jsonl file, or a conversation of a Parquet file.
struct Document {
  std::string_view text;
  const std::vector<MessageCell>* messages = nullptr;  // only for conversations
};

// Consecutive documents of an input.
struct InputPart {
  size_t begin = 0, end = 0;            // places in the input
  std::shared_ptr<const void> content;  // what the input has read to take the part; may be null
};

// An input has places, from 0 to size(), at which parts begin and end: bytes or rows.
class DocumentInput {
 public:
  enum class Format : uint8_t { kText, kJsonl, kParquet };

  virtual ~DocumentInput() = default;
  virtual Format format() const = 0;
  virtual size_t size() const = 0;
  // Returns how many bytes of the file lie before a place, for a progress bar.
  virtual uint64_t bytes_before(size_t place) const = 0;

  // Returns the part that begins at `begin`, which is 0 or the end of a part. It has `bytes` bytes
  // of text or more, unless the file ends. The parts do not depend on anything but the file and
  // `bytes`. One thread at a time. Throws Error(DATA_LOSS) if the file is damaged.
  virtual InputPart take(size_t begin, size_t bytes) = 0;

  // Calls `visit` with each document of a part and its place. Any thread. Blank lines of .jsonl are
  // left out.
  using Visit = std::function<void(const Document& document, size_t place)>;
  virtual void for_each_document(const InputPart& part, const Visit& visit) const = 0;

  // Returns a place for messages: "x.jsonl:7", "x.txt: the document at byte 1234" or "x.parquet:
  // row 3".
  virtual std::string name_of(size_t place) const = 0;
};

// What the documents of a file are.
struct DocumentKind {
  DocumentSplit split;
  std::string field = "text";  // column of the text in a Parquet file
  bool chat = false;           // conversations, in the column "messages" of a Parquet file
};

// Opens a file. Throws Error: NOT_FOUND, or INVALID_ARGUMENT if the file cannot be read, lacks the
// column or has a format that is not implemented, and FAILED_PRECONDITION if it is a Parquet file
// but the library that reads these is missing.
std::unique_ptr<DocumentInput> open_input(const std::string& path, const DocumentKind& kind);

}  // namespace yoke
