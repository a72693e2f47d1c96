#include <utility>

#include "core/base/utf8.hpp"
#include "core/text/tokenizer.hpp"

namespace yoke {

std::string StreamDecoder::push(int32_t id) {
  if (tokenizer_.is_special(id)) return "";
  kept_ += tokenizer_.bytes_of(id, std::exchange(first_, false));
  // A character has at most four bytes, so only the last three can begin an incomplete one.
  size_t whole = kept_.size();
  for (size_t back = 1; back <= 3 && back <= kept_.size(); ++back) {
    if (utf8_char(kept_, kept_.size() - back).truncated) whole = kept_.size() - back;
  }
  const std::string text = replace_invalid_utf8(std::string_view(kept_).substr(0, whole));
  kept_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() {
  return replace_invalid_utf8(std::exchange(kept_, ""));
}

}  // namespace yoke
