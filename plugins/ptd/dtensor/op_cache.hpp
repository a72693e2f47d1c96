// What was decided for operators that were seen before, by everything that a decision depends on.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugins/ptd/dtensor/placement.hpp"

namespace yoke::ptd {

class Mesh;

// Instead of the operator: takes its arguments, with local tensors, from the stack and leaves local
// results.
using Kernel = std::function<void(Mesh&, torch::jit::Stack&)>;

// How an operator is computed on local tensors.
struct Decision {
  struct Output {
    Placements placements;
    Sizes sizes;    // of the whole
    Sizes strides;  // of the whole, as LibTorch's own code sees it; empty = compact
  };
  struct Ints {
    size_t arg;
    Sizes values;  // a list, or one number
  };

  std::vector<Placements> inputs;  // wanted, by operand
  std::vector<Output> outputs;     // by tensor result, those of lists one by one
  std::vector<Ints> ints;          // arguments that are sizes, in local terms
  Kernel kernel;                   // empty = the operator itself
  bool in_place = false;           // the operands lie as wanted already
};

// An operator and its arguments: operands by mesh placement, sizes and type; other arguments by
// value, but for floating-point numbers, on which no placement depends.
class OpKey {
 public:
  explicit OpKey(const void* op) { add(reinterpret_cast<int64_t>(op)); }
  void add(int64_t word) {
    words_.push_back(word);
    hash_ = (hash_ ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
    hash_ ^= hash_ >> 29;
  }
  uint64_t hash() const { return hash_; }
  bool operator==(const OpKey& other) const { return words_ == other.words_; }

 private:
  c10::SmallVector<int64_t, 48> words_;
  uint64_t hash_ = 0;
};

class OpCache {
 public:
  const Decision* find(const OpKey& key) const {
    for (auto [it, end] = entries_.equal_range(key.hash()); it != end; ++it) {
      if (it->second->first == key) return &it->second->second;
    }
    return nullptr;
  }

  const Decision& insert(OpKey key, Decision decision) {
    constexpr size_t kMost = 16384;  // shapes that never repeat must not fill the memory
    if (entries_.size() >= kMost) entries_.clear();
    const uint64_t hash = key.hash();
    return entries_.emplace(hash, std::make_unique<Entry>(std::move(key), std::move(decision)))
        ->second->second;
  }

 private:
  using Entry = std::pair<OpKey, Decision>;
  std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> entries_;
};

}  // namespace yoke::ptd
