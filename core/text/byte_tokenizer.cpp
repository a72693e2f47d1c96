// The tokenizer of models whose tokens are the bytes of a text.
#include "core/base/utf8.hpp"
#include "core/text/tokenizer.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int32_t kBytes = 256;

class ByteEncoder final : public TextEncoder {
 public:
  std::vector<size_t> encode(std::string_view text,
                             const std::vector<size_t>& places,
                             std::vector<int32_t>& ids) override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return places;
  }
};

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    facts_.path = "bytes";
    facts_.vocab_size = kBytes;
  }
  std::unique_ptr<TextEncoder> encoder() const override { return std::make_unique<ByteEncoder>(); }
  std::string decode(const std::vector<int32_t>& ids, bool) const override {
    std::string bytes;
    for (const int32_t id : ids) bytes += bytes_of(id, false);
    return replace_invalid_utf8(bytes);
  }
  std::string bytes_of(int32_t id, bool) const override {
    if (!contains(id)) throw Error(YOKE_INVALID_ARGUMENT, concat("the id ", id, " is no byte"));
    return std::string(1, static_cast<char>(id));
  }
  std::optional<int32_t> id_of(const std::string& token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token[0]);
  }
  bool contains(int32_t id) const override { return id >= 0 && id < kBytes; }
  bool is_special(int32_t) const override { return false; }
  bool is_added(int32_t) const override { return false; }
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::bytes() {
  return std::make_shared<ByteTokenizer>();
}

}  // namespace yoke
