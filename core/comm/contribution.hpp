// What the ranks of a communicator contribute to an operation, where all contributions can be read:
// ranks that are threads of one process, or processes that share memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/signature.hpp"

namespace yoke {

// The contribution of one rank to one collective: the addresses of its input and its output. The
// memory is kept alive by `keep`, or by the caller until the operation is done.
struct Contribution {
  Signature signature;
  const char* in = nullptr;
  char* out = nullptr;
  int64_t item_size = 0;             // bytes of one element
  std::vector<char*> outs;           // all_gather into separate tensors: one output per rank
  std::vector<int64_t> in_offsets;   // all_to_all: byte at which the part for rank r starts in `in`
  std::vector<int64_t> out_offsets;  // all_to_all: byte at which the part of rank r starts in `out`
  std::vector<at::Tensor> keep;      // released when the operation is done
  // Strided outputs and the contiguous tensors that receive their results first.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged;

  // Bytes of the larger side: the input and the output of most operations, the output of
  // all_gather, the input of reduce_scatter and all_to_all.
  int64_t bytes() const;
  // Copies the staged results to where they belong and releases the tensors.
  void finish();
};

// Copies memory unless both addresses are equal. Both may be null if there are no bytes.
void copy_bytes(char* to, const char* from, int64_t bytes);

// The functions below take the contributions of all ranks of a communicator, in rank order.

// Returns why the contributions do not match each other, or "". ranks: global ranks, for the text.
std::string difference(const std::vector<Contribution>& all, const std::vector<int32_t>& ranks);

// Writes what rank `to` receives from a collective into its output. all_reduce: the rank reduces
// all elements. The output of a rank may be a part of its own input. Any thread; calls for
// different ranks may run at the same time, except those of an all_reduce that shares an output.
void receive(const std::vector<Contribution>& all, size_t to);

// Reduces the elements [begin, begin + count) of an all_reduce and writes them to `targets`, which
// hold whole outputs and may be inputs.
void all_reduce_span(const std::vector<Contribution>& all,
                     const std::vector<void*>& targets,
                     int64_t begin,
                     int64_t count);

}  // namespace yoke
