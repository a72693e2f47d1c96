// Byte pair encoding: a word begins as its characters, or its bytes, and the pair of neighbours
// that comes first in the list of merges is joined until no pair is in the list.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_reader.hpp"

namespace yoke {

class BpeWorkspace;

// Bpe is the model "BPE" of tokenizer.json. It is immutable and may be used from any thread.
class Bpe {
 public:
  // json: the part "model". byte_level: words are bytes, and the file writes each byte as one
  // character. Throws Error(INVALID_ARGUMENT) if the part is wrong or not implemented.
  Bpe(const JsonReader& json, bool byte_level);

  // Appends the tokens of a word, which must be UTF-8. Throws Error(INVALID_ARGUMENT) if the
  // vocabulary lacks a character of the word, or if the word has 2 GiB or more.
  void encode(std::string_view word, BpeWorkspace& work, std::vector<int32_t>& ids) const;

  // Returns the id of a token as the file writes it, or -1.
  int32_t id_of(const std::string& token) const;
  // Returns all tokens and their ids.
  const boost::unordered_flat_map<std::string, int32_t>& vocab() const { return vocab_; }

 private:
  friend class BpeWorkspace;
  struct Merge {
    int32_t rank = -1;
    int32_t id = -1;  // token that the pair becomes
  };

  void read_merges(const JsonReader& list);
  void read_words();
  const Merge* find_merge(int32_t left, int32_t right) const;
  void add_characters(std::string_view word, BpeWorkspace& work) const;

  bool byte_level_;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
  boost::unordered_flat_map<std::string, int32_t> vocab_;
  boost::unordered_flat_map<std::string, int32_t> words_;  // whole words, with ignore_merges
  boost::unordered_flat_map<uint64_t, Merge> merges_;      // key: left id << 32 | right id
  std::vector<int32_t> byte_ids_;  // tokens of the 256 bytes: of a byte-level model, or <0xNN>
};

// The memory of one thread: it keeps the tokens of words that occurred before, because a text
// repeats few words very often.
class BpeWorkspace {
 public:
  // Appends the tokens of the word and returns true if the word is known.
  bool recall(std::string_view word, std::vector<int32_t>& ids) const;
  void remember(std::string_view word, const int32_t* ids, size_t count);

 private:
  friend class Bpe;
  // A Symbol is a token of the word that is being merged.
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // indices of the neighbours, -1 = none
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the left symbol
    int32_t id;    // token that the pair becomes
  };
  struct Entry {
    uint32_t begin, count;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::string_view a, std::string_view b) const { return a == b; }
  };
  void consider(const Bpe& bpe, int32_t left);
  void merge(const Bpe& bpe);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a heap; the next merge is in front
  boost::unordered_flat_map<std::string, Entry, Hash, Equal> known_;
  std::vector<int32_t> known_ids_;
};

// Returns the bytes of a token that byte-level models write as characters, or nothing if one of its
// characters stands for no byte.
bool bytes_of_characters(std::string_view token, std::string& bytes);
// Returns the character that stands for a byte.
std::string character_of_byte(unsigned char byte);

}  // namespace yoke
