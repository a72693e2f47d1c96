// How nanotron lays out a model for data parallelism: one buffer for all gradients in forward
// order, the buckets in which they are reduced, and the slices of every parameter that ZeRO gives
// to the ranks. Only computes sizes and offsets, which count elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/compat/flat_layout.hpp"

namespace yoke::nanotron_compat {

// Returns the names that the parameters of an untied Llama have in nanotron, in its order. An
// unknown number of layers counts as one.
std::vector<std::string> parameter_names(std::optional<int64_t> layers);

// Returns the slice of n elements that ZeRO gives to a rank: all slices have the same size, except
// that the last ranks have one element less if the ranks do not divide n.
compat::Range slice(int64_t n, int rank, int ranks);

class Layout : public compat::FlatLayout {
 public:
  // bucket_elements: a bucket is full with this many. The model must outlive the layout.
  static Layout of(const YokeModelSummary& model, int64_t bucket_elements);

  // Returns the buckets, beginning with the end of the buffer: in the order of the backward.
  const std::vector<compat::Range>& buckets() const { return buckets_; }
  // Returns the slices of a rank, in the order of the buffer, without empty ones. A single rank has
  // the whole buffer as one slice.
  std::vector<compat::Range> slices(int rank, int ranks) const;

 private:
  Layout(FlatLayout flat, std::vector<compat::Range> buckets)
      : FlatLayout(std::move(flat)), buckets_(std::move(buckets)) {}

  std::vector<compat::Range> buckets_;
};

}  // namespace yoke::nanotron_compat
