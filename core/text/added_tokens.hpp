// Added tokens are found in a text before it is split into words. They are special tokens, such as
// the end of a text, and others that were added to a vocabulary.
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false;  // true = the white space on its left belongs to it
  bool rstrip = false;  // true = the white space on its right belongs to it
  bool special = false;
};

// AddedTokens is a set of them. It is immutable after the last add(), and may then be used from any
// thread.
class AddedTokens {
 public:
  // Adds a token that is found as the text `pattern`, which is not empty.
  void add(const std::string& pattern, const AddedToken& token);

  // Calls `visit` for the parts of the text, in order: a token that was found, or, with nullptr,
  // the text between two of them. Of the tokens that begin at one place, the longest is found.
  using Visit = std::function<void(std::string_view part, const AddedToken* token)>;
  void split(std::string_view text, const Visit& visit) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t& bytes) const;

  boost::unordered_flat_map<std::string, AddedToken> tokens_;
  // Maps each byte to the lengths of the patterns that begin with it, longest first.
  std::array<std::vector<size_t>, 256> lengths_;
};

}  // namespace yoke
