// A tokenizer of tokenizer.json: byte-level BPE as in GPT-2, Llama 3 and Qwen, or BPE over
// characters with bytes for unknown ones as in Llama 2 and Mistral.
//
// A text is encoded in four steps. Tokens that were added to the vocabulary are cut out of it; the
// rest is normalized, and added tokens that are found in normalized text are cut out; the
// pre-tokenizer splits the rest into words; BPE turns each word into tokens. A part of the file
// that has no implementation is refused when the file is opened, because a tokenizer that is nearly
// right trains a model that is nearly right.
#include "core/text/tokenizer_json.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/base/text.hpp"
#include "core/base/utf8.hpp"
#include "core/text/added_tokens.hpp"
#include "core/text/bpe.hpp"
#include "core/text/json_reader.hpp"
#include "core/text/normalizer.hpp"
#include "core/text/pre_tokenizer.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// How tokens become text: the part "decoder".
struct Decoding {
  bool byte_level = false;
  std::string space;           // stands for a space, unless empty
  bool byte_fallback = false;  // tokens <0xNN> are bytes
  int64_t strip = 0;           // number of spaces that are dropped from the beginning of a text
  bool drops_first_spaces = false;  // drops all spaces of the first token

  void read(const JsonReader& json) {
    if (json.is_null()) json.refuse("a tokenizer without a decoder is not implemented");
    const std::string type = json.type();
    if (type == "Sequence") {
      const JsonReader list = json.field("decoders");
      for (size_t i = 0; i < list.size(); ++i) read_step(list.element(i));
    } else if (type == "ByteLevel") {
      byte_level = true;
    } else if (type == "Metaspace") {
      space = json.text("replacement");
      drops_first_spaces = json.field("prepend_scheme").is_null()
                               ? json.flag("add_prefix_space", true)
                               : json.text("prepend_scheme") != "never";
    } else {
      json.refuse_type("ByteLevel, Metaspace, Sequence");
    }
  }

 private:
  void read_step(const JsonReader& json) {
    const std::string type = json.type();
    if (type == "ByteFallback") {
      byte_fallback = true;
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "Replace" && json.text("content") == " ") {
      space = json.field("pattern").text("String");
    } else if (type == "Strip" && json.text("content") == " " && json.number("stop") == 0 &&
               fused_) {
      strip = json.number("start");
    } else {
      json.refuse_type(
          "ByteFallback, Fuse, Replace by a space, and Strip of spaces at the start after Fuse");
    }
  }

  bool fused_ = false;
};

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(const std::string& path, const JsonReader& json)
      : normalizer_(json.field("normalizer")),
        pre_tokenizer_(json.field("pre_tokenizer")),
        bpe_(json.field("model"), pre_tokenizer_.is_byte_level()) {
    facts_.path = path;
    decoding_.read(json.field("decoder"));
    if (decoding_.byte_level != pre_tokenizer_.is_byte_level())
      json.field("decoder").refuse("ByteLevel must be in both the decoder and the pre_tokenizer");
    const JsonReader vocab = json.field("model").field("vocab");
    for (const auto& [token, id] : bpe_.vocab()) name(id, token, vocab);
    read_added(json.field("added_tokens"));
    facts_.vocab_size = static_cast<int64_t>(names_.size());
    read_post_processor(json.field("post_processor"));
  }

  std::unique_ptr<TextEncoder> encoder() const override;
  std::string decode(const std::vector<int32_t>& ids, bool with_special) const override;
  std::string bytes_of(int32_t id, bool first) const override;

  std::optional<int32_t> id_of(const std::string& token) const override {
    const auto found = added_ids_.find(token);
    if (found != added_ids_.end()) return found->second;
    const int32_t id = bpe_.id_of(token);
    return id < 0 ? std::nullopt : std::optional(id);
  }

  bool contains(int32_t id) const override {
    return id >= 0 && static_cast<size_t>(id) < names_.size() &&
           !names_[static_cast<size_t>(id)].empty();
  }

  bool is_special(int32_t id) const override {
    const auto found = added_.find(id);
    return found != added_.end() && found->second;
  }
  bool is_added(int32_t id) const override { return added_.contains(id); }

 private:
  friend class JsonEncoder;

  // json: the part that names the token, for the message.
  void name(int32_t id, const std::string& token, const JsonReader& json) {
    if (static_cast<size_t>(id) >= names_.size()) names_.resize(static_cast<size_t>(id) + 1);
    std::string& known = names_[static_cast<size_t>(id)];
    if (!known.empty() && known != token) {
      json.refuse(concat("the id ", id, " belongs to two tokens: \"") + std::min(known, token) +
                  "\" and \"" + std::max(known, token) + "\"");
    }
    known = token;
  }
  void read_added(const JsonReader& list);
  void read_post_processor(const JsonReader& json);
  const std::string& token(int32_t id) const;
  // Returns the byte that a token <0xNN> stands for, or -1.
  int fallback_byte(const std::string& token) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  Decoding decoding_;
  AddedTokens raw_added_, normalized_added_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_map<int32_t, bool> added_;  // true = the token is special
  std::vector<std::string> names_;  // tokens by id; an id without a token has an empty name
};

void JsonTokenizer::read_added(const JsonReader& list) {
  if (list.is_null()) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonReader json = list.element(i);
    AddedToken token;
    token.content = json.text("content");
    token.id = json.field("id").token_id();
    token.lstrip = json.flag("lstrip", false);
    token.rstrip = json.flag("rstrip", false);
    token.special = json.flag("special", false);
    if (token.content.empty()) json.refuse("the content is empty");
    if (json.flag("single_word", false))
      json.field("single_word").refuse("true is not implemented");
    name(token.id, token.content, json);
    added_ids_[token.content] = token.id;
    added_[token.id] = token.special;
    if (json.flag("normalized", !token.special)) {
      const std::string pattern = normalizer_.apply(token.content);
      if (pattern.empty()) json.refuse("the normalizer leaves nothing of its content");
      normalized_added_.add(pattern, token);
    } else {
      raw_added_.add(token.content, token);
    }
  }
}

// Reads which tokens the model expects before a text. ByteLevel changes only offsets into the text,
// which nothing uses here.
void JsonTokenizer::read_post_processor(const JsonReader& json) {
  if (json.is_null()) return;
  const std::string type = json.type();
  if (type == "Sequence") {
    const JsonReader list = json.field("processors");
    for (size_t i = 0; i < list.size(); ++i) read_post_processor(list.element(i));
  } else if (type == "TemplateProcessing") {
    const JsonReader single = json.field("single");
    for (size_t i = 0; i < single.size(); ++i) {
      const JsonReader item = single.element(i);
      if (!item.field("SpecialToken").is_null()) {
        const std::string special = item.field("SpecialToken").text("id");
        const JsonReader ids = json.field("special_tokens").field(special).field("ids");
        for (size_t k = 0; k < ids.size(); ++k) {
          facts_.prefix.push_back(ids.element(k).token_id());
          if (!contains(facts_.prefix.back())) ids.element(k).refuse("no token has this id");
        }
      } else {
        break;  // the text; what follows it is not a part of a prompt
      }
    }
  } else if (type != "ByteLevel") {
    json.refuse_type("ByteLevel, Sequence, TemplateProcessing");
  }
}

const std::string& JsonTokenizer::token(int32_t id) const {
  if (!contains(id))
    throw Error(YOKE_INVALID_ARGUMENT, facts_.path + concat(" has no token with the id ", id));
  return names_[static_cast<size_t>(id)];
}

int JsonTokenizer::fallback_byte(const std::string& token) const {
  if (!decoding_.byte_fallback || token.size() != 6 || !token.starts_with("<0x") || token[5] != '>')
    return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? value : -1;
}

std::string JsonTokenizer::bytes_of(int32_t id, bool first) const {
  const std::string& name = token(id);
  if (decoding_.byte_level) {
    std::string bytes;
    return bytes_of_characters(name, bytes) ? bytes : name;
  }
  if (const int byte = fallback_byte(name); byte >= 0)
    return std::string(1, static_cast<char>(byte));
  if (decoding_.space.empty()) return name;
  if (first && decoding_.drops_first_spaces) return replace_all(name, decoding_.space, "");
  std::string text = replace_all(name, decoding_.space, " ");
  for (int64_t i = 0; first && i < decoding_.strip && text.starts_with(' '); ++i) text.erase(0, 1);
  return text;
}

std::string JsonTokenizer::decode(const std::vector<int32_t>& ids, bool with_special) const {
  std::string out, span;  // span: bytes of neighbouring tokens <0xNN>
  const auto end_span = [&] {
    if (first_invalid_utf8(span) == span.npos) {
      out += span;
    } else {
      for (size_t i = 0; i < span.size(); ++i) out += kReplacementCharacter;
    }
    span.clear();
  };
  bool first = true;
  for (const int32_t id : ids) {
    const std::string& name = token(id);
    if (!with_special && is_special(id)) continue;
    const std::string bytes = bytes_of(id, first);
    first = false;
    if (fallback_byte(name) >= 0) {
      span += bytes;
    } else {
      end_span();
      out += bytes;
    }
  }
  end_span();
  return decoding_.byte_level ? replace_invalid_utf8(out) : out;
}

class JsonEncoder final : public TextEncoder {
 public:
  explicit JsonEncoder(const JsonTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<size_t> encode(std::string_view text,
                             const std::vector<size_t>& places,
                             std::vector<int32_t>& ids) override {
    require_utf8(text, "the text");
    const char* begin = text.data();
    const size_t before_text = ids.size();
    std::vector<size_t> before;
    tokenizer_.raw_added_.split(text, [&](std::string_view part, const AddedToken* token) {
      const size_t first = ids.size(), part_begin = static_cast<size_t>(part.data() - begin);
      if (token != nullptr) {
        ids.push_back(token->id);
      } else {
        encode_part(part, part_begin == 0, ids);
      }
      while (before.size() < places.size() && places[before.size()] <= part_begin + part.size()) {
        const size_t bytes = places[before.size()] - part_begin;
        size_t tokens = ids.size() - first;
        if (bytes < part.size())
          tokens = token ? (bytes >= end_of(*token, part) ? 1 : 0)
                         : shared(part.substr(0, bytes), part_begin == 0, ids, first);
        before.push_back(first - before_text + tokens);
      }
    });
    before.resize(places.size(), ids.size() - before_text);
    return before;
  }

 private:
  // Returns where a token ends in its part of the text, without white space that belongs to it.
  static size_t end_of(const AddedToken& token, std::string_view part) {
    const size_t begin = part.find(token.content);
    return begin == std::string_view::npos ? part.size() : begin + token.content.size();
  }

  // Encodes a text between two added tokens.
  void encode_part(std::string_view part, bool at_start, std::vector<int32_t>& ids) {
    if (tokenizer_.normalizer_.is_identity()) {
      encode_normalized(part, at_start, ids);
    } else {
      encode_normalized(tokenizer_.normalizer_.apply(part), at_start, ids);
    }
  }

  // Returns the number of ids that the text shares with ids[first], ids[first + 1], ...
  size_t shared(std::string_view text,
                bool at_start,
                const std::vector<int32_t>& ids,
                size_t first) {
    std::vector<int32_t> own;
    encode_part(text, at_start, own);
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(first);
    return static_cast<size_t>(std::mismatch(own.begin(), own.end(), from, ids.end()).first -
                               own.begin());
  }

  void encode_normalized(std::string_view text, bool at_start, std::vector<int32_t>& ids) {
    const char* begin = text.data();
    tokenizer_.normalized_added_.split(text, [&](std::string_view part, const AddedToken* token) {
      if (token != nullptr) {
        ids.push_back(token->id);
        return;
      }
      tokenizer_.pre_tokenizer_.split(part, at_start && part.data() == begin, matcher_, words_);
      for (const std::string_view word : words_.words) tokenizer_.bpe_.encode(word, work_, ids);
    });
  }

  const JsonTokenizer& tokenizer_;
  RegexMatcher matcher_;
  Words words_;
  BpeWorkspace work_;
};

std::unique_ptr<TextEncoder> JsonTokenizer::encoder() const {
  return std::make_unique<JsonEncoder>(*this);
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const nlohmann::json& json, const std::string& path) {
  return std::make_unique<JsonTokenizer>(path, JsonReader(json, path + ": "));
}

}  // namespace yoke
