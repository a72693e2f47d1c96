// The trainable parameters of a model in one flat buffer, in the order and with the names that
// another program gives them. Only computes sizes and offsets, which count elements; nothing here
// holds values or communicates.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::compat {

// A parameter of the other program: one parameter of the model, or several that the other program
// stores as one, such as the projections to queries, keys and values. Parts follow each other
// without a gap.
struct Slot {
  std::string name;             // name of the parameter in the other program
  std::vector<int64_t> params;  // indices into the summary, in the order of the buffer
  int64_t begin = 0, end = 0;   // elements of the buffer
  int64_t bucket = 0;           // index of its bucket, the parameters that are reduced together
};

// The names of a Llama in another program.
struct Names {
  struct Name {
    std::string_view here, there;
  };
  // The parameters of a layer without its prefix, in the order of the other program, and all
  // others. Parameters with equal names there are stored as one.
  std::span<const Name> of_layer, outside;
  std::string_view before_layer, behind_layer;  // text around the number of a layer
};

// Returns the trainable parameters of a model in the order in which the other program registers
// them. Slots have no place in a buffer yet. A parameter that `names` lacks is a slot by itself.
std::vector<Slot> slots_of(const YokeModelSummary& model, const Names& names);

// Returns the number of elements of a parameter.
int64_t elements(const YokeModelSummary& model, int64_t param);

// A contiguous part of the buffer.
struct Range {
  int64_t begin = 0, count = 0;
};

// A contiguous part of a parameter that lies in a part of the buffer.
struct Piece {
  int64_t param;   // index into the summary
  int64_t begin;   // first element within the parameter
  int64_t count;   // number of elements
  int64_t offset;  // first element within the buffer
};

class FlatLayout {
 public:
  // slots: with their places, in the order of the buffer. size: elements of the buffer, padding
  // included. The model must outlive the layout.
  FlatLayout(const YokeModelSummary& model, std::vector<Slot> slots, int64_t size);

  int64_t size() const { return size_; }
  const std::vector<Slot>& slots() const { return slots_; }
  // Return the first element of a parameter within the buffer, and its bucket. -1: the parameter is
  // frozen, and lies in no buffer.
  int64_t offset(int64_t param) const { return offsets_[param]; }
  int64_t bucket_of(int64_t param) const { return bucket_of_[param]; }
  // Returns the parts of parameters in a part of the buffer, by offset.
  std::vector<Piece> pieces(const Range& range) const;

 private:
  const YokeModelSummary& model_;
  std::vector<Slot> slots_;
  std::vector<int64_t> offsets_, bucket_of_;  // one per parameter of the model
  int64_t size_;
};

}  // namespace yoke::compat
