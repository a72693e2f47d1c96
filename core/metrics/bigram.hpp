// A baseline for language models of bytes: a model that has learned anything must have a lower
// loss.
#pragma once

#include <cstdint>
#include <span>

namespace yoke {

// Fits P(next | byte) = (count(byte, next) + alpha) / (count(byte) + 256 alpha) to the bytes of
// `training`. Returns the mean of -ln P over all pairs of neighbours in `held_out`, in nats per
// byte. Throws Error (INVALID_ARGUMENT) unless alpha > 0 and held_out has at least two bytes.
double bigram_loss(std::span<const uint8_t> training,
                   std::span<const uint8_t> held_out,
                   double alpha);

}  // namespace yoke
