#include "core/run/piece_hashes.hpp"

#include <ATen/ATen.h>

#include "core/cuda/device_runtime.hpp"
#include "core/verify/state_hash.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

constexpr int64_t kBlock = 1024;

}  // namespace

void PieceHashes::add(const YokePiece& piece) {
  if (!runs_on(piece.view->device)) return values_.push_back(state_hash(piece));
  const at::Tensor elements = borrow(*piece.view);
  const auto next = static_cast<int64_t>(on_device_.size()) % kBlock;
  if (next == 0) hashes_.push_back(at::zeros({kBlock}, elements.options().dtype(at::kLong)));
  cuda_runtime().add_state_hash(hashes_.back()[next], piece);
  on_device_.push_back(values_.size());
  values_.push_back(0);
}

std::vector<uint64_t> PieceHashes::values() const {
  std::vector<uint64_t> values = values_;
  if (hashes_.empty()) return values;
  const at::Tensor hashes = at::cat(hashes_).cpu();
  const auto* hash = hashes.const_data_ptr<int64_t>();
  for (size_t i = 0; i < on_device_.size(); ++i)
    values[on_device_[i]] = static_cast<uint64_t>(hash[i]);
  return values;
}

}  // namespace yoke
