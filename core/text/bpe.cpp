// Encodes words with a heap of candidate pairs, so that a word of n characters takes O(n log n)
// steps. Models without a pre-tokenizer, such as Llama 2's, see a whole document as one word. An
// entry of the heap may be outdated, because one of its two tokens has been merged since; it is
// then dropped when it is in front. All work is on token ids, so that no strings are joined.
#include "core/text/bpe.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/base/utf8.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Symbols are counted in 32 bits. Only a tokenizer without a pre-tokenizer makes words this long.
constexpr size_t kLongestWord = std::numeric_limits<int32_t>::max();
// Words with more bytes rarely occur twice.
constexpr size_t kLongestKnownWord = 64;
// The memory of a thread stays below about 115 MB, which it takes if all words have 64 bytes and
// 64 tokens.
constexpr size_t kMostKnownWords = 1 << 18;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A byte that is a printable character of Latin-1 stands for itself. The other 68 bytes are, in
// order, the characters from U+0100.
struct ByteCharacters {
  std::array<char32_t, 256> character{};
  std::array<int, 324> byte{};  // indexed by the character; -1 = it stands for no byte

  ByteCharacters() {
    byte.fill(-1);
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<int>(b);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

std::string text_of(const JsonReader& part) {
  if (!part.value().is_string()) part.refuse("a text was expected");
  return part.value().get<std::string>();
}

}  // namespace

bool bytes_of_characters(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = utf8_char(token, at);
    const ByteCharacters& table = byte_characters();
    if (c.code >= table.byte.size() || table.byte[c.code] < 0) return false;
    bytes += static_cast<char>(table.byte[c.code]);
    at += c.bytes;
  }
  return true;
}

std::string character_of_byte(unsigned char byte) {
  std::string out;
  append_utf8(byte_characters().character[byte], out);
  return out;
}

Bpe::Bpe(const JsonReader& json, bool byte_level) : byte_level_(byte_level) {
  if (json.field("type").is_null() ? json.field("merges").is_null() : json.type() != "BPE")
    json.refuse_type("BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json.field(key).is_null() && !json.text(key).empty())
      json.field(key).refuse("is not implemented");
  }
  const nlohmann::json& dropout = json.field("dropout").value();
  if (!dropout.is_null() && dropout != 0)
    json.field("dropout").refuse("is not implemented; allowed: null");
  ignore_merges_ = json.flag("ignore_merges", false);
  byte_fallback_ = json.flag("byte_fallback", false);
  fuse_unknown_ = json.flag("fuse_unk", false);

  const JsonReader vocab = json.field("vocab");
  if (!vocab.value().is_object()) vocab.refuse("an object was expected");
  vocab_.reserve(vocab.value().size());
  for (const auto& item : vocab.value().items())
    vocab_.emplace(item.key(), vocab.field(item.key()).token_id());
  if (!json.field("unk_token").is_null()) {
    unknown_ = id_of(json.text("unk_token"));
    if (unknown_ < 0) json.field("unk_token").refuse("the vocabulary lacks this token");
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(id_of(byte_level_ ? character_of_byte(static_cast<unsigned char>(byte))
                                          : string_printf("<0x%02X>", byte)));
  }
  read_merges(json.field("merges"));
  if (ignore_merges_) read_words();
}

void Bpe::read_merges(const JsonReader& list) {
  merges_.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const nlohmann::json& value = list.value()[i];
    const auto bad = [&](const std::string& what) { list.element(i).refuse(what); };
    std::string left, right;
    if (value.is_array() && value.size() == 2) {
      left = text_of(list.element(i).element(0));
      right = text_of(list.element(i).element(1));
    } else {
      const std::string both = text_of(list.element(i));
      const size_t space = both.find(' ');
      if (space == both.npos || both.find(' ', space + 1) != both.npos)
        bad("\"" + both + "\"; two tokens and a space between them were expected");
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    const std::pair<int32_t, int32_t> pair{id_of(left), id_of(right)};
    const int32_t joined = id_of(left + right);
    if (pair.first < 0 || pair.second < 0 || joined < 0)
      bad("\"" + left + "\" and \"" + right + "\": the vocabulary lacks a part or their union");
    merges_[pair_key(pair.first, pair.second)] = {static_cast<int32_t>(i), joined};
  }
}

// A model that ignores merges looks words up as a whole.
void Bpe::read_words() {
  std::string bytes;
  for (const auto& [token, id] : vocab_) {
    if (!byte_level_) {
      words_.emplace(token, id);
    } else if (bytes_of_characters(token, bytes)) {
      words_.emplace(bytes, id);
    }
  }
}

int32_t Bpe::id_of(const std::string& token) const {
  const auto found = vocab_.find(token);
  return found == vocab_.end() ? -1 : found->second;
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Fills work.symbols_ with the characters of the word, without their neighbours.
void Bpe::add_characters(std::string_view word, BpeWorkspace& work) const {
  const auto add = [&](int32_t id) { work.symbols_.push_back({id, -1, -1}); };
  const auto byte_id = [&](size_t at) { return byte_ids_[static_cast<unsigned char>(word[at])]; };
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t size = byte_level_ ? 1 : utf8_char(word, at).bytes;
    const std::string character(word.substr(at, size));
    const int32_t id = byte_level_ ? byte_id(at) : id_of(character);
    bool fallback = id < 0 && byte_fallback_ && !byte_level_;
    for (size_t i = at; fallback && i < at + size; ++i) fallback = byte_id(i) >= 0;
    if (fallback) {
      for (size_t i = at; i < at + size; ++i) add(byte_id(i));
      after_unknown = false;
    } else if (id >= 0) {
      add(id);
      after_unknown = false;
    } else if (unknown_ >= 0) {
      if (!after_unknown || !fuse_unknown_) add(unknown_);
      after_unknown = true;
    } else {
      throw Error(
          YOKE_INVALID_ARGUMENT,
          "the tokenizer has no token for " +
              (byte_level_ ? string_printf("the byte 0x%02x", static_cast<unsigned char>(word[at]))
                           : "the character '" + character + "'") +
              ", and no token for unknown characters");
    }
    at += size;
  }
}

void Bpe::encode(std::string_view word, BpeWorkspace& work, std::vector<int32_t>& ids) const {
  if (word.size() > kLongestWord) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a word of ", word.size(), " bytes is too long; allowed: ", kLongestWord) +
                    "; split the text into documents, as --split-on of yoke data prepare does");
  }
  if (work.recall(word, ids)) return;
  const size_t first = ids.size();
  const auto whole = ignore_merges_ ? words_.find(std::string(word)) : words_.end();
  if (whole != words_.end()) {
    ids.push_back(whole->second);
  } else {
    work.symbols_.clear();
    add_characters(word, work);
    work.merge(*this);
    // The first symbol is never merged into another one, so the list begins with it.
    for (int32_t i = work.symbols_.empty() ? -1 : 0; i >= 0; i = work.symbols_[i].next)
      ids.push_back(work.symbols_[i].id);
  }
  work.remember(word, ids.data() + first, ids.size() - first);
}

// ---- BpeWorkspace ----

size_t BpeWorkspace::Hash::operator()(std::string_view text) const {
  return std::hash<std::string_view>()(text);
}

bool BpeWorkspace::recall(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > kLongestKnownWord) return false;
  const auto found = known_.find(word);
  if (found == known_.end()) return false;
  const auto begin = known_ids_.begin() + found->second.begin;
  ids.insert(ids.end(), begin, begin + found->second.count);
  return true;
}

void BpeWorkspace::remember(std::string_view word, const int32_t* ids, size_t count) {
  if (word.size() > kLongestKnownWord) return;
  if (known_.size() == kMostKnownWords) {
    known_.clear();
    known_ids_.clear();
  }
  const Entry entry{static_cast<uint32_t>(known_ids_.size()), static_cast<uint32_t>(count)};
  known_ids_.insert(known_ids_.end(), ids, ids + count);
  known_.emplace(std::string(word), entry);
}

// Adds the pair of the symbol and its right neighbour to the heap, if it is in the list of merges.
void BpeWorkspace::consider(const Bpe& bpe, int32_t left) {
  const Symbol& symbol = symbols_[left];
  if (symbol.next < 0) return;
  if (const Bpe::Merge* merge = bpe.find_merge(symbol.id, symbols_[symbol.next].id))
    candidates_.push_back({merge->rank, left, merge->id});
}

// Merges until no pair of neighbours is in the list. Of equal pairs, the leftmost is merged first.
void BpeWorkspace::merge(const Bpe& bpe) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return std::pair(a.rank, a.left) > std::pair(b.rank, b.left);
  };
  const auto push = [&](int32_t left) {
    const size_t before = candidates_.size();
    consider(bpe, left);
    if (candidates_.size() > before) std::push_heap(candidates_.begin(), candidates_.end(), later);
  };
  const auto count = static_cast<int32_t>(symbols_.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols_[i].previous = i - 1;
    symbols_[i].next = i + 1 < count ? i + 1 : -1;
  }
  candidates_.clear();
  for (int32_t i = 0; i < count; ++i) consider(bpe, i);
  std::make_heap(candidates_.begin(), candidates_.end(), later);

  constexpr int32_t kMerged = -1;  // id of a symbol that is now a part of its left neighbour
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), later);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.id == kMerged || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    const Bpe::Merge* current = bpe.find_merge(left.id, right.id);
    if (current == nullptr || current->id != best.id) continue;
    left.id = best.id;
    right.id = kMerged;
    left.next = right.next;
    if (left.next >= 0) symbols_[left.next].previous = best.left;
    if (left.previous >= 0) push(left.previous);
    push(best.left);
  }
}

}  // namespace yoke
