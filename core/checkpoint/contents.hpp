// What the state of a backend must contain to be complete, and the check that it does. A tensor
// that no rank reports would be missing in every checkpoint, and the run could not be resumed.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/layout.hpp"
#include "core/checkpoint/save_messages.hpp"

namespace yoke {

// Returns the tensors and the pieces with replica 0 that the walk over one rank describes; these
// are the pieces that this rank saves. Throws Error(INTERNAL) for a piece that breaks the contract.
RankTensors describe_state(const PieceWalk& walk);

// Merges the descriptions of all ranks, in rank order, and returns the tensors sorted by name and
// kind. Throws Error(INTERNAL) unless the pieces tile every tensor, or if ranks disagree about one.
std::vector<StoredTensor> merge_state(const std::vector<RankTensors>& descriptions);

// Throws Error(INTERNAL) that names what is missing or unexpected, and how many more there are.
void check_contents(const std::vector<StoredTensor>& tensors, const StateContents& contents);

// Returns what a manifest records of the contents.
ContentCounts counts_of(const StateContents& contents);

// Throws Error(DATA_LOSS) unless the tensors of a checkpoint agree with the counts that its
// manifest has recorded. Checkpoints of an older Yoke have none; for these it checks that
// "optimizer.step" exists, and that the two moments of AdamW exist for the same parameters.
void check_counts(const std::vector<StoredTensor>& tensors,
                  const std::optional<ContentCounts>& counts);

}  // namespace yoke
