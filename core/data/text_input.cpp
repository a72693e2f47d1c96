#include "core/data/text_input.hpp"

#include <algorithm>

#include "core/data/data_files.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kKey[] = "input";  // begins messages about a file
constexpr char kBlank[] = " \t\r";

void refuse_format(const std::string& path, std::string_view text) {
  const std::string name = path_is(kKey, path);
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd")) {
    throw Error(YOKE_INVALID_ARGUMENT,
                name +
                    " is compressed, which is not implemented; decompress it with gunzip or "
                    "unzstd");
  }
  if (path.ends_with(".json")) {
    throw Error(YOKE_INVALID_ARGUMENT,
                name +
                    " is one JSON file; allowed: texts, and .jsonl with one object per line; "
                    "for a list of objects, jq -c '.[]' writes such lines");
  }
}

}  // namespace

TextInput::TextInput(const std::string& path, const DocumentSplit& split)
    : path_(path),
      file_(path, kKey),
      text_(reinterpret_cast<const char*>(file_.data()), file_.size()),
      split_(split),
      jsonl_(path.ends_with(".jsonl")) {
  refuse_format(path, text_);
}

std::optional<TextInput::Gap> TextInput::next_gap(size_t from) const {
  if (jsonl_) {
    const size_t at = text_.find('\n', from);
    return at == text_.npos ? std::nullopt : std::optional(Gap{at, at + 1});
  }
  if (split_.kind == DocumentSplit::Kind::kSeparator) {
    const size_t at = text_.find(split_.separator, from);
    return at == text_.npos ? std::nullopt : std::optional(Gap{at, at + split_.separator.size()});
  }
  if (split_.kind == DocumentSplit::Kind::kWholeFile) return std::nullopt;
  for (size_t at = text_.find('\n', from); at != text_.npos; at = text_.find('\n', at + 1)) {
    const size_t end = end_of_blank_lines(at + 1);
    if (end == at + 1) continue;
    const bool crlf = at > from && text_[at - 1] == '\r';
    return Gap{at - (crlf ? 1 : 0), end};
  }
  return std::nullopt;
}

// Returns where the blank lines end that begin at `begin`, which is the beginning of a line.
size_t TextInput::end_of_blank_lines(size_t begin) const {
  while (begin < text_.size()) {
    const size_t content = text_.find_first_not_of(kBlank, begin);
    if (content == text_.npos) return text_.size();
    if (text_[content] != '\n') break;
    begin = content + 1;
  }
  return begin;
}

size_t TextInput::part_end(size_t begin, size_t bytes) const {
  for (std::optional<Gap> gap = next_gap(begin); gap; gap = next_gap(gap->end)) {
    if (gap->end - begin >= bytes) return gap->end;
  }
  return text_.size();
}

void TextInput::for_each_document(const InputPart& part, const Visit& visit) const {
  const size_t end = part.end;
  for (size_t begin = part.begin; begin < end;) {
    const std::optional<Gap> gap = next_gap(begin);
    const size_t document_end = gap ? std::min(gap->begin, end) : end;
    const std::string_view document = text_.substr(begin, document_end - begin);
    const bool blank = document.find_first_not_of(kBlank) == document.npos;
    if (!(jsonl_ && blank)) visit({document}, begin);
    begin = gap ? gap->end : end;
  }
}

std::string TextInput::name_of(size_t place) const {
  if (!jsonl_) return concat(path_, ": the document at byte ", place);
  return concat(
      path_,
      ":",
      1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(place), '\n'));
}

}  // namespace yoke
