#include "core/checkpoint/save_messages.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Parses a message. If it is a failure, throws it.
Json parse(const std::string& text) {
  Json json = Json::parse(text);
  if (!json.contains("error")) return json;
  const Json& error = json.at("error");
  throw Error(error.at("code"), error.at("text").get<std::string>(), error.at("rank"));
}

// Objects are filled key by key: an initializer list would copy every value, and a model has
// thousands of pieces.
Json to_json(const StoredPiece& piece) {
  Json json = Json::object();
  json["begin"] = piece.at.begin;
  json["count"] = piece.at.count;
  json["run"] = piece.at.run;
  json["stride"] = piece.at.stride;
  json["crc"] = piece.crc;
  return json;
}

StoredPiece piece_from(const Json& json) {
  StoredPiece piece;
  piece.at = {json.at("begin"), json.at("count"), json.at("run"), json.at("stride")};
  piece.crc = json.at("crc").get<std::vector<uint32_t>>();
  return piece;
}

Json to_json(const StoredTensor& tensor) {
  Json pieces = Json::array();
  for (const StoredPiece& piece : tensor.pieces) pieces.push_back(to_json(piece));
  Json json = Json::object();
  json["name"] = tensor.name;
  json["kind"] = tensor.kind;
  json["dtype"] = tensor.dtype;
  json["shape"] = tensor.shape;
  json["pieces"] = std::move(pieces);
  return json;
}

StoredTensor tensor_from(const Json& json) {
  StoredTensor tensor;
  tensor.name = json.at("name");
  tensor.kind = json.at("kind");
  tensor.dtype = json.at("dtype");
  tensor.shape = json.at("shape").get<std::vector<int64_t>>();
  for (const Json& piece : json.at("pieces")) tensor.pieces.push_back(piece_from(piece));
  return tensor;
}

}  // namespace

std::string to_text(const RankTensors& message) {
  Json tensors = Json::array();
  for (const StoredTensor& tensor : message.tensors) tensors.push_back(to_json(tensor));
  Json json = Json::object();
  json["tensors"] = std::move(tensors);
  return dump(json);
}

RankTensors rank_tensors_from(const std::string& text) {
  const Json json = parse(text);
  RankTensors message;
  for (const Json& tensor : json.at("tensors")) message.tensors.push_back(tensor_from(tensor));
  return message;
}

std::vector<RankTensors> rank_tensors_from(const std::vector<std::string>& texts) {
  std::vector<RankTensors> messages;
  for (const std::string& text : texts) messages.push_back(rank_tensors_from(text));
  return messages;
}

std::string to_text(const FilePlan& message) {
  Json places = Json::array();
  for (const TensorPlace& place : message.tensors) {
    Json json = Json::object();
    json["name"] = place.name;
    json["kind"] = place.kind;
    json["file"] = place.file;
    json["offset"] = place.offset;
    places.push_back(std::move(json));
  }
  Json json = Json::object();
  json["folder"] = message.folder;
  json["tensors"] = std::move(places);
  return dump(json);
}

FilePlan file_plan_from(const std::string& text) {
  const Json json = parse(text);
  FilePlan message;
  message.folder = json.at("folder");
  for (const Json& place : json.at("tensors")) {
    message.tensors.push_back(
        {place.at("name"), place.at("kind"), place.at("file"), place.at("offset")});
  }
  return message;
}

std::string to_text(const Committed& message) {
  return dump({{"path", message.path}});
}

Committed committed_from(const std::string& text) {
  return {parse(text).at("path")};
}

std::string failure_text(int32_t code, const std::string& text, int32_t rank) {
  return dump({{"error", {{"code", code}, {"text", text}, {"rank", rank}}}});
}

}  // namespace yoke
