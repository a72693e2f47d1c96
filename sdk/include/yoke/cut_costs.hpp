// What the blocks of a model cost a rank if tensor or context parallelism distributes their
// tensors, for backends that forecast the memory of such layouts. The costs in YokeBlock are those
// of whole tensors. They are not simply divided: some tensors stay whole, and operators on
// distributed tensors keep other tensors than fused operators do.
#pragma once

#include <cstdint>

#include "yoke/parallel_backend.h"

namespace yoke {

// Bytes for one sequence, by how tensor parallelism cuts the tensors. Context parallelism cuts all
// of them but the weights along the sequence.
struct CutBytes {
  int64_t stream = 0;   // norms and residuals: cut only with sequence parallelism
  int64_t parts = 0;    // results of products with cut weights: cut as these are
  int64_t inputs = 0;   // whole inputs of products, kept beside their parts in `stream`: only with
                        // sequence parallelism
  int64_t logits = 0;   // cut if the loss is computed on cut logits
  int64_t whole = 0;    // partial sums: never cut
  int64_t weights = 0;  // gradients of weights, for any number of sequences: cut as these are
};

// A point at which a pass over a block may need the most memory, in addition to what existed when
// it began; see YokeBlock.pass_bytes.
struct CutPass {
  int32_t kind;  // YOKE_FORECAST_FORWARD and so on
  CutBytes bytes;
};

struct CutBlock {
  CutBytes kept;          // bytes kept from a forward to its backward, without the block's input
  CutBytes carry;         // bytes of the block's output
  const CutPass* passes;  // num_passes points; NULL = unknown
  uint64_t num_passes;
};

inline constexpr uint32_t kCutCostsId = 66;  // a struct id that the contract does not use

// An extension of YokeModelSummary. Lives as long as the summary.
struct CutCosts {
  YokeHeader header;       // id kCutCostsId
  const CutBlock* blocks;  // one for each block of the summary
};

// Returns the extension of a summary; NULL if the host does not report these costs.
inline const CutCosts* cut_costs(const YokeModelSummary& summary) {
  for (const YokeHeader* h = summary.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == kCutCostsId) return reinterpret_cast<const CutCosts*>(h);
  }
  return nullptr;
}

}  // namespace yoke
