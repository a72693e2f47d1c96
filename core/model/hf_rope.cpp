// transformers 4 writes rope_theta beside rope_scaling, transformers 5 writes both into
// rope_parameters. A checkpoint of Yoke may have all three, so that both versions open it; they
// must then agree.
#include "core/model/hf_rope.hpp"

#include <cmath>
#include <optional>

#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;
using Kind = RopeScaling::Kind;

std::optional<Kind> kind_of(const std::string& type) {
  if (type == "default") return Kind::kNone;
  if (type == "linear") return Kind::kLinear;
  if (type == "dynamic") return Kind::kDynamic;
  if (type == "yarn") return Kind::kYarn;
  if (type == "llama3") return Kind::kLlama3;
  return std::nullopt;
}

// Returns a number of the object that must be there. allowed: the end of a message.
double required(HfReader& rope, const char* key, double least, const char* allowed) {
  if (rope.find(key) == nullptr) {
    rope.fault(concat(key, " is missing"));
    return least;
  }
  const double value = rope.number(key, least);
  if (value >= least) return value;
  rope.refuse(key, *rope.find(key), concat("; allowed: ", allowed));
  return least;
}

// The factor of the cosines and sines, which YaRN derives from its factor.
double yarn_attention_factor(HfReader& rope, double factor) {
  const auto scale = [&](double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  if (rope.find("attention_factor") != nullptr) return rope.number("attention_factor", 1);
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  return mscale != 0 && all != 0 ? scale(mscale) / scale(all) : scale(1);
}

// Reads the object of a kind other than kNone.
RopeScaling read_scaling(HfReader& rope, Kind kind, int64_t max_positions, int64_t original) {
  RopeScaling s;
  s.kind = kind;
  if (kind == Kind::kLinear || kind == Kind::kDynamic) {
    s.factor = required(rope, "factor", 1, "at least 1");
    if (kind == Kind::kDynamic) s.original_positions = max_positions;
    return s;
  }
  s.original_positions =
      original > 0 ? original : rope.count("original_max_position_embeddings", max_positions);
  if (kind == Kind::kLlama3) {
    s.factor = required(rope, "factor", 1, "at least 1");
    s.slow = required(rope, "low_freq_factor", 0, "at least 0");
    s.fast = required(rope, "high_freq_factor", 0, "at least 0");
    if (s.fast <= s.slow) {
      rope.fault(concat("high_freq_factor = ", s.fast) +
                 concat("; allowed: above low_freq_factor = ", s.slow));
    }
    return s;
  }
  // In files of some models the factor is null: it then follows from the two lengths.
  const bool given = rope.find("factor") != nullptr || !rope.has("factor");
  s.factor = given ? required(rope, "factor", 1, "at least 1")
                   : static_cast<double>(max_positions) / static_cast<double>(s.original_positions);
  const auto or_default = [](double value, double otherwise) {
    return value == 0 ? otherwise : value;
  };
  s.fast = or_default(rope.number("beta_fast", 0), 32);
  s.slow = or_default(rope.number("beta_slow", 0), 1);
  s.attention_factor = yarn_attention_factor(rope, s.factor);
  s.truncate = rope.boolean("truncate", true);
  return s;
}

struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

// Reads one of the two objects; both members are empty if the file does not have it.
Rope read_object(HfReader& reader, const char* key, int64_t max_positions, int64_t original) {
  const Json* json = reader.find(key);
  if (json == nullptr || json->empty()) return {};
  Rope found;
  found.scaling.emplace();
  if (!json->is_object()) {
    reader.refuse(key, *json, "; allowed: null, an object");
    return {};
  }
  for (const auto& item : json->items()) {
    if (!item.value().is_object()) continue;
    reader.refuse(key, *json, ": rotary positions that differ between layers are not supported");
    return {};
  }
  HfReader rope(*json, reader.where() + ": " + key);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  const auto kind = kind_of(type);
  if (!kind) {
    reader.refuse(key,
                  *json,
                  ": rope_type \"" + type +
                      "\" is not supported; allowed: \"default\", \"linear\", \"dynamic\", "
                      "\"yarn\", \"llama3\"");
    return {};
  }
  rope.fixed(
      {"partial_rotary_factor", "1.0", "rotary positions on a part of a head are not supported"});
  if (rope.find("rope_theta") != nullptr) found.theta = rope.number("rope_theta", 10000);
  if (*kind != Kind::kNone) found.scaling = read_scaling(rope, *kind, max_positions, original);
  reader.add_faults(rope);
  return found;
}

}  // namespace

void read_hf_rope(HfReader& reader, int64_t max_positions, ModelDims& dims) {
  std::optional<double> theta;
  if (reader.find("rope_theta") != nullptr) theta = reader.number("rope_theta", 10000);
  const int64_t original = reader.find("original_max_position_embeddings") == nullptr
                               ? 0
                               : reader.count("original_max_position_embeddings", 1);
  std::optional<RopeScaling> scaling;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Rope rope = read_object(reader, key, max_positions, original);
    const auto contradicts = [&](const char* what) {
      reader.refuse(key, *reader.find(key), concat(" contradicts ", what));
    };
    if (rope.theta && theta && *rope.theta != *theta) contradicts("rope_theta");
    if (rope.theta) theta = rope.theta;
    if (rope.scaling && scaling && *rope.scaling != *scaling) contradicts("rope_scaling");
    if (rope.scaling) scaling = rope.scaling;
  }
  dims.rope_theta = theta.value_or(10000);
  dims.rope = scaling.value_or(RopeScaling{});
}

}  // namespace yoke
