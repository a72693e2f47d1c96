// A cache of decisions: how an operator on DTensors is computed, looked up by everything that the
// decision depends on. A step of a model issues the same few hundred calls again and again.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sdk/mesh/dtensor/placement.hpp"

namespace yoke::mesh {

class Mesh;

// Code that runs instead of the operator. It pops the arguments, with local tensors in place of
// DTensors, from the stack and pushes local results.
using Kernel = std::function<void(Mesh&, torch::jit::Stack&)>;

// How an operator is computed on local tensors.
struct Decision {
  struct Output {
    Placements placements;
    Sizes sizes;    // sizes of the global tensor
    Sizes strides;  // global strides, as LibTorch's operators report them; empty = contiguous
  };
  struct Ints {
    size_t arg;
    Sizes values;  // the new values; exactly one if the argument is a number and not a list
  };

  std::vector<Placements> inputs;  // placements that the operands must have
  std::vector<Output> outputs;     // one per result tensor, including each tensor of a result list
  std::vector<Ints> ints;          // size arguments and the local sizes that replace them
  Kernel kernel;                   // empty = run the operator itself
  bool takes_pending = false;      // the kernel takes operands that are pending products
  bool in_place = false;           // the operands have the placements `inputs` already
};

// Identifies an operator with its arguments: operands by placements, sizes and type; other
// arguments by value, except for floating-point numbers, on which no placement depends. Two keys
// are compared word by word, so a collision of hashes is harmless.
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
  // Returns the decision, or nullptr. It stays valid until the next insert.
  const Decision* find(const OpKey& key) const {
    for (auto [it, end] = entries_.equal_range(key.hash()); it != end; ++it) {
      if (it->second->first == key) return &it->second->second;
    }
    return nullptr;
  }

  const Decision& insert(OpKey key, Decision decision) {
    constexpr size_t kMost = 16384;  // limit for models whose shapes never repeat
    if (entries_.size() >= kMost) entries_.clear();
    const uint64_t hash = key.hash();
    return entries_.emplace(hash, std::make_unique<Entry>(std::move(key), std::move(decision)))
        ->second->second;
  }

 private:
  using Entry = std::pair<OpKey, Decision>;
  std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> entries_;
};

}  // namespace yoke::mesh
