#include "core/metrics/progress.hpp"

#include <array>
#include <cstdio>

#include "core/base/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kBarWidth = 20;

}  // namespace

std::string progress_line(const Progress& p) {
  const int64_t filled = kBarWidth * p.step / p.steps;
  std::array<char, 32> part{};
  std::snprintf(part.data(),
                part.size(),
                "] %3lld%%  loss %.4f",
                static_cast<long long>(100 * p.step / p.steps),
                p.loss);
  std::string line = "step " + std::to_string(p.step) + "/" + std::to_string(p.steps) + " [" +
                     std::string(filled, '#') + std::string(kBarWidth - filled, '-') + part.data();
  if (p.tps > 0) line += "  " + with_commas(p.tps) + " tps";
  if (p.step > p.first) {
    const double each = p.seconds / static_cast<double>(p.step - p.first);
    line += "  " + duration_text(each * static_cast<double>(p.steps - p.step)) + " left";
  }
  return line;
}

}  // namespace yoke
