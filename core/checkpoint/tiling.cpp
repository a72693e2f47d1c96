// A missing or duplicate element in a checkpoint would be a silent error, so every save and every
// opened manifest is checked. Marking each element would need memory and time in proportion to the
// model. Instead the tensor is viewed as a plane with rows as long as the stride, in which each
// piece is a few rectangles. The rectangles tile the plane if and only if the pieces tile the
// tensor.
//
//   pieces [0, 20) in spans of 2 and [2, 24) in spans of 4, stride 6:    a a b b b b
//                                                                        a a b b b b
//                                                                        a a b b b b
//                                                                        a a b b b b
//
// A sweep over the rows checks only those at which a rectangle begins or ends: between two of
// these, all rows are covered in the same way.

#include "core/checkpoint/tiling.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// The spans of a strided piece are one rectangle, or two if they cross the end of a row. A flat
// range is up to three: the rest of a row, whole rows, and the start of a row. If all pieces of a
// tensor are flat, the tensor is a single row.
struct Rectangle {
  int64_t row, end_row, column, end_column;
  const StoredPiece* piece;
};

std::string named(const StoredPiece& piece) {
  return piece.at.text() + (piece.rank < 0 ? "" : concat(" (from rank ", piece.rank, ")"));
}

std::string elements(int64_t begin, int64_t end) {
  return concat("elements [", begin, ", ", end, ")");
}

// Returns the length of a row, which is the common stride of the pieces. Sets *fault if their
// strides differ.
int64_t columns_of(const StoredTensor& tensor, std::string* fault) {
  const StoredPiece* strided = nullptr;
  for (const StoredPiece& piece : tensor.pieces) {
    if (piece.at.is_flat()) continue;
    if (strided != nullptr && strided->at.stride != piece.at.stride) {
      *fault = "the pieces " + named(*strided) + " and " + named(piece) +
               " have different strides; all pieces of a tensor must have the same one";
    }
    strided = &piece;
  }
  return strided == nullptr ? tensor.numel() : strided->at.stride;
}

class Rectangles {
 public:
  explicit Rectangles(int64_t columns) : columns_(columns) {}

  void add(const StoredPiece& piece) {
    const StridedSpan& at = piece.at;
    if (at.is_flat()) {
      const int64_t to_end_of_row = (columns_ - at.begin % columns_) % columns_;
      const int64_t first = std::min(at.count, to_end_of_row), rest = at.count - first;
      add(piece, at.begin, 1, first);
      add(piece, at.begin + first, rest / columns_, columns_);
      add(piece, at.end() - rest % columns_, 1, rest % columns_);
    } else {
      const int64_t whole = at.count / at.run;
      add(piece, at.begin, whole, at.run);
      add(piece, at.begin + whole * at.stride, 1, at.count % at.run);
    }
  }

  // Returns all rectangles, sorted by their first row.
  std::vector<Rectangle> take() {
    std::sort(all_.begin(), all_.end(), [](const Rectangle& a, const Rectangle& b) {
      return a.row < b.row;
    });
    return std::move(all_);
  }

 private:
  // Adds `rows` spans of `width` elements: the first starts at `element`, and each of the others
  // one row below the previous one.
  void add(const StoredPiece& piece, int64_t element, int64_t rows, int64_t width) {
    if (rows == 0 || width == 0) return;
    const int64_t row = element / columns_, column = element % columns_, end = column + width;
    all_.push_back({row, row + rows, column, std::min(end, columns_), &piece});
    if (end > columns_) all_.push_back({row + 1, row + 1 + rows, 0, end - columns_, &piece});
  }

  int64_t columns_;
  std::vector<Rectangle> all_;
};

// Checks one row, whose rectangles are sorted by column. `first` is the first element of the row.
std::string fault_of_row(const std::vector<Rectangle>& row, int64_t first, int64_t columns) {
  int64_t expected = 0;
  const Rectangle* before = nullptr;
  for (const Rectangle& r : row) {
    if (r.column > expected)
      return elements(first + expected, first + r.column) + " are in no piece";
    if (r.column < expected) {
      return elements(first + r.column, first + std::min(expected, r.end_column)) +
             " are in two pieces: " + named(*before->piece) + " and " + named(*r.piece);
    }
    expected = r.end_column;
    before = &r;
  }
  if (expected == columns) return "";
  return elements(first + expected, first + columns) + " are in no piece";
}

// Returns the first fault of a tensor; "" = its pieces tile it. `here` holds the rectangles that
// cross the current row.
std::string fault_of(const StoredTensor& tensor) {
  std::string fault;
  const int64_t numel = tensor.numel(), columns = columns_of(tensor, &fault);
  if (!fault.empty() || numel == 0) return fault;
  Rectangles pieces(columns);
  for (const StoredPiece& piece : tensor.pieces) pieces.add(piece);
  const std::vector<Rectangle> all = pieces.take();
  std::set<int64_t> rows = {0};
  for (const Rectangle& r : all) rows.insert({r.row, r.end_row});
  rows.erase(numel / columns);
  std::vector<Rectangle> here;
  auto next = all.begin();
  for (const int64_t row : rows) {
    std::erase_if(here, [&](const Rectangle& r) { return r.end_row <= row; });
    for (; next != all.end() && next->row == row; ++next) here.push_back(*next);
    std::sort(here.begin(), here.end(), [](const Rectangle& a, const Rectangle& b) {
      return std::tie(a.column, a.piece) < std::tie(b.column, b.piece);
    });
    fault = fault_of_row(here, row * columns, columns);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

void check_tiling(std::vector<StoredTensor>* tensors, int32_t code, const std::string& where) {
  for (StoredTensor& tensor : *tensors) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const auto& a, const auto& b) {
      return std::tie(a.at.begin, a.at.count, a.rank) < std::tie(b.at.begin, b.at.count, b.rank);
    });
    const std::string fault = fault_of(tensor);
    if (!fault.empty()) throw Error(code, where + tensor.describe() + ": " + fault);
  }
}

}  // namespace yoke
