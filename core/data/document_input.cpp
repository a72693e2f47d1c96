#include "core/data/document_input.hpp"

#include "core/data/mapped_file.hpp"
#include "core/data/parquet_input.hpp"
#include "core/data/text_input.hpp"

namespace yoke {

std::unique_ptr<DocumentInput> open_input(const std::string& path, const DocumentKind& kind) {
  const MappedFile file(path, kInputKey);
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (is_parquet(path, bytes)) return std::make_unique<ParquetInput>(path, kind);
  return std::make_unique<TextInput>(path, kind.split);
}

}  // namespace yoke
