#include "plugins/validate/trace.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

// Returns a text as a JSON string. Texts of a backend may contain anything.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += string_printf("\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

Fields& Fields::add(std::string_view key, std::string_view text) {
  text_ += concat(",", quoted(key), ":", quoted(text));
  return *this;
}

Fields& Fields::add(std::string_view key, int64_t number) {
  text_ += concat(",", quoted(key), ":", number);
  return *this;
}

Fields& Fields::add(std::string_view key, double number) {
  text_ += concat(",", quoted(key), ":", std::isfinite(number) ? concat(number) : "null");
  return *this;
}

Fields& Fields::add(const YokeTensor* tensor) {
  if (tensor == nullptr) return *this;
  const int32_t dtype = YOKE_DTYPE_OF(tensor->dtype);
  const int64_t count = numel(*tensor);
  add("dtype", dtype_name(dtype));
  add("count", count);
  return add("bytes", count * item_size(dtype));
}

std::string trace_file_of(const std::string& file, int32_t rank) {
  const size_t slash = file.rfind('/'), dot = file.rfind('.');
  const bool has_extension =
      dot != std::string::npos && dot > (slash == std::string::npos ? 0 : slash + 1);
  const size_t at = has_extension ? dot : file.size();
  return file.substr(0, at) + string_printf("_%03d", rank) + file.substr(at);
}

Trace::Trace(const std::string& file, int32_t rank) {
  if (file.empty()) return;
  name_ = trace_file_of(file, rank);
  file_ = std::fopen(name_.c_str(), "w");
  if (file_ != nullptr) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "the trace " + name_ + " cannot be written: " + std::strerror(errno) +
                  "; choose a file in a folder that exists and that you may write to");
}

Trace::~Trace() {
  if (file_ != nullptr) std::fclose(file_);
}

// A line is flushed at once, so that a run that crashes leaves its last call.
void Trace::write(const Call& call, const Fields& fields) {
  if (file_ == nullptr) return;
  const auto since = std::chrono::steady_clock::now() - start_;
  const auto microseconds = [](std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / 1e3;
  };
  Fields line;
  line.add("at_us", microseconds(since - call.time))
      .add("us", microseconds(call.time))
      .add("by", call.by)
      .add("call", call.name)
      .add("in", call.function);
  if (call.step >= 0) line.add("step", call.step);
  line.add("code", int64_t{call.code});
  const std::string text = concat("{", line.text().substr(1), fields.text(), "}\n");
  const std::lock_guard lock(mutex_);
  std::fwrite(text.data(), 1, text.size(), file_);
  std::fflush(file_);
}

}  // namespace yoke::validate
