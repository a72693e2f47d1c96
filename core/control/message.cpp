#include "core/control/message.hpp"

#include <charconv>

#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr size_t kLengthBytes = 4;

void add_length(std::string& bytes, size_t length) {
  for (size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(length >> (8 * i));
}

size_t length_at(const std::string& bytes, size_t at) {
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return length;
}

[[noreturn]] void refuse(const char* why) {
  throw Error(YOKE_DATA_LOSS, why);
}

}  // namespace

std::string encode(const Message& message) {
  size_t size = 1;
  for (const std::string& field : message.fields) size += kLengthBytes + field.size();
  std::string bytes;
  bytes.reserve(kLengthBytes + size);
  add_length(bytes, size);
  bytes += static_cast<char>(message.type);
  for (const std::string& field : message.fields) {
    add_length(bytes, field.size());
    bytes += field;
  }
  return bytes;
}

std::optional<Message> FrameReader::next() {
  if (bytes_.size() < kLengthBytes) return std::nullopt;
  const size_t size = length_at(bytes_, 0);
  if (size == 0) refuse("a frame without a type");
  if (size > limit_) refuse("a frame that is too large");
  if (bytes_.size() < kLengthBytes + size) return std::nullopt;

  const auto type = static_cast<uint8_t>(bytes_[kLengthBytes]);
  if (type == 0 || type > static_cast<uint8_t>(kLastMessageType)) refuse("an unknown message");
  Message message{static_cast<MessageType>(type), {}};
  const size_t end = kLengthBytes + size;
  for (size_t at = kLengthBytes + 1; at < end;) {
    if (end - at < kLengthBytes) refuse("a field without a length");
    const size_t length = length_at(bytes_, at);
    at += kLengthBytes;
    if (length > end - at) refuse("a field that is longer than its frame");
    message.fields.push_back(bytes_.substr(at, length));
    at += length;
  }
  bytes_.erase(0, end);
  return message;
}

int64_t number_in(const std::string& field) {
  int64_t value = -1;
  const char* end = field.data() + field.size();
  const auto [at, error] = std::from_chars(field.data(), end, value);
  return error == std::errc() && at == end && value >= 0 ? value : -1;
}

}  // namespace yoke
