// The JSON library writes the objects of files and tensors; the text around them is written by
// hand. So each file and each tensor has a line of its own, which makes manifests easy to read and
// to compare. The checksum is the last member and covers everything that precedes it. The reader
// checks the checksum before it parses, and still checks the contents afterwards: a manifest may
// also be wrong because a tool edited it.

#include "core/checkpoint/manifest.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/base/crc32c.hpp"
#include "core/checkpoint/tiling.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr char kFormat[] = "yoke-checkpoint";
constexpr char kDigestBegin[] = "\"self_crc32c\":\"";
constexpr size_t kDigits = 8;
constexpr char kDigestEnd[] = "\"}\n";

[[noreturn]] void damaged(const std::string& reason) {
  throw Error(YOKE_DATA_LOSS, reason);
}

std::string hex(uint32_t value) {
  return string_printf("%08x", value);
}

Json to_json(const StoredFile& file) {
  return {{"file", file.name},
          {"bytes", file.bytes},
          {"head_bytes", file.head_bytes},
          {"head_crc32c", hex(file.head_crc)}};
}

// A flat piece has three members; only a strided one needs `run` and `stride`.
Json to_json(const StoredTensor& tensor) {
  Json pieces = Json::array();
  for (const StoredPiece& piece : tensor.pieces) {
    pieces.push_back({piece.at.begin, piece.at.count, to_hex(piece.crc)});
    if (piece.at.is_flat()) continue;
    pieces.back().push_back(piece.at.run);
    pieces.back().push_back(piece.at.stride);
  }
  return {{"name", tensor.name},
          {"kind", tensor.kind},
          {"dtype", safetensors_dtype(tensor.dtype)},
          {"shape", tensor.shape},
          {"file", tensor.file},
          {"offset", tensor.offset},
          {"pieces", pieces}};
}

template <class T>
std::string lines(const char* key, const std::vector<T>& items) {
  std::string text = std::string("\"") + key + "\":[";
  for (size_t i = 0; i < items.size(); ++i)
    text += (i == 0 ? "\n" : ",\n") + to_json(items[i]).dump();
  return text + "],\n";
}

// Verifies the checksum and returns what it covers: the text before it.
std::string check_digest(const std::string& text) {
  const size_t tail = sizeof kDigestBegin - 1 + kDigits + sizeof kDigestEnd - 1;
  if (text.size() < tail) damaged("the manifest is cut off");
  const std::string body = text.substr(0, text.size() - tail);
  if (text.substr(body.size()) !=
      kDigestBegin + hex(crc32c(0, body.data(), body.size())) + kDigestEnd) {
    damaged("the manifest does not match its own checksum");
  }
  return body;
}

// A newer format is not damage: the error must say that another version of Yoke can read it.
void check_version(const Json& json) {
  if (json.at("format") != kFormat) damaged("the manifest's format is not \"yoke-checkpoint\"");
  const int64_t version = json.at("version").get<int64_t>();
  if (version > kVersion) {
    throw Error(
        YOKE_FAILED_PRECONDITION,
        concat("written by a newer Yoke (format ", version, "); this one reads format ", kVersion));
  }
  if (version != kVersion) damaged("unknown format " + std::to_string(version));
}

StoredFile parse_file(const Json& json) {
  StoredFile file;
  file.name = json.at("file").get<std::string>();
  file.bytes = json.at("bytes").get<uint64_t>();
  file.head_bytes = json.at("head_bytes").get<uint64_t>();
  const std::vector<uint32_t> crc = from_hex(json.at("head_crc32c").get<std::string>());
  if (crc.size() != 1) damaged("file '" + file.name + "' needs one checksum");
  file.head_crc = crc[0];
  if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos) {
    damaged("'" + file.name + "' is not a plain file name");
  }
  if (file.head_bytes > file.bytes) damaged("file '" + file.name + "' is smaller than its head");
  return file;
}

// A manifest that passes here describes a possible tensor: the reader computes offsets and sizes
// from these numbers without checking them again.
StoredPiece parse_piece(const Json& json, const StoredTensor& tensor) {
  StoredPiece piece;
  piece.at = StridedSpan::flat(json.at(0).get<int64_t>(), json.at(1).get<int64_t>());
  piece.crc = from_hex(json.at(2).get<std::string>());
  if (json.size() > 3) {
    piece.at.run = json.at(3).get<int64_t>();
    piece.at.stride = json.at(4).get<int64_t>();
  }
  if (piece.at.count < 1) damaged(tensor.describe() + ": a piece is empty");
  if (const std::string fault = piece.at.fault(tensor.numel()); !fault.empty())
    damaged(tensor.describe() + ": " + fault);
  piece.at = piece.at.joined();
  const int64_t bytes = piece.at.count * tensor.item_bytes();
  if (static_cast<int64_t>(piece.crc.size()) != (bytes + kChunkBytes - 1) / kChunkBytes) {
    damaged(tensor.describe() + ": a piece has the wrong number of checksums");
  }
  return piece;
}

StoredTensor parse_tensor(const Json& json) {
  StoredTensor tensor;
  tensor.name = json.at("name").get<std::string>();
  tensor.kind = json.at("kind").get<std::string>();
  tensor.dtype = dtype_from_safetensors(json.at("dtype").get<std::string>());
  tensor.shape = json.at("shape").get<std::vector<int64_t>>();
  tensor.file = json.at("file").get<std::string>();
  tensor.offset = json.at("offset").get<uint64_t>();
  uint64_t bytes = 0;
  if (tensor.dtype == 0 || !tensor_bytes(tensor.shape, tensor.dtype, &bytes)) {
    damaged(tensor.describe() + ": unknown dtype or impossible shape");
  }
  for (const Json& piece : json.at("pieces")) tensor.pieces.push_back(parse_piece(piece, tensor));
  return tensor;
}

// Checks what a scale must fulfil, because training would multiply with anything.
std::optional<LossScaleState> parse_loss_scale(const Json& manifest) {
  if (!manifest.contains("loss_scale")) return std::nullopt;
  const Json& json = manifest["loss_scale"];
  LossScaleState state;
  state.scale = json.at("scale").get<double>();
  state.good_steps = json.at("good_steps").get<int64_t>();
  state.hysteresis = json.at("hysteresis").get<int64_t>();
  state.skipped = json.at("skipped").get<int64_t>();
  const bool sound = state.scale > 0 && std::isfinite(state.scale) && state.good_steps >= 0 &&
                     state.hysteresis >= 1 && state.skipped >= 0;
  if (!sound) damaged("the loss scale " + json.dump() + " is impossible");
  return state;
}

Json to_json(const LossScaleState& state) {
  return {{"scale", state.scale},
          {"good_steps", state.good_steps},
          {"hysteresis", state.hysteresis},
          {"skipped", state.skipped}};
}

std::optional<ContentCounts> parse_counts(const Json& manifest) {
  if (!manifest.contains("contents")) return std::nullopt;
  const Json& json = manifest["contents"];
  const Json& moments = json.at("moments");
  ContentCounts counts{.params = json.at("params").get<int64_t>(), .moments = {}};
  if (moments.is_object()) {
    counts.moments = moments.get<std::map<std::string, int64_t>>();
  } else {
    for (const std::string& kind : moments.get<std::vector<std::string>>())
      counts.moments[kind] = json.at("trainable").get<int64_t>();
  }
  return counts;
}

// Older releases read only the list of kinds, so it is written unless the numbers differ.
Json to_json(const ContentCounts& counts) {
  std::vector<std::string> kinds;
  std::set<int64_t> numbers;
  for (const auto& [kind, count] : counts.moments) {
    kinds.push_back(kind);
    numbers.insert(count);
  }
  if (numbers.size() > 1) return {{"params", counts.params}, {"moments", counts.moments}};
  const int64_t trainable = numbers.empty() ? 0 : *numbers.begin();
  return {{"params", counts.params}, {"trainable", trainable}, {"moments", kinds}};
}

Manifest parse_body(const std::string& body) {
  const Json json = Json::parse(body + "\"\":0}");  // the body ends with a comma
  check_version(json);
  Manifest manifest;
  manifest.info.step = json.at("step").get<int64_t>();
  manifest.info.next_sample = json.at("next_sample").get<int64_t>();
  manifest.info.config_digest = json.at("config_digest").get<std::string>();
  manifest.info.fixed_digest = json.value("fixed_digest", std::string());
  manifest.info.data = json.value("data", std::string());
  manifest.info.finished = json.at("finished").get<bool>();
  manifest.info.loss_scale = parse_loss_scale(json);
  const auto& scale = manifest.info.loss_scale;
  manifest.info.skipped = scale ? scale->skipped : json.value("skipped", int64_t{0});
  if (json.contains("eval_loss")) manifest.info.eval_loss = json["eval_loss"].get<double>();
  manifest.counts = parse_counts(json);
  manifest.world_size = json.at("world_size").get<int32_t>();
  for (const Json& file : json.at("files")) manifest.files.push_back(parse_file(file));
  for (const Json& tensor : json.at("tensors")) manifest.tensors.push_back(parse_tensor(tensor));
  return manifest;
}

}  // namespace

std::string to_hex(const std::vector<uint32_t>& crc) {
  std::string digits;
  for (const uint32_t value : crc) digits += hex(value);
  return digits;
}

std::vector<uint32_t> from_hex(const std::string& digits) {
  if (digits.size() % kDigits != 0 ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    damaged("'" + digits.substr(0, 80) + "' is not a list of checksums");
  }
  std::vector<uint32_t> crc;
  for (size_t i = 0; i < digits.size(); i += kDigits) {
    crc.push_back(static_cast<uint32_t>(std::stoul(digits.substr(i, kDigits), nullptr, 16)));
  }
  return crc;
}

std::string to_text(const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  std::string text = concat("{\"format\":\"",
                            kFormat,
                            "\",\"version\":",
                            kVersion,
                            ",\n\"step\":",
                            info.step,
                            ",\"next_sample\":",
                            info.next_sample,
                            ",\"finished\":",
                            info.finished ? "true" : "false",
                            ",\"world_size\":",
                            manifest.world_size,
                            ",\n\"config_digest\":",
                            Json(info.config_digest).dump(),
                            ",\n");
  if (!info.fixed_digest.empty())
    text += "\"fixed_digest\":" + Json(info.fixed_digest).dump() + ",\n";
  if (!info.data.empty()) text += "\"data\":" + Json(info.data).dump() + ",\n";
  if (info.eval_loss) text += "\"eval_loss\":" + Json(*info.eval_loss).dump() + ",\n";
  if (info.loss_scale) {
    text += "\"loss_scale\":" + to_json(*info.loss_scale).dump() + ",\n";
  } else if (info.skipped > 0) {
    text += concat("\"skipped\":", info.skipped, ",\n");
  }
  if (manifest.counts) text += "\"contents\":" + to_json(*manifest.counts).dump() + ",\n";
  text += lines("files", manifest.files) + lines("tensors", manifest.tensors);
  return text + kDigestBegin + hex(crc32c(0, text.data(), text.size())) + kDigestEnd;
}

Manifest parse_manifest(const std::string& text) {
  try {
    Manifest manifest = parse_body(check_digest(text));
    check_tiling(&manifest.tensors, YOKE_DATA_LOSS, "");
    return manifest;
  } catch (const nlohmann::json::exception& e) {
    damaged(std::string("the manifest cannot be read: ") + e.what());
  }
}

}  // namespace yoke
