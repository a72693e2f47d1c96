// The documents of a Parquet file, for `yoke data prepare`. No LibTorch.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/document_input.hpp"
#include "core/data/parquet_file.hpp"

namespace yoke {

inline constexpr char kInputKey[] = "input";  // begins messages about a file

// Returns whether a file with these bytes is a Parquet file. Throws Error(INVALID_ARGUMENT) if only
// its name says so.
bool is_parquet(const std::string& path, std::string_view bytes);

// Its places are rows. A part holds its rows in memory.
class ParquetInput : public DocumentInput {
 public:
  // Loads libyoke_parquet.so. Throws the errors of open_input().
  ParquetInput(const std::string& path, const DocumentKind& kind);

  Format format() const override { return Format::kParquet; }
  size_t size() const override { return size_; }
  uint64_t bytes_before(size_t place) const override;
  InputPart take(size_t begin, size_t bytes) override;
  void for_each_document(const InputPart& part, const Visit& visit) const override;
  std::string name_of(size_t place) const override;

 private:
  using Rows = std::vector<ParquetRow>;

  std::string path_;
  bool chat_;
  std::unique_ptr<ParquetFile> file_;
  size_t size_;
  uint64_t bytes_;
  Rows ahead_;  // rows that are read but in no part yet, from ahead_[next_] on
  size_t next_ = 0;
  size_t ahead_at_ = 0;  // place of that row
};

}  // namespace yoke
