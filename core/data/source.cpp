#include "core/data/source.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/data/data_files.hpp"
#include "core/data/indexed_stream.hpp"
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

// Returns the description of a file of ids. The description X.json of X.bin is not that of X.txt.
std::optional<TokenInfo> info_of(const std::string& file, const TokenStream& stream) {
  if (std::string(stream.format()) == "text") return std::nullopt;
  const std::optional<TokenInfo> info = read_token_info(file);
  if (!info) return info;
  const auto require = [&](const std::string& what, int64_t has, int64_t described) {
    if (has == described) return;
    throw Error(YOKE_DATA_LOSS,
                "\"" + file + concat("\" has ", has, what, ", but its description ") +
                    token_info_path(file) + concat(" says ", described) +
                    "; write both again, or remove the description");
  };
  require(" tokens", stream.size(), info->tokens);
  if (stream.vocab() > 0) require(" ids in its vocabulary", stream.vocab(), info->vocab);
  return info;
}

// A file of a source, before the files are joined.
struct File {
  std::string path;
  const TokenStream& stream;
  const std::optional<TokenInfo>& info;
};

// Returns the mask that datatrove has written beside X.ds; it has the form of X.mask.
std::optional<std::string> existing_loss_path(const std::string& ids) {
  const std::string loss = ids + ".loss";
  if (ids.ends_with(".ds") && std::filesystem::exists(loss)) return loss;
  return std::nullopt;
}

// Returns the mask of a file; "" = every token counts. use: value of data.mask.
std::string mask_of(const File& file, const std::string& use) {
  const bool text = std::string(file.stream.format()) == "text";
  if (use == "none" || (use == "auto" && text)) return "";
  const std::string mask = existing_loss_path(file.path).value_or(mask_path(file.path));
  const bool exists = mask != file.path && std::filesystem::exists(mask);
  const bool described = file.info && file.info->mask;
  if (!exists && (described || use == "required"))
    throw Error(YOKE_NOT_FOUND,
                "\"" + file.path + "\" lacks its label mask " + mask + ", which " +
                    (use == "required" ? "data.mask = \"required\" asks for"
                                       : token_info_path(file.path) + " describes") +
                    "; put the mask beside the ids, or set data.mask = \"none\"");
  // A mask that the description does not know is left from an earlier file.
  const bool stale = use == "auto" && file.info && !file.info->mask;
  return exists && !stale ? mask : "";
}

std::shared_ptr<const LabelMask> open_masks(const std::string& key,
                                            const Source& source,
                                            const std::vector<NamedStream>& streams,
                                            const std::string& use) {
  std::vector<LabelMask::Part> parts;
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto& [path, stream] = streams[i];
    parts.push_back({path, mask_of({path, *stream, source.infos[i]}, use), stream->size()});
  }
  const bool any = std::any_of(
      parts.begin(), parts.end(), [](const LabelMask::Part& part) { return !part.mask.empty(); });
  return any ? std::make_shared<const LabelMask>(key, parts) : nullptr;
}

std::string described(const std::string& file, const TokenInfo& info) {
  return "\"" + file + concat("\" (tokenizer ", info.tokenizer, ", vocabulary ", info.vocab, ")");
}

}  // namespace

Source open_source(const std::string& key,
                   const std::vector<std::string>& entries,
                   const std::string& format,
                   int64_t vocab,
                   const std::string& mask) {
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
  for (const std::string& file : source.files) {
    streams.push_back({file, TokenStream::open(file, format, vocab, use)});
    source.sizes.push_back(streams.back().stream->size());
    if (std::string(streams.back().stream->format()) == "megatron")
      source.indices.push_back(index_path(file));
    source.infos.push_back(info_of(file, *streams.back().stream));
  }
  source.mask = open_masks(key, source, streams, mask);
  source.stream = join_streams(key, std::move(streams));
  require_one_tokenizer(key, {&source, 1});
  return source;
}

void require_one_tokenizer(const std::string& key, std::span<const Source> sources) {
  const std::string* first_file = nullptr;
  const TokenInfo* first = nullptr;
  for (const Source& source : sources) {
    for (size_t i = 0; i < source.infos.size(); ++i) {
      if (!source.infos[i]) continue;
      const TokenInfo& info = *source.infos[i];
      if (first == nullptr) {
        first = &info;
        first_file = &source.files[i];
      }
      if (info.tokenizer == first->tokenizer && info.vocab == first->vocab) continue;
      throw Error(YOKE_INVALID_ARGUMENT,
                  key + " names " + described(*first_file, *first) + " and " +
                      described(source.files[i], info) +
                      ", whose ids mean different tokens; allowed: files of one tokenizer; prepare "
                      "one of them again");
    }
  }
}

int64_t described_document_end(std::span<const Source> sources) {
  const std::string set = "; set data.document_end to the id that ends a document";
  std::optional<int64_t> end;
  for (const Source& source : sources) {
    for (size_t i = 0; i < source.files.size(); ++i) {
      const std::optional<TokenInfo>& info = source.infos[i];
      const std::string file = "\"" + source.files[i] + "\"";
      if (!info || !info->document_end)
        throw Error(YOKE_INVALID_ARGUMENT,
                    "data.documents = \"separate\", but " +
                        (info ? "the description of " + file + " names no id that ends a document"
                              : file + " has no description with the id that ends a document") +
                        set);
      if (end && *end != *info->document_end)
        throw Error(YOKE_INVALID_ARGUMENT,
                    "data.documents = \"separate\", but the documents of " + file +
                        concat(" end with the id ", *info->document_end, ", and those of \"") +
                        sources[0].files[0] + concat("\" with ", *end) + set);
      end = info->document_end;
    }
  }
  return *end;
}

}  // namespace yoke
