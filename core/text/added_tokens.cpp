#include "core/text/added_tokens.hpp"

#include <algorithm>

#include "core/base/utf8.hpp"

namespace yoke {
namespace {

// Returns where the white space that ends at byte `at` begins.
size_t skip_back(std::string_view text, size_t at) {
  while (at > 0) {
    size_t begin = at - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) >> 6) == 2) --begin;
    if (!is_white_space(utf8_char(text, begin).code)) break;
    at = begin;
  }
  return at;
}

// Returns where the white space that begins at byte `at` ends.
size_t skip_forward(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = utf8_char(text, at);
    if (!is_white_space(c.code)) break;
    at += c.bytes;
  }
  return at;
}

}  // namespace

void AddedTokens::add(const std::string& pattern, const AddedToken& token) {
  tokens_[pattern] = token;
  std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(pattern[0])];
  if (std::find(lengths.begin(), lengths.end(), pattern.size()) != lengths.end()) return;
  lengths.push_back(pattern.size());
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at, size_t& bytes) const {
  for (const size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    const auto found = tokens_.find(std::string(text.substr(at, length)));
    if (found == tokens_.end()) continue;
    bytes = length;
    return &found->second;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, const Visit& visit) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    size_t bytes = 0;
    const AddedToken* token = longest_at(text, at, bytes);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? std::max(skip_back(text, at), done) : at;
    at += bytes;
    const size_t end = token->rstrip ? skip_forward(text, at) : at;
    if (done < begin) visit(text.substr(done, begin - done), nullptr);
    visit(text.substr(begin, end - begin), token);
    done = end;
  }
  if (done < text.size()) visit(text.substr(done), nullptr);
}

}  // namespace yoke
