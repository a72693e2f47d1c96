// Writes indexed datasets of Megatron, see core/data/indexed_stream.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke::testing {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Returns the beginning of an index. type: code of the type of the ids. ends: length of the list of
// documents.
inline std::string index_header(int type, uint64_t sequences, uint64_t ends, uint64_t version = 1) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({version}) + static_cast<char>(type) +
         bytes_of<uint64_t>({sequences, ends});
}

struct IndexedDataset {
  std::string bin, idx;  // contents of the two files
};

// Returns a dataset of consecutive ids from `first` on. Each sequence is a document.
template <class Id = uint16_t>
IndexedDataset indexed_dataset(const std::vector<int32_t>& lengths,
                               int type = 8,
                               int64_t first = 0) {
  std::vector<Id> ids;
  std::vector<int64_t> offsets, ends{0};
  for (const int32_t length : lengths) {
    offsets.push_back(static_cast<int64_t>(ids.size() * sizeof(Id)));
    for (int32_t i = 0; i < length; ++i) ids.push_back(static_cast<Id>(first++));
    ends.push_back(static_cast<int64_t>(offsets.size()));
  }
  return {bytes_of(ids),
          index_header(type, lengths.size(), ends.size()) + bytes_of(lengths) + bytes_of(offsets) +
              bytes_of(ends)};
}

}  // namespace yoke::testing
