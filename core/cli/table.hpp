// Text in aligned columns.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Formats rows under a header. Each column is as wide as its widest cell, counted in UTF-8 code
// points, and columns are two spaces apart. The last column is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);  // needs as many cells as the header
  bool empty() const { return rows_.size() == 1; }
  std::string text() const;  // the table with its header; every line ends in a newline

 private:
  std::vector<std::vector<std::string>> rows_;  // rows_[0] is the header
};

}  // namespace yoke
