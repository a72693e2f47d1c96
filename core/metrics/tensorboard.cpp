// An event file is a sequence of records, and a record is a protocol buffer with a length and two
// checksums around it. Only three small messages are needed, so they are encoded here by hand, in
// some forty lines. A protobuf library was rejected: LibTorch contains one, and two versions of it
// in one process conflict.

#include "core/metrics/tensorboard.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/base/crc32c.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// ---- Protocol buffers: a field is its key (number << 3 | wire type) and its value ----

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Encodes seven bits per byte, lowest first; the high bit marks all bytes except for the last one.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string integer(int field, int64_t value) {
  return varint(field << 3) + varint(static_cast<uint64_t>(value));
}
std::string fixed64(int field, double value) {
  return varint(field << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string bytes(int field, const std::string& value) {
  return varint(field << 3 | 2) + varint(value.size()) + value;
}
std::string fixed32(int field, float value) {
  return varint(field << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

// ---- The messages of tensorflow/core/util/event.proto and summary.proto ----

// The numbers of the fields are those of the .proto files: Event { wall_time 1, step 2,
// file_version 3, summary 5, session_log 7 }, Summary { value 1 }, Value { tag 1, simple_value 2 }.
std::string event(const std::string& content) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fixed64(1, std::chrono::duration<double>(now).count()) + content;
}

std::string version_event() {
  return event(bytes(3, "brain.Event:2"));
}

// Makes a reader drop all events of `step` and later steps that it has read before this one.
std::string restart_event(int64_t step) {
  constexpr int kStart = 1;
  return event(integer(2, step) + bytes(7, integer(1, kStart)));
}

std::string summary_event(int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& s : scalars) summary += bytes(1, bytes(1, s.tag) + fixed32(2, s.value));
  return event(integer(2, step) + bytes(5, summary));
}

// ---- Records: length, checksum of the length, data, checksum of the data ----

// Returns the checksum in TensorFlow's form: rotated and offset by a constant, because a CRC of
// data that contains its own CRC is weak.
std::string masked_crc(const std::string& data) {
  const uint32_t crc = crc32c(0, data.data(), data.size());
  return little_endian((crc >> 15 | crc << 17) + 0xa282ead8u);
}

std::string record(const std::string& data) {
  const std::string length = little_endian(uint64_t{data.size()});
  return length + masked_crc(length) + data + masked_crc(data);
}

// TensorBoard reads the files of a folder in the order of their names, so the time comes first.
std::string new_file_name(const std::string& folder) {
  static std::atomic<int> count = 0;
  make_folders(folder);
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return concat(
      folder, "/events.out.tfevents.", seconds, ".", host.data(), ".", ::getpid(), ".", count++);
}

// A run that starts from its beginning again finds the files of the earlier attempt.
bool has_files(const std::string& folder) {
  std::error_code error;
  return std::filesystem::directory_iterator(folder, error) !=
         std::filesystem::directory_iterator();
}

std::vector<Scalar> finite(const std::vector<std::pair<const char*, double>>& all) {
  std::vector<Scalar> kept;
  for (const auto& [tag, value] : all) {
    if (std::isfinite(value)) kept.push_back({tag, static_cast<float>(value)});
  }
  return kept;
}

}  // namespace

std::vector<Scalar> scalars(const StepMetrics& m) {
  const ProductUse products = m.products.value_or(ProductUse{});
  const bool rounds = products.rounded > 0;
  const auto memory = static_cast<double>(m.memory_bytes);
  return finite({
      {"loss_metrics/global_avg_loss", m.loss},
      {"grad_norm", m.grad_norm},
      {"lr", m.lr},
      {"loss_scale", m.loss_scale.value_or(NAN)},
      {"skipped", m.loss_scale || m.skipped > 0 ? static_cast<double>(m.skipped) : NAN},
      {"throughput(tps)", m.tps},
      {"tflops", m.tflops},
      {"mfu(%)", m.mfu_percent.value_or(NAN)},
      {"time_metrics/end_to_end(s)", m.step_seconds},
      {"time_metrics/comm(%)", m.comm_percent},
      {"time_metrics/bubble(%)", m.bubble_percent.value_or(NAN)},
      {"time_metrics/products(%)", m.products ? products.percent : NAN},
      {"time_metrics/fp8_rounding(%)", m.products ? products.rounding_percent : NAN},
      {"fp8/max(%)", rounds ? products.largest_percent() : NAN},
      {"fp8/zero(%)", rounds ? products.zeroed_percent() : NAN},
      {"memory/max_active(GiB)", memory / kGiB},
      {"memory/max_active(%)", 100 * memory / static_cast<double>(m.memory_total_bytes)},
      {"tokens", static_cast<double>(m.tokens)},
      {"epoch", m.epoch},
  });
}

std::vector<Scalar> scalars(const EvalMetrics& m) {
  return finite({{"validation_metrics/loss", m.loss}});
}

EventFile::EventFile(const std::string& folder, int64_t last_step)
    : EventFile(folder, last_step, last_step > 0 || has_files(folder)) {}

EventFile::EventFile(const std::string& folder, int64_t last_step, bool continues)
    : file_(File::create(new_file_name(folder))) {
  append(version_event());
  if (continues) append(restart_event(last_step + 1));
}

void EventFile::write(int64_t step, const std::vector<Scalar>& scalars) {
  append(summary_event(step, scalars));
}

void EventFile::append(const std::string& event) {
  const std::string data = record(event);
  file_.write_at(data.data(), data.size(), size_);
  size_ += data.size();
}

}  // namespace yoke
