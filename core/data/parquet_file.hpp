// The interface to libyoke_parquet.so, which reads Parquet files with Apache Arrow. It is a library
// of its own, so that `yoke` neither needs Arrow nor loads it before a Parquet file is given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/document_input.hpp"

namespace yoke {

// A row of the column that holds the documents.
struct ParquetRow {
  std::string text;                   // empty if the value is null
  std::vector<MessageCell> messages;  // empty unless the row is a conversation
};

// An open file and one of its columns. For one thread at a time.
class ParquetFile {
 public:
  virtual ~ParquetFile() = default;
  virtual int64_t rows() const = 0;
  // Continues at a row in [0, rows()]. The rows before it in its row group are read again.
  virtual void seek(int64_t row) = 0;
  // Returns one or more of the next rows, or none at the end of the file. Like seek(), it throws
  // Error(DATA_LOSS) or another std::exception if the file is damaged.
  virtual std::vector<ParquetRow> read() = 0;
};

// Opens a file: its conversations, or else the texts of the column `field`. Throws Error:
// INVALID_ARGUMENT if the column is missing or has another type; DATA_LOSS, or another
// std::exception, if the file is damaged. Messages do not name the file.
using OpenParquet = ParquetFile* (*)(const std::string& path, const std::string& field, bool chat);

// The function that libyoke_parquet.so exports, and the name of the column of conversations.
inline constexpr const char* kParquetEntry = "yoke_open_parquet";
inline constexpr const char* kMessagesColumn = "messages";

}  // namespace yoke
