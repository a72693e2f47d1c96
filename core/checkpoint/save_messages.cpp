#include "core/checkpoint/save_messages.hpp"

#include <nlohmann/json.hpp>

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

Json to_json(const StoredPiece& piece) {
  return {{"begin", piece.at.begin},
          {"count", piece.at.count},
          {"run", piece.at.run},
          {"stride", piece.at.stride},
          {"crc", piece.crc}};
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
  return {{"name", tensor.name},
          {"kind", tensor.kind},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"pieces", pieces}};
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
  return dump({{"tensors", tensors}});
}

RankTensors rank_tensors_from(const std::string& text) {
  const Json json = parse(text);
  RankTensors message;
  for (const Json& tensor : json.at("tensors")) message.tensors.push_back(tensor_from(tensor));
  return message;
}

std::string to_text(const FilePlan& message) {
  Json places = Json::array();
  for (const TensorPlace& place : message.tensors) {
    places.push_back({{"name", place.name},
                      {"kind", place.kind},
                      {"file", place.file},
                      {"offset", place.offset}});
  }
  return dump({{"folder", message.folder}, {"tensors", places}});
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
