// A save can check that the pieces of each tensor cover it, but not that a tensor is missing: a
// backend that never reports lm_head.weight describes a consistent state of a smaller model. What
// has to exist follows from the model and from the optimizer, which the host knows. The host checks
// it before the first step, so that a faulty backend fails in seconds and not at the first
// checkpoint, and again at every save.
#include "core/checkpoint/contents.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/checkpoint/pieces.hpp"
#include "core/checkpoint/tiling.hpp"
#include "yoke/error.hpp"
#include "yoke/state_kind.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using TensorKey = std::pair<std::string, std::string>;  // name and kind
using Faults = std::vector<std::string>;

const std::set<std::string>& kinds_of_contract() {
  static const std::set<std::string> kinds = {"param", "exp_avg", "exp_avg_sq", "momentum", "step"};
  return kinds;
}

TensorKey key_of(const StoredTensor& tensor) {
  return {tensor.name, tensor.kind};
}

void merge_rank(const RankTensors& described,
                int32_t rank,
                std::map<TensorKey, StoredTensor>* all) {
  for (const StoredTensor& tensor : described.tensors) {
    StoredTensor without_pieces = tensor;
    without_pieces.pieces.clear();
    StoredTensor& merged = all->try_emplace(key_of(tensor), without_pieces).first->second;
    require_same(merged, tensor);
    for (const StoredPiece& piece : tensor.pieces) merged.pieces.push_back({piece.at, {}, rank});
  }
}

// Appends a fault unless the tensor exists with this shape.
void require_tensor(const std::map<TensorKey, const StoredTensor*>& tensors,
                    const TensorKey& key,
                    const std::vector<int64_t>& shape,
                    Faults* faults) {
  const auto at = tensors.find(key);
  if (at == tensors.end()) {
    faults->push_back(concat("'", key.second, "' of '", key.first, "' is missing"));
  } else if (at->second->shape != shape) {
    faults->push_back(concat("'", key.second, "' of '", key.first, "' has the shape ") +
                      shape_text(at->second->shape) + " instead of " + shape_text(shape));
  }
}

void throw_faults(const Faults& faults) {
  if (faults.empty()) return;
  constexpr size_t kListed = 3;
  std::string text;
  for (size_t i = 0; i < std::min(faults.size(), kListed); ++i)
    text += (i == 0 ? "" : ", ") + faults[i];
  if (faults.size() > kListed) text += concat(", and ", faults.size() - kListed, " more");
  throw Error(YOKE_INTERNAL,
              "the state that the backend reports is not complete: " + text +
                  "; checkpoint() must report every parameter, the moments of the optimizer and "
                  "the step (see YokePiece in parallel_backend.h)");
}

}  // namespace

RankTensors describe_state(const PieceWalk& walk) {
  RankTensors mine;
  std::map<TensorKey, size_t> index;
  walk(YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
    if (piece.replica != 0) return;
    const StoredTensor tensor = tensor_of(piece);
    const auto [at, added] = index.try_emplace(key_of(tensor), mine.tensors.size());
    if (added) mine.tensors.push_back(tensor);
    StoredTensor& described = mine.tensors[at->second];
    require_same(described, tensor);
    if (piece.count > 0) described.pieces.push_back({span_of(piece), {}, -1});
  });
  return mine;
}

std::vector<StoredTensor> merge_state(const std::vector<RankTensors>& descriptions) {
  std::map<TensorKey, StoredTensor> all;
  for (size_t rank = 0; rank < descriptions.size(); ++rank)
    merge_rank(descriptions[rank], static_cast<int32_t>(rank), &all);
  std::vector<StoredTensor> tensors;
  for (auto& [key, tensor] : all) tensors.push_back(std::move(tensor));
  check_tiling(&tensors, YOKE_INTERNAL, "the backend's pieces with replica 0: ");
  return tensors;
}

void check_contents(const std::vector<StoredTensor>& tensors, const StateContents& contents) {
  std::map<TensorKey, const StoredTensor*> index;
  for (const StoredTensor& tensor : tensors) index[key_of(tensor)] = &tensor;
  Faults faults;
  for (const auto& [name, shape] : contents.params) {
    require_tensor(index, {name, "param"}, shape, &faults);
    for (const auto& [kind, names] : contents.moments)
      if (names.count(name) != 0) require_tensor(index, {name, kind}, shape, &faults);
  }
  require_tensor(index, {"optimizer", "step"}, {}, &faults);
  for (const StoredTensor& tensor : tensors) {
    const auto covers = [&](const auto& declared) { return declares_kind(declared, tensor.kind); };
    const bool known = kinds_of_contract().count(tensor.kind) != 0 || !contents.own_kinds ||
                       std::any_of(contents.own_kinds->begin(), contents.own_kinds->end(), covers);
    if (!known)
      faults.push_back(concat("'", tensor.kind, "' of '", tensor.name, "' is a kind that the ") +
                       "description of the backend does not declare");
    // Kinds of the backend's own may belong to the optimizer as well.
    const bool of_model = tensor.kind != "step" && kinds_of_contract().count(tensor.kind) != 0;
    if (of_model && contents.params.count(tensor.name) == 0)
      faults.push_back(concat("the model has no parameter '", tensor.name, "'"));
  }
  throw_faults(faults);
}

ContentCounts counts_of(const StateContents& contents) {
  ContentCounts counts{.params = static_cast<int64_t>(contents.params.size()), .moments = {}};
  for (const auto& [kind, names] : contents.moments)
    counts.moments[kind] = static_cast<int64_t>(names.size());
  return counts;
}

void check_counts(const std::vector<StoredTensor>& tensors,
                  const std::optional<ContentCounts>& counts) {
  std::map<std::string, int64_t> found;
  for (const StoredTensor& tensor : tensors) ++found[tensor.kind];
  const auto require = [&](const std::string& kind, int64_t expected) {
    if (found[kind] == expected) return;
    throw Error(YOKE_DATA_LOSS,
                concat("the checkpoint is not complete: it has ", found[kind], " tensors '", kind) +
                    concat("', but should have ", expected));
  };
  require("step", 1);
  if (!counts) return require("exp_avg_sq", found["exp_avg"]);
  require("param", counts->params);
  for (const auto& [kind, count] : counts->moments) require(kind, count);
}

void check_state(const SaveGroup& group, const StateContents& contents, const PieceWalk& walk) {
  const std::vector<std::string> all =
      group.gather(message_of(group.rank, [&] { return describe_state(walk); }));
  std::string verdict;
  if (group.rank == 0) {
    verdict = message_of(0, [&] {
      check_contents(merge_state(rank_tensors_from(all)), contents);
      return Committed{};
    });
  }
  committed_from(group.from_rank0(verdict));
}

}  // namespace yoke
