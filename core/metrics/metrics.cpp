#include "core/metrics/metrics.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr uint64_t kMaxMetricsBytes = uint64_t{1} << 32;

constexpr char kReset[] = "\033[0m";
constexpr char kRed[] = "\033[31m";
constexpr char kGreen[] = "\033[32m";
constexpr char kYellow[] = "\033[33m";
constexpr char kBlue[] = "\033[34m";
constexpr char kMagenta[] = "\033[35m";
constexpr char kCyan[] = "\033[36m";

// Line joins columns with two spaces.
class Line {
 public:
  explicit Line(bool colour) : colour_(colour) {}
  Line& add(const char* colour, const std::string& text) {
    if (!text_.empty()) text_ += "  ";
    text_ += colour_ ? colour + text + kReset : text;
    return *this;
  }
  std::string text() const { return text_; }

 private:
  bool colour_;
  std::string text_;
};

Json to_json(const CommUse& use) {
  return {{"calls", use.calls}, {"bytes", use.bytes}, {"seconds", use.seconds}};
}

Json to_json(const ProductUse& use) {
  Json json = {{"percent", use.percent}, {"rounding_percent", use.rounding_percent}};
  if (use.rounded > 0) {
    json["rounded"] = use.rounded;
    json["largest"] = use.largest;
    json["zeroed"] = use.zeroed;
  }
  return json;
}

void add_products(const ProductUse& use, Line& line) {
  line.add(kYellow, string_printf("products: %.1f%%", use.percent))
      .add(kYellow, string_printf("fp8_rounding: %.1f%%", use.rounding_percent));
  if (use.rounded == 0) return;
  line.add(kYellow, string_printf("fp8_max: %.2g%%", use.largest_percent()))
      .add(kYellow, string_printf("fp8_zero: %.2g%%", use.zeroed_percent()));
}

// Returns the step of a line; nothing if the line is incomplete or was not written by Yoke.
std::optional<int64_t> step_of(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return {};
  return json["step"].get<int64_t>();
}

std::string lines_up_to(const std::string& text, int64_t last_step) {
  std::string kept;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const auto step = step_of(line);
    if (step && *step <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string log_line(const StepMetrics& m, bool colour) {
  const double share = m.memory_total_bytes > 0 ? 100.0 * static_cast<double>(m.memory_bytes) /
                                                      static_cast<double>(m.memory_total_bytes)
                                                : 0.0;
  Line line(colour);
  line.add(kRed, string_printf("step: %2lld", static_cast<long long>(m.step)))
      .add(kGreen, string_printf("loss: %7.4f", m.loss))
      .add(kYellow,
           std::isnan(m.grad_norm) ? "grad_norm:      -"
                                   : string_printf("grad_norm: %6.2f", m.grad_norm))
      .add(kCyan, string_printf("lr: %.1e", m.lr));
  if (m.loss_scale) line.add(kGreen, string_printf("loss_scale: %.10g", *m.loss_scale));
  if (m.loss_scale || m.skipped > 0)
    line.add(kRed, string_printf("skipped: %lld", static_cast<long long>(m.skipped)));
  line.add(kMagenta,
           string_printf(
               "memory: %5.2fGiB(%.1f%%)", static_cast<double>(m.memory_bytes) / kGiB, share))
      .add(kBlue, "tps: " + with_commas(m.tps));
  if (m.tflops > 0) line.add(kCyan, string_printf("tflops: %.2f", m.tflops));
  if (m.mfu_percent) line.add(kMagenta, string_printf("mfu: %.1f%%", *m.mfu_percent));
  line.add(kYellow, string_printf("comm: %.1f%%", m.comm_percent));
  if (m.bubble_percent) line.add(kYellow, string_printf("bubble: %.1f%%", *m.bubble_percent));
  if (m.products) add_products(*m.products, line);
  return line.text();
}

std::string log_line(const EvalMetrics& m, bool colour) {
  Line line(colour);
  line.add(kRed, string_printf("step: %2lld", static_cast<long long>(m.step)))
      .add(kGreen, string_printf("eval_loss: %7.4f", m.loss))
      .add(kBlue, "tokens: " + with_commas(static_cast<double>(m.tokens)))
      .add(kCyan, string_printf("seconds: %.1f", m.seconds));
  return line.text();
}

std::string json_line(const StepMetrics& m) {
  Json comm = Json::object();
  for (const auto& [axes, use] : m.comm) comm[axes] = to_json(use);
  Json json = {{"step", m.step},
               {"loss", m.loss},
               {"grad_norm", m.grad_norm},
               {"lr", m.lr},
               {"tokens", m.tokens},
               {"epoch", m.epoch},
               {"step_seconds", m.step_seconds},
               {"tps", m.tps},
               {"tflops", m.tflops},
               {"memory", m.memory_bytes},
               {"comm_percent", m.comm_percent},
               {"comm", comm}};
  if (m.loss_scale) json["loss_scale"] = *m.loss_scale;
  if (m.loss_scale || m.skipped > 0) json["skipped"] = m.skipped;
  if (m.mfu_percent) json["mfu_percent"] = *m.mfu_percent;
  if (m.bubble_percent) json["bubble_percent"] = *m.bubble_percent;
  if (m.products) json["products"] = to_json(*m.products);
  if (const auto& slow = m.straggler) {
    json["slowest"] = {{"rank", slow->rank},
                       {"host", slow->host},
                       {"factor", slow->factor},
                       {"since", slow->since}};
  }
  for (const auto& [name, value] : m.backend) json[name] = value;
  return json.dump();
}

std::string json_line(const EvalMetrics& m) {
  return Json{{"step", m.step},
              {"eval_loss", m.loss},
              {"eval_tokens", m.tokens},
              {"eval_seconds", m.seconds}}
      .dump();
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && term != nullptr &&
         std::string_view(term) != "dumb";
}

struct MetricsFile::Impl {
  File file;
  uint64_t size;
};

MetricsFile::MetricsFile(const std::string& path, int64_t last_step) {
  // The file is replaced atomically by the kept lines, so a crash here loses nothing.
  std::string kept;
  if (::access(path.c_str(), F_OK) == 0)
    kept = lines_up_to(read_text(path, kMaxMetricsBytes), last_step);
  replace_text(path, kept);
  impl_ = std::make_unique<Impl>(Impl{File::open_for_writing(path), kept.size()});
}

MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const StepMetrics& metrics) {
  write_line(json_line(metrics));
}
void MetricsFile::write(const EvalMetrics& metrics) {
  write_line(json_line(metrics));
}

void MetricsFile::write_line(std::string line) {
  line += '\n';
  impl_->file.write_at(line.data(), line.size(), impl_->size);
  impl_->size += line.size();
}

}  // namespace yoke
