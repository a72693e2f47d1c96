// The baseline that a language model of bytes must beat.
#pragma once

#include <cstdint>
#include <span>

namespace yoke {

// Fits P(next | byte) = (count(byte, next) + alpha) / (count(byte) + 256 alpha) to the training
// bytes and returns the mean of -ln P over the pairs of neighbours of the held-out bytes, in nats
// per byte. alpha > 0; held_out needs at least two bytes. INVALID_ARGUMENT otherwise.
double bigram_loss(std::span<const uint8_t> training,
                   std::span<const uint8_t> held_out,
                   double alpha);

}  // namespace yoke
