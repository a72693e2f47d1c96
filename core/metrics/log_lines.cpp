// Programs find a number in these lines by its name, and some programs by its position. So names,
// order and notation are those of the originals. Only what a run does not have is left out.
#include "core/metrics/log_lines.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <iterator>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns "2026-11-27 10:15:00.123456", local time.
std::string stamp(std::chrono::system_clock::time_point now) {
  const auto since = now.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(since - seconds);
  const std::time_t time = seconds.count();
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return string_printf("%s.%06lld", text, static_cast<long long>(micros.count()));
}

// Returns three significant digits and a unit of thousands, as nanotron does: 20480 is "20.5K".
std::string human(double number) {
  if (std::abs(number) < 1) return string_printf("%.3g", number);
  double rounded = std::strtod(string_printf("%.2e", number).c_str(), nullptr);
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (std::abs(rounded) >= 1000 && unit + 1 < std::size(kUnits)) {
    rounded /= 1000;
    ++unit;
  }
  return string_printf("%.6g", rounded) + kUnits[unit];
}

}  // namespace

std::string LogLines::of(const StepMetrics& metrics,
                         std::chrono::system_clock::time_point now) const {
  if (format_ == "megatron") return megatron(metrics, now);
  if (format_ == "nanotron") return nanotron(metrics);
  return log_line(metrics, colour_);
}

std::string LogLines::of(const EvalMetrics& metrics) const {
  if (format_ != "megatron") return log_line(metrics, colour_);
  return string_printf(
      " validation loss at iteration %lld | lm loss value: %.6E | lm loss PPL: %.6E | ",
      static_cast<long long>(metrics.step),
      metrics.loss,
      std::exp(std::min(metrics.loss, 20.0)));
}

std::string LogLines::megatron(const StepMetrics& m,
                               std::chrono::system_clock::time_point now) const {
  const auto whole = [](int64_t n) { return static_cast<long long>(n); };
  std::string line = string_printf(" [%s] iteration %8lld/%8lld | consumed samples: %12lld |",
                                   stamp(now).c_str(),
                                   whole(m.step),
                                   whole(run_.steps),
                                   whole(m.tokens / run_.seq_len));
  line += string_printf(" elapsed time per iteration (ms): %.1f |", m.step_seconds * 1000);
  if (m.tflops > 0) line += string_printf(" throughput per GPU (TFLOP/s/GPU): %.1f |", m.tflops);
  line += string_printf(" learning rate: %.6E | global batch size: %5lld | lm loss: %.6E |",
                        m.lr,
                        whole(run_.global_batch),
                        m.loss);
  line += string_printf(" loss scale: %.1f |", m.loss_scale.value_or(1));
  if (!std::isnan(m.grad_norm)) line += string_printf(" grad norm: %.3f |", m.grad_norm);
  line += string_printf(" number of skipped iterations: %3lld | number of nan iterations: %3d |",
                        whole(m.newly_skipped),
                        0);
  return line;
}

std::string LogLines::nanotron(const StepMetrics& m) const {
  std::string line = concat("iteration: ", m.step, " / ", run_.steps);
  const auto add = [&](const char* name, double value) {
    line += concat(" | ", name, ": ", human(value));
  };
  add("consumed_tokens", static_cast<double>(m.tokens));
  add("elapsed_time_per_iteration_ms", m.step_seconds * 1000);
  add("tokens_per_sec", m.tps);
  add("tokens_per_sec_per_gpu", m.tps / static_cast<double>(run_.ranks));
  add("global_batch_size", static_cast<double>(run_.global_batch));
  add("lm_loss", m.loss);
  add("lr", m.lr);
  if (m.tflops > 0) add("model_tflops_per_gpu", m.tflops);
  if (!std::isnan(m.grad_norm)) add("grad_norm", m.grad_norm);
  return line;
}

}  // namespace yoke
