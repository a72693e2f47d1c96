// Reads the documents of a text file or of a .jsonl file, for `yoke data prepare`. No LibTorch.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/data/document_input.hpp"
#include "core/data/mapped_file.hpp"

namespace yoke {

// A TextInput is a file that is mapped into memory. It is immutable, and may be used from any
// thread. Its places are bytes.
class TextInput : public DocumentInput {
 public:
  // Throws Error: NOT_FOUND, or INVALID_ARGUMENT if the file cannot be read or has a format that is
  // not implemented, such as a compressed file.
  TextInput(const std::string& path, const DocumentSplit& split);

  Format format() const override { return jsonl_ ? Format::kJsonl : Format::kText; }
  size_t size() const override { return text_.size(); }
  uint64_t bytes_before(size_t place) const override { return place; }
  InputPart take(size_t begin, size_t bytes) override {
    return {begin, part_end(begin, bytes), nullptr};
  }
  void for_each_document(const InputPart& part, const Visit& visit) const override;
  std::string name_of(size_t place) const override;

 private:
  // A Gap is what lies between two documents, as a half-open range of bytes.
  struct Gap {
    size_t begin, end;
  };
  // Returns the first gap that begins at `from` or later.
  std::optional<Gap> next_gap(size_t from) const;
  size_t end_of_blank_lines(size_t begin) const;
  size_t part_end(size_t begin, size_t bytes) const;

  std::string path_;
  MappedFile file_;
  std::string_view text_;
  DocumentSplit split_;
  bool jsonl_;
};

}  // namespace yoke
