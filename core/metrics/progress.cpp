// The line answers four questions in this order: how far is the run, how good is the model, how
// fast is training, and how long will it take? The line is overwritten in place, so it must stay
// short and holds nothing else.

#include "core/metrics/progress.hpp"

#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kBarWidth = 20;

// Returns the largest n with n / parts <= done / total, so that only what is completed is shown as
// completed. Doubles were rejected: they give 28 for 29 % and 100 for nearly 100 %.
size_t share(int64_t done, int64_t total, int64_t parts) {
  __extension__ using Wide = __int128;
  return total > 0 ? static_cast<size_t>(Wide{done} * parts / total) : static_cast<size_t>(parts);
}

}  // namespace

std::string progress_bar(int64_t done, int64_t total) {
  const size_t filled = share(done, total, kBarWidth);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '-') +
         string_printf("] %3zu%%", share(done, total, 100));
}

std::string progress_line(const Progress& p) {
  std::string line = concat("step ", p.step, "/", p.steps, " ", progress_bar(p.step, p.steps)) +
                     string_printf("  loss %.4f", p.loss);
  if (p.tps > 0) line += "  " + with_commas(p.tps) + " tps";
  // A resumed run must not divide its time by steps that an earlier process completed.
  if (p.step > p.first) {
    const double each = p.seconds / static_cast<double>(p.step - p.first);
    line += "  " + duration_text(each * static_cast<double>(p.steps - p.step)) + " left";
  }
  return line;
}

}  // namespace yoke
