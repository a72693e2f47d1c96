// What a rank brings to the start of a run: facts that must be equal on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

// One fact, such as the value of a key of the run file.
struct Fact {
  std::string key;     // "train.lr", "version of Yoke"
  std::string value;   // "0.0003"
  std::string source;  // where the value was set ("command line"); "" = not printed
};
using Introduction = std::vector<Fact>;

// Convert an introduction to a text for a message, and back. unpack_introduction() throws
// Error(DATA_LOSS) for a text that pack_introduction() cannot have made.
std::string pack_introduction(const Introduction& introduction);
Introduction unpack_introduction(const std::string& text);

// The introduction of one rank, and who it is.
struct Introduced {
  int32_t rank;  // or the number of a machine
  std::string host;
  Introduction facts;
};

// Compares all ranks with the first one. Returns nothing if they are equal, else a text that names
// the differing keys, both values, and the ranks and hosts that have them:
//
//   the ranks do not run the same job:
//     train.lr: rank 0 (node0) has 0.0003, ranks 2, 3 (node1) have 0.01 (command line)
//
// At most five keys are listed. `all` is not empty and in the order of the ranks. noun: what `rank`
// counts, for the text.
std::optional<std::string> first_differences(const std::vector<Introduced>& all,
                                             const std::string& noun = "rank");

}  // namespace yoke
