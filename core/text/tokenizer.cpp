// Opens a tokenizer and reads, from the files beside it, which tokens begin and end a text.
#include "core/text/tokenizer.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/files.hpp"
#include "core/base/strict_json.hpp"
#include "core/text/json_reader.hpp"
#include "core/text/sentencepiece.hpp"
#include "core/text/tokenizer_json.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostBytes = uint64_t{1} << 30;

std::string hash_of(const std::string& content) {
  return string_printf(
      "%016llx", static_cast<unsigned long long>(XXH3_64bits(content.data(), content.size())));
}

// Returns the JSON object in a file of the folder; an empty one if there is no such file.
nlohmann::json object_in(const fs::path& folder, const char* name) {
  const fs::path path = folder / name;
  if (!fs::exists(path)) return nlohmann::json::object();
  return parse_json_object(read_text(path.string(), kMostBytes), path.string());
}

// Adds the ids under `key` of a configuration: a number, or a list of numbers.
void add_ids(const JsonReader& json, const char* key, int64_t vocab, std::vector<int32_t>& ids) {
  const JsonReader found = json.field(key);
  const nlohmann::json list =
      found.value().is_array() ? found.value() : nlohmann::json::array({found.value()});
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer()) continue;
    const int64_t value = id.get<int64_t>();
    if (value < 0 || value >= vocab)
      found.refuse(concat("the id ", value, " is not below the vocabulary of ", vocab));
    if (std::find(ids.begin(), ids.end(), value) == ids.end())
      ids.push_back(static_cast<int32_t>(value));
  }
}

// Returns the token that tokenizer_config.json names under `key`.
std::optional<int32_t> named_token(const Tokenizer& tokenizer,
                                   const JsonReader& json,
                                   const char* key) {
  const JsonReader found = json.field(key);
  if (found.is_null()) return std::nullopt;
  const std::string token = found.value().is_object() ? found.text("content") : json.text(key);
  const std::optional<int32_t> id = tokenizer.id_of(token);
  if (!id) found.refuse("the vocabulary lacks the token \"" + token + "\"");
  return id;
}

// tokenizer_config.json names the tokens; where it does not, config.json has their ids. A model
// that ends its answers with several tokens lists them in generation_config.json.
void read_ends(const Tokenizer& tokenizer,
               const JsonReader& named_json,
               const fs::path& folder,
               TokenizerFacts& facts) {
  const nlohmann::json config = object_in(folder, "config.json");
  const nlohmann::json generation = object_in(folder, "generation_config.json");
  const JsonReader config_json(config, (folder / "config.json").string() + ": ");
  const JsonReader generation_json(generation, (folder / "generation_config.json").string() + ": ");

  std::vector<int32_t> begins;
  add_ids(config_json, "bos_token_id", facts.vocab_size, begins);
  facts.bos = named_token(tokenizer, named_json, "bos_token");
  if (!facts.bos && !begins.empty()) facts.bos = begins.front();

  facts.eos = named_token(tokenizer, named_json, "eos_token");
  if (facts.eos) facts.stops.push_back(*facts.eos);
  add_ids(config_json, "eos_token_id", facts.vocab_size, facts.stops);
  add_ids(generation_json, "eos_token_id", facts.vocab_size, facts.stops);
  if (!facts.stops.empty()) facts.eos = facts.stops.front();
}

// A model of sentencepiece has tokens of its own for both ends, and no list of what comes before a
// text: that is its begin of a text, unless tokenizer_config.json says otherwise.
void complete_ends(const SentencePieceModel& model,
                   const JsonReader& named_json,
                   TokenizerFacts& facts) {
  if (!facts.bos) facts.bos = model.bos;
  if (!facts.eos && model.eos) {
    facts.eos = model.eos;
    facts.stops.push_back(*model.eos);
  }
  if (facts.bos && named_json.flag("add_bos_token", true)) facts.prefix.push_back(*facts.bos);
}

}  // namespace

std::string Tokenizer::file_in(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path)) return path.string();
  }
  return "";
}

std::shared_ptr<const Tokenizer> Tokenizer::open(const std::string& path) {
  const std::string file = fs::is_directory(path) ? file_in(path) : path;
  if (file.empty() || !fs::exists(file)) {
    throw Error(YOKE_NOT_FOUND,
                path +
                    (file.empty() ? " holds neither tokenizer.json nor tokenizer.model"
                                  : " does not exist") +
                    "; give the folder of a model of Hugging Face that holds tokenizer.json or "
                    "tokenizer.model, or such a file");
  }
  const fs::path folder = fs::path(file).parent_path();
  const std::string content = read_text(file, kMostBytes);
  std::optional<SentencePieceModel> model;
  if (file.ends_with(".model")) model = read_sentencepiece(content, file);
  std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer(model ? model->json : parse_json_object(content, file), file);

  const nlohmann::json named = object_in(folder, "tokenizer_config.json");
  const JsonReader named_json(named, (folder / "tokenizer_config.json").string() + ": ");
  read_ends(*tokenizer, named_json, folder, tokenizer->facts_);
  if (model) complete_ends(*model, named_json, tokenizer->facts_);
  tokenizer->facts_.hash = hash_of(content);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encoder()->encode(text, ids);
  return ids;
}

}  // namespace yoke
