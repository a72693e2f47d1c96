#include "core/data/source.hpp"

#include <algorithm>
#include <utility>

#include "core/data/data_files.hpp"
#include "core/data/joined_stream.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kNamedEntries = 3;

std::string name_of(const std::vector<std::string>& entries) {
  if (entries.size() <= kNamedEntries) return join(entries);
  return join({entries.begin(), entries.begin() + kNamedEntries}) +
         concat(" and ", entries.size() - kNamedEntries, " more");
}

}  // namespace

Source open_source(const std::string& key,
                   const std::vector<std::string>& entries,
                   const std::string& format,
                   int64_t vocab) {
  if (entries.empty())
    throw Error(YOKE_NOT_FOUND,
                key + " is not set; allowed: a file, a folder, a pattern or a list");
  Source source;
  source.name = name_of(entries);
  for (const std::string& entry : entries) {
    const std::vector<std::string> files = expand_path(key, entry);
    source.files.insert(source.files.end(), files.begin(), files.end());
  }
  if (const std::string twice = find_repeated_file(source.files); !twice.empty())
    throw Error(
        YOKE_INVALID_ARGUMENT,
        key + " names the file \"" + twice +
            "\" twice; allowed: each file once; data.weights makes some files more frequent");
  // The ids that are checked at once are shared between the files, so that thousands of files do
  // not delay the start. Each file is checked a little, because its tokenizer may be another one.
  FileUse use{key, {}};
  use.checked =
      std::max<int64_t>(FileUse().checked / static_cast<int64_t>(source.files.size()), 1024);
  std::vector<NamedStream> streams;
  for (const std::string& file : source.files)
    streams.push_back({file, TokenStream::open(file, format, vocab, use)});
  source.stream = join_streams(key, std::move(streams));
  return source;
}

}  // namespace yoke
