#include "core/text/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace yoke {
namespace {

// Sets the probabilities of all but the likeliest tokens to 0.
void limit(std::vector<double>& p, const SamplingOptions& options) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  if (options.top_k > 0 && options.top_k < std::ssize(order)) {
    for (size_t i = static_cast<size_t>(options.top_k); i < order.size(); ++i) p[order[i]] = 0;
    order.resize(static_cast<size_t>(options.top_k));
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  double sum = 0;
  for (const size_t id : order) {
    if (sum >= options.top_p * total) p[id] = 0;
    sum += p[id];
  }
}

}  // namespace

int64_t sample(std::span<const double> logits,
               const SamplingOptions& options,
               std::mt19937_64& random) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return best - logits.begin();
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - *best) / options.temperature);
  if (options.top_k > 0 || options.top_p < 1) limit(p, options);
  // The cumulative distribution is inverted.
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  const double u = std::uniform_real_distribution<double>(0, total)(random);
  double sum = 0;
  int64_t last = best - logits.begin();
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    sum += p[i];
    last = static_cast<int64_t>(i);
    if (u < sum) break;
  }
  return last;
}

}  // namespace yoke
