// Reads and writes the description beside a file of token ids.
//
// A user may have a file of another kind under the name of the description, such as the documents
// x.json beside the ids x.bin. It must not stop a run. But a description that was truncated must
// not be taken for such a file, because the run would then train without its mask. Therefore a file
// that cannot be parsed is damaged if it contains the name of the format, and is another file
// otherwise.
#include "core/data/token_info.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kFormat[] = "yoke-tokens";
constexpr int64_t kVersion = 1;
constexpr uint64_t kMaxBytes = 1 << 16;  // a description has a few hundred bytes

std::string with_extension(const std::string& ids, const char* extension) {
  return std::filesystem::path(ids).replace_extension(extension).string();
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw Error(YOKE_DATA_LOSS,
              path + ": " + what +
                  "; the description of the token ids is damaged, run yoke data prepare again");
}

// Returns a whole number of at least `min` under `key`.
int64_t number(const nlohmann::json& json,
               const std::string& path,
               const char* key,
               int64_t min = 0) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < min)
    damaged(path, concat("\"", key, "\" must be a whole number of at least ", min));
  return found->get<int64_t>();
}

bool is_hash(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

TokenInfo from_json(const nlohmann::json& json, const std::string& path) {
  if (number(json, path, "version") != kVersion) {
    throw Error(YOKE_DATA_LOSS,
                path + concat(" has version ", number(json, path, "version")) +
                    concat("; this release reads version ", kVersion));
  }
  TokenInfo info;
  info.tokens = number(json, path, "tokens");
  info.documents = number(json, path, "documents");
  info.vocab = number(json, path, "vocab", 1);
  if (!json.contains("tokenizer") || !json["tokenizer"].is_string() ||
      !is_hash(json["tokenizer"].get<std::string>()))
    damaged(path, "\"tokenizer\" must be 16 hexadecimal digits");
  info.tokenizer = json["tokenizer"].get<std::string>();
  if (!json.contains("document_end")) damaged(path, "\"document_end\" is missing");
  if (!json["document_end"].is_null()) {
    info.document_end = number(json, path, "document_end");
    if (*info.document_end >= info.vocab)
      damaged(path, concat("\"document_end\" is ", *info.document_end, ", not below \"vocab\""));
  }
  if (!json.contains("mask") || !json["mask"].is_boolean())
    damaged(path, "\"mask\" must be true or false");
  info.mask = json["mask"].get<bool>();
  return info;
}

}  // namespace

std::string token_info_path(const std::string& ids) {
  return with_extension(ids, ".json");
}

std::string mask_path(const std::string& ids) {
  return with_extension(ids, ".mask");
}

std::optional<TokenInfo> read_token_info(const std::string& ids) {
  const std::string path = token_info_path(ids);
  std::error_code ignored;
  if (path == ids || !std::filesystem::is_regular_file(path, ignored) ||
      std::filesystem::file_size(path, ignored) > kMaxBytes)
    return std::nullopt;
  const std::string text = read_text(path, kMaxBytes);
  nlohmann::json json;
  try {
    json = parse_json_object(text, path);
  } catch (const Error& e) {
    if (text.find(kFormat) != std::string::npos) damaged(path, e.what());
    return std::nullopt;
  }
  if (!json.contains("format") || json["format"] != kFormat) return std::nullopt;
  return from_json(json, path);
}

void write_token_info(const std::string& ids, const TokenInfo& info) {
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"tokens", info.tokens},
      {"documents", info.documents},
      {"vocab", info.vocab},
      {"tokenizer", info.tokenizer},
      {"document_end", info.document_end ? nlohmann::ordered_json(*info.document_end) : nullptr},
      {"mask", info.mask}};
  replace_text(token_info_path(ids), json.dump() + "\n");
}

}  // namespace yoke
