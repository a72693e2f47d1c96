// libyoke_parquet.so: the only part of Yoke that links Apache Arrow. One column is read in order,
// page by page, so that a large row group is never in memory as a whole. Any type of text is
// accepted: strings and bytes of any kind, also as dictionaries.
#include "core/data/parquet_file.hpp"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kPageBuffer = 1 << 20;
constexpr int64_t kBatchBytes = 1 << 20;  // text that is decoded at a time, about
constexpr int64_t kMostRows = 4096;

void require(const arrow::Status& status) {
  if (!status.ok()) throw Error(YOKE_DATA_LOSS, "the file is damaged: " + status.message());
}
template <class T>
T value_of(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return arrow::is_base_binary_like(type.id()) || arrow::is_binary_view_like(type.id());
}

// Returns a text of an array of such a type; nothing if it is null.
std::optional<std::string> text_at(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return std::nullopt;
  if (array.type_id() == arrow::Type::DICTIONARY) {
    const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
    return text_at(*dictionary.dictionary(), dictionary.GetValueIndex(i));
  }
  if (arrow::is_binary_view_like(array.type_id()))
    return std::string(static_cast<const arrow::BinaryViewArray&>(array).GetView(i));
  if (arrow::is_large_binary_like(array.type_id()))
    return std::string(static_cast<const arrow::LargeBinaryArray&>(array).GetView(i));
  return std::string(static_cast<const arrow::BinaryArray&>(array).GetView(i));
}

// Returns the struct type of the items of a list; null if the type is another one.
std::shared_ptr<arrow::StructType> item_of(const arrow::DataType& type) {
  if (type.id() != arrow::Type::LIST && type.id() != arrow::Type::LARGE_LIST) return nullptr;
  return std::dynamic_pointer_cast<arrow::StructType>(
      static_cast<const arrow::BaseListType&>(type).value_type());
}

bool is_conversation(const arrow::DataType& type) {
  const auto item = item_of(type);
  if (!item) return false;
  const auto is_text_field = [&](const char* name) {
    const auto field = item->GetFieldByName(name);
    return field && is_text(*field->type());
  };
  return is_text_field("role") && is_text_field("content");
}

template <class List>
std::vector<MessageCell> messages_in(const List& list, int64_t row) {
  std::vector<MessageCell> messages;
  if (list.IsNull(row)) return messages;
  const auto& items = static_cast<const arrow::StructArray&>(*list.values());
  const auto roles = items.GetFieldByName("role"), contents = items.GetFieldByName("content");
  for (int64_t i = list.value_offset(row); i < list.value_offset(row + 1); ++i)
    messages.push_back({text_at(*roles, i), text_at(*contents, i)});
  return messages;
}

std::vector<MessageCell> messages_at(const arrow::Array& array, int64_t row) {
  if (array.type_id() == arrow::Type::LARGE_LIST)
    return messages_in(static_cast<const arrow::LargeListArray&>(array), row);
  return messages_in(static_cast<const arrow::ListArray&>(array), row);
}

// Throws Error(INVALID_ARGUMENT) unless the column exists and has the right type.
void check_column(const arrow::Schema& schema, const std::string& name, bool chat) {
  const auto field = schema.GetFieldByName(name);
  if (!field) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "the column \"" + name + "\" is missing; the file has: " +
                    join(schema.field_names()) + did_you_mean(name, schema.field_names()) +
                    (chat ? "; give the conversations that name"
                          : "; name the column of the text with --field"));
  }
  if (chat ? is_conversation(*field->type()) : is_text(*field->type())) return;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      "the column \"" + name + "\" has the type " + field->type()->ToString() +
          "; allowed: " + (chat ? "a list of structs with the texts role and content" : "a text"));
}

class ArrowFile : public ParquetFile {
 public:
  ArrowFile(const std::string& path, const std::string& column, bool chat) : chat_(chat) {
    parquet::ReaderProperties paged;
    paged.enable_buffered_stream();
    paged.set_buffer_size(kPageBuffer);
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(value_of(arrow::io::ReadableFile::Open(path)), paged));
    parquet::ArrowReaderProperties reading;
    reading.set_pre_buffer(false);
    builder.properties(reading);
    require(builder.Build(&reader_));
    std::shared_ptr<arrow::Schema> schema;
    require(reader_->GetSchema(&schema));
    check_column(*schema, column, chat);
    const auto& metadata = *reader_->parquet_reader()->metadata();
    for (int i = 0; i < metadata.schema()->num_columns(); ++i) {
      if (metadata.schema()->Column(i)->path()->ToDotVector().at(0) == column) leaves_.push_back(i);
    }
    int64_t bytes = 0;
    for (int group = 0; group < metadata.num_row_groups(); ++group) {
      group_begins_.push_back(rows_);
      rows_ += metadata.RowGroup(group)->num_rows();
      for (const int leaf : leaves_)
        bytes += metadata.RowGroup(group)->ColumnChunk(leaf)->total_uncompressed_size();
    }
    const int64_t row_bytes = std::max<int64_t>(1, bytes / std::max<int64_t>(1, rows_));
    reader_->set_batch_size(std::clamp<int64_t>(kBatchBytes / row_bytes, 1, kMostRows));
    seek(0);
  }

  int64_t rows() const override { return rows_; }

  void seek(int64_t row) override {
    const auto after = std::upper_bound(group_begins_.begin(), group_begins_.end(), row);
    const auto first = std::max<int64_t>(0, after - group_begins_.begin() - 1);
    std::vector<int> groups;
    for (int64_t group = first; group < std::ssize(group_begins_); ++group)
      groups.push_back(static_cast<int>(group));
    skip_ = groups.empty() ? 0 : row - group_begins_[static_cast<size_t>(first)];
    batches_ = value_of(reader_->GetRecordBatchReader(groups, leaves_));
  }

  std::vector<ParquetRow> read() override {
    std::vector<ParquetRow> rows;
    while (rows.empty()) {
      std::shared_ptr<arrow::RecordBatch> batch;
      require(batches_->ReadNext(&batch));
      if (!batch) return rows;
      const arrow::Array& column = *batch->column(0);
      const int64_t begin = std::min(skip_, column.length());
      skip_ -= begin;
      for (int64_t i = begin; i < column.length(); ++i) {
        rows.emplace_back();
        if (chat_) {
          rows.back().messages = messages_at(column, i);
        } else {
          rows.back().text = text_at(column, i).value_or("");
        }
      }
    }
    return rows;
  }

 private:
  bool chat_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> leaves_;            // the columns of Parquet that make up the column
  std::vector<int64_t> group_begins_;  // the first row of each row group
  int64_t rows_ = 0;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int64_t skip_ = 0;  // rows of the next batches that lie before the place of seek()
};

}  // namespace
}  // namespace yoke

extern "C" __attribute__((visibility("default"))) yoke::ParquetFile* yoke_open_parquet(
    const std::string& path, const std::string& field, bool chat) {
  return new yoke::ArrowFile(path, chat ? yoke::kMessagesColumn : field, chat);
}
