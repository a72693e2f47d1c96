// Which communicator carries a message between two ranks of a pipeline. Pure; no LibTorch.
//
// c10d carries out the messages of a rank in an NCCL communicator one after the other, in the order
// in which the rank issues them, whoever the other rank is. In a communicator in which a rank
// receives, its sends would wait for messages that nobody has computed yet. So a communicator has
// messages of one kind and one direction, and those of every second rank: in all placements of
// stages that schedules use, a rank either sends or receives in it, with one other rank.
#pragma once

namespace yoke::mesh {

// The bits of the number of a communicator.
inline constexpr int kMessageOfOddRank = 1;  // the rank that sends has an odd number
inline constexpr int kMessageGoesUp = 2;     // the rank that receives has the higher number
inline constexpr int kMessageIsGrad = 4;     // the message is a gradient
inline constexpr int kMessageComms = 8;

// Returns the number of the communicator for messages from one rank to another, both along pp.
// ranks: the size of pp. With two ranks the direction alone says which of them sends.
constexpr int message_comm(int from, int to, bool grad, int ranks) {
  const bool odd = ranks > 2 && from % 2 == 1;
  return (odd ? kMessageOfOddRank : 0) + (to > from ? kMessageGoesUp : 0) +
         (grad ? kMessageIsGrad : 0);
}

}  // namespace yoke::mesh
