// The line answers four questions in this order: how far is the run, how good is the model, how
// fast is training, and how long will it take? The line is overwritten in place, so it must stay
// short and holds nothing else.

#include "core/metrics/progress.hpp"

#include "core/base/text.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kBarWidth = 20;

}  // namespace

std::string progress_line(const Progress& p) {
  const int64_t filled = kBarWidth * p.step / p.steps;
  std::string line =
      concat("step ",
             p.step,
             "/",
             p.steps,
             " [",
             std::string(filled, '#'),
             std::string(kBarWidth - filled, '-'),
             string_printf(
                 "] %3lld%%  loss %.4f", static_cast<long long>(100 * p.step / p.steps), p.loss));
  if (p.tps > 0) line += "  " + with_commas(p.tps) + " tps";
  // A resumed run must not divide its time by steps that an earlier process completed.
  if (p.step > p.first) {
    const double each = p.seconds / static_cast<double>(p.step - p.first);
    line += "  " + duration_text(each * static_cast<double>(p.steps - p.step)) + " left";
  }
  return line;
}

}  // namespace yoke
