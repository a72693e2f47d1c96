// Reads the documents of a text file or of a .jsonl file, for `yoke data prepare`. No LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/data/mapped_file.hpp"

namespace yoke {

// Says what ends a document of a text file. Each line of a .jsonl file is a document.
struct DocumentSplit {
  enum class Kind { kWholeFile, kBlankLines, kSeparator };
  Kind kind = Kind::kWholeFile;
  std::string separator;  // not empty, for kSeparator
};

// A TextInput is a file that is mapped into memory. It is immutable, and may be used from any
// thread.
class TextInput {
 public:
  // Throws Error: NOT_FOUND, or INVALID_ARGUMENT if the file cannot be read or has a format that is
  // not implemented, such as Parquet.
  TextInput(const std::string& path, const DocumentSplit& split);

  bool is_jsonl() const { return jsonl_; }
  size_t size() const { return text_.size(); }

  // Returns where a part of whole documents ends that begins at `begin` and has `bytes` bytes or
  // more, unless the file ends. `begin` is 0 or an end that this function returned. The parts do
  // not depend on anything but the file and `bytes`.
  size_t part_end(size_t begin, size_t bytes) const;

  // Calls `visit` with each document of the part [begin, end) and with the offset of its first
  // byte. Blank lines of .jsonl are left out.
  using Visit = std::function<void(std::string_view document, size_t offset)>;
  void for_each_document(size_t begin, size_t end, const Visit& visit) const;

  // Returns the place of the document at a byte, for messages: "x.jsonl:7", or "x.txt: the document
  // at byte 1234".
  std::string place(size_t offset) const;

 private:
  // A Gap is what lies between two documents, as a half-open range of bytes.
  struct Gap {
    size_t begin, end;
  };
  // Returns the first gap that begins at `from` or later.
  std::optional<Gap> next_gap(size_t from) const;
  size_t end_of_blank_lines(size_t begin) const;

  std::string path_;
  MappedFile file_;
  std::string_view text_;
  DocumentSplit split_;
  bool jsonl_;
};

}  // namespace yoke
