// A model is a message of protocol buffers: a list of pieces with scores, and the options of
// training and normalization. Only a few fields matter, so the message is read field by field; the
// library of protocol buffers, and that of sentencepiece, would have to be shipped with every
// archive.
//
// The result is a tokenizer.json, which has lists of merges where a model has scores: of all ways
// to make a piece of two others, those of the piece with the highest score come first, as in
// transformers. So one implementation of BPE serves both files.
#include "core/text/sentencepiece.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr char kSpace[] = "\u2581";  // stands for a space in pieces

// Thrown without the path, which the caller adds.
[[noreturn]] void damaged() {
  throw Error(YOKE_DATA_LOSS, "is not a model of sentencepiece, or is cut off; copy it again");
}

// A field of a message: its number, and its value as a number or as bytes.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // value of a varint or a fixed field
  std::string_view bytes;  // value of a text or an inner message

  float as_float() const {
    const auto bits = static_cast<uint32_t>(value);
    float result = 0;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }
};

// Reads the fields of a message one after the other.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field = {.number = tag >> 3, .value = 0, .bytes = {}};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        damaged();
    }
    return true;
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) damaged();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }
  uint64_t fixed(uint64_t count) {  // little-endian
    uint64_t value = 0;
    const std::string_view taken = take(count);
    for (size_t i = 0; i < taken.size(); ++i)
      value |= static_cast<uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    return value;
  }

  std::string_view bytes_;
};

enum class Type : uint64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
enum class Algorithm : uint64_t { kUnigram = 1, kBpe, kWord, kChar };

struct Piece {
  std::string text;
  float score = 0;
  Type type = Type::kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false, space_is_suffix = false;
  int64_t bos = 1, eos = 2;  // -1 = none
  bool has_normalization = false, adds_space = true, removes_spaces = true;
};

Piece read_piece(std::string_view bytes) {
  Piece piece;
  Message message(bytes);
  for (Field f; message.next(f);) {
    if (f.number == 1) piece.text = f.bytes;
    if (f.number == 2) piece.score = f.as_float();
    if (f.number == 3) piece.type = static_cast<Type>(f.value);
  }
  return piece;
}

void read_training(std::string_view bytes, Model& model) {
  Message message(bytes);
  for (Field f; message.next(f);) {
    if (f.number == 3) model.algorithm = static_cast<Algorithm>(f.value);
    if (f.number == 24) model.space_is_suffix = f.value != 0;
    if (f.number == 35) model.byte_fallback = f.value != 0;
    if (f.number == 41) model.bos = static_cast<int32_t>(f.value);
    if (f.number == 42) model.eos = static_cast<int32_t>(f.value);
  }
}

void read_normalization(std::string_view bytes, Model& model) {
  Message message(bytes);
  for (Field f; message.next(f);) {
    if (f.number == 2) model.has_normalization = !f.bytes.empty();
    if (f.number == 3) model.adds_space = f.value != 0;
    if (f.number == 4) model.removes_spaces = f.value != 0;
  }
}

Model read_model(std::string_view content) {
  Model model;
  Message message(content);
  for (Field f; message.next(f);) {
    if (f.number == 1) model.pieces.push_back(read_piece(f.bytes));
    if (f.number == 2) read_training(f.bytes, model);
    if (f.number == 3) read_normalization(f.bytes, model);
  }
  if (model.pieces.empty()) damaged();
  return model;
}

void require_implemented(const Model& model) {
  const auto refuse = [](const std::string& what) {
    throw Error(YOKE_INVALID_ARGUMENT,
                what +
                    " is not implemented; write a tokenizer.json with transformers: "
                    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)");
  };
  if (model.algorithm != Algorithm::kBpe) {
    refuse(model.algorithm == Algorithm::kUnigram ? "the algorithm unigram"
                                                  : "an algorithm other than BPE");
  }
  if (model.has_normalization) refuse("a normalization other than identity");
  if (model.removes_spaces) refuse("remove_extra_whitespaces");
  if (model.space_is_suffix) refuse("treat_whitespace_as_suffix");
  for (const Piece& piece : model.pieces) {
    if (piece.type == Type::kUserDefined || piece.type == Type::kUnused)
      refuse("the piece '" + piece.text + "', which is user-defined or unused,");
  }
}

// Returns the pairs that make up pieces, in the order in which they are merged.
Json merges_of(const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, size_t> normal;
  std::vector<size_t> order;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type != Type::kNormal) continue;
    normal.emplace(pieces[id].text, id);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return pieces[a].score > pieces[b].score;
  });
  Json merges = Json::array();
  for (const size_t id : order) {
    const std::string_view text = pieces[id].text;
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t at = 1; at < text.size(); ++at) {
      if ((text[at] & 0xC0) == 0x80) continue;  // inside a character
      const auto left = normal.find(text.substr(0, at)), right = normal.find(text.substr(at));
      if (left != normal.end() && right != normal.end())
        pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs)
      merges.push_back({pieces[left].text, pieces[right].text});
  }
  return merges;
}

Json json_of(const Model& model) {
  Json vocab = Json::object(), added = Json::array(), unknown;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    vocab[piece.text] = id;
    if (piece.type == Type::kUnknown) unknown = piece.text;
    if (piece.type == Type::kControl)
      added.push_back(
          {{"id", id}, {"content", piece.text}, {"special", true}, {"normalized", false}});
  }
  Json steps = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}}};
  if (model.adds_space)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  Json changes = Json::array();
  if (model.adds_space) changes.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  changes.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  return {{"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", changes}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", steps}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", merges_of(model.pieces)},
            {"unk_token", unknown},
            {"byte_fallback", model.byte_fallback},
            {"fuse_unk", true}}}};
}

std::optional<int32_t> token(const Model& model, int64_t id) {
  if (id < 0) return std::nullopt;
  if (static_cast<size_t>(id) >= model.pieces.size()) damaged();
  return static_cast<int32_t>(id);
}

}  // namespace

SentencePieceModel read_sentencepiece(std::string_view content, const std::string& path) {
  try {
    const Model model = read_model(content);
    require_implemented(model);
    return {json_of(model), token(model, model.bos), token(model, model.eos)};
  } catch (const Error& e) {
    throw Error(e.code(), path + ": " + e.what());
  }
}

}  // namespace yoke
