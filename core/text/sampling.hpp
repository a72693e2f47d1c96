// The choice of the next token of a text from the logits of a model.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace yoke {

struct SamplingOptions {
  double temperature = 0.8;  // 0 = always the most likely token
  int64_t top_k = 0;         // number of tokens that may be chosen, the most likely ones; 0 = all
  // Of these tokens, the most likely ones whose probabilities sum to top_p or more may be chosen.
  double top_p = 1;
};

// Draws an id from softmax(logits / temperature), limited by top_k and then by top_p. A logit of
// minus infinity is never chosen; at least one must be larger. Of equal logits, the lower id counts
// as more likely. The same state of `random` gives the same id.
int64_t sample(std::span<const double> logits,
               const SamplingOptions& options,
               std::mt19937_64& random);

}  // namespace yoke
