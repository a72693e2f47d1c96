// Opens a file of tokens in one of seven formats, maps it into memory and reads ids from it.
//
// A wrong file must fail when it is opened, not after hours: a run that reads raw uint16 ids as
// text, or the ids of another tokenizer, reports no error but trains a useless model. Therefore a
// format with a header is recognised by its header and checked against the size of the file, the
// first million ids are checked against the vocabulary at once, and a file that could be raw ids is
// never guessed to be text. Checking every id at the start was rejected: it would read files of
// many gigabytes on every rank. `read` checks the ids that it returns instead.
#include "core/data/token_stream.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/data/indexed_stream.hpp"
#include "core/data/mapped_file.hpp"
#include "core/data/npy.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// A text in which every byte is one token.
class ByteStream final : public TokenStream {
 public:
  explicit ByteStream(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  const char* format() const override { return "text"; }
  int64_t size() const override { return static_cast<int64_t>(file_->size()); }
  int64_t vocab() const override { return 256; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_token_range(begin, count, size());
    for (int64_t i = 0; i < count; ++i) out[i] = file_->data()[begin + i];
  }

 private:
  std::unique_ptr<MappedFile> file_;
};

// Describes a file of ids before any id is read.
struct IdFile {
  const char* format = "";
  size_t header_bytes = 0;
  size_t id_bytes = 2;
  bool is_signed = false;      // ids of 2 bytes are unsigned, ids of 8 bytes are signed
  int64_t declared_vocab = 0;  // vocabulary in the header; 0 = the header has none
  int64_t model_vocab = 0;     // vocabulary of the model; 0 = no model
  int64_t checked = 0;         // number of ids that are checked when the file is opened
};

// A file of ids of 2, 4 or 8 bytes, with or without a header. Signed ids must not be negative.
template <class Id>
class IdStream final : public TokenStream {
 public:
  IdStream(std::unique_ptr<MappedFile> file, IdFile info)
      : file_(std::move(file)),
        info_(info),
        bound_(info_.declared_vocab > 0 ? info_.declared_vocab : info_.model_vocab) {}
  const char* format() const override { return info_.format; }
  int64_t size() const override {
    return static_cast<int64_t>((file_->size() - info_.header_bytes) / sizeof(Id));
  }
  int64_t vocab() const override { return info_.declared_vocab; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_token_range(begin, count, size());
    const unsigned char* ids = file_->data() + info_.header_bytes;
    for (int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, ids + static_cast<size_t>(begin + i) * sizeof(Id), sizeof(Id));
      if ((bound_ > 0 && id >= bound_) || (std::is_signed_v<Id> && id < 0)) refuse(begin + i, id);
      out[i] = id;
    }
  }

 private:
  [[noreturn]] void refuse(int64_t token, int64_t id) const {
    const size_t byte = info_.header_bytes + static_cast<size_t>(token) * sizeof(Id);
    const std::string found =
        file_->name() + concat(": token ", token, " (byte ", byte, ") is ", id);
    if (id < 0) throw Error(YOKE_DATA_LOSS, found + "; allowed: 0 or more; write the file again");
    if (info_.declared_vocab > 0) {
      throw Error(YOKE_DATA_LOSS,
                  found + concat(", but its header promises ids below ", bound_) +
                      "; the file is damaged, write it again");
    }
    throw Error(YOKE_DATA_LOSS,
                found + concat(", but model.vocab = ", bound_, " allows ids below ", bound_) +
                    "; set model.vocab to the vocabulary of the tokenizer that wrote the file, or "
                    "check data.format");
  }

  std::unique_ptr<MappedFile> file_;
  IdFile info_;
  int64_t bound_;  // every id is below it; 0 = unknown
};

template <class Id>
std::shared_ptr<const TokenStream> make_stream_of(std::unique_ptr<MappedFile> file, IdFile info) {
  const auto stream = std::make_shared<IdStream<Id>>(std::move(file), info);
  // A file of the wrong format or tokenizer must be found now rather than hours into a run.
  std::vector<int64_t> first(static_cast<size_t>(std::min(stream->size(), info.checked)));
  stream->read(0, static_cast<int64_t>(first.size()), first.data());
  return stream;
}

std::shared_ptr<const TokenStream> make_stream(std::unique_ptr<MappedFile> file, IdFile info) {
  if (info.id_bytes == 8) return make_stream_of<int64_t>(std::move(file), info);
  if (info.is_signed) return make_stream_of<int32_t>(std::move(file), info);
  if (info.id_bytes == 2) return make_stream_of<uint16_t>(std::move(file), info);
  return make_stream_of<uint32_t>(std::move(file), info);
}

// Compares the number of ids in the header with the size of the file.
void check_count(const MappedFile& file, const IdFile& info, uint64_t promised) {
  const uint64_t bytes = file.size() - info.header_bytes;
  // Divide rather than multiply: a damaged count could overflow.
  if (promised == bytes / info.id_bytes && bytes % info.id_bytes == 0) return;
  throw Error(YOKE_DATA_LOSS,
              file.name() +
                  concat(": the header promises ", promised, " ids of ", info.id_bytes, " bytes") +
                  concat(", but ", bytes, " bytes follow it, which are ", bytes / info.id_bytes) +
                  (bytes % info.id_bytes == 0 ? "" : " and a part of one") +
                  "; the file is truncated or damaged, write it again");
}

void require_header(const MappedFile& file, size_t bytes) {
  if (file.size() >= bytes) return;
  throw Error(YOKE_DATA_LOSS,
              concat(file.name(), " has ", file.size(), " bytes, fewer than its header of ") +
                  concat(bytes, "; the file is truncated, write it again"));
}

// Returns the uint32 number `index` of a header.
uint32_t word(const MappedFile& file, size_t index) {
  uint32_t value = 0;
  std::memcpy(&value, file.data() + 4 * index, 4);
  return value;
}

bool is_yoke(const MappedFile& file) {
  return file.size() >= 8 && std::memcmp(file.data(), kTokenFileMagic, 8) == 0;
}

std::shared_ptr<const TokenStream> open_yoke(std::unique_ptr<MappedFile> file, IdFile info) {
  if (!is_yoke(*file)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                file->name() + " does not begin with \"" + kTokenFileMagic +
                    "\", so it is not in the format \"yoke\" (core/data/token_stream.hpp)");
  }
  info.header_bytes = kTokenFileHeaderBytes;
  require_header(*file, info.header_bytes);
  info.id_bytes = word(*file, 2);
  info.declared_vocab = word(*file, 3);
  uint64_t count = 0;
  std::memcpy(&count, file->data() + 16, 8);
  if ((info.id_bytes != 2 && info.id_bytes != 4) || info.declared_vocab == 0) {
    throw Error(YOKE_DATA_LOSS,
                file->name() + concat(": the header declares ids of ", info.id_bytes, " bytes") +
                    concat(" and a vocabulary of ", info.declared_vocab) +
                    "; allowed: 2 or 4 bytes, and a vocabulary of 1 or more");
  }
  check_count(*file, info, count);
  return make_stream(std::move(file), info);
}

struct LlmcKind {
  uint32_t magic, version;
  size_t id_bytes;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr size_t kLlmcHeaderBytes = 1024;

const LlmcKind* llmc_kind(const MappedFile& file) {
  if (file.size() < 4) return nullptr;
  for (const LlmcKind& kind : kLlmcKinds) {
    if (word(file, 0) == kind.magic) return &kind;
  }
  return nullptr;
}

std::shared_ptr<const TokenStream> open_llmc(std::unique_ptr<MappedFile> file, IdFile info) {
  const LlmcKind* kind = llmc_kind(*file);
  if (kind == nullptr) {
    throw Error(YOKE_INVALID_ARGUMENT,
                file->name() +
                    " does not begin with a magic of llm.c (20240520, 20240801), so it is not in "
                    "the format \"llmc\"");
  }
  info.header_bytes = kLlmcHeaderBytes;
  info.id_bytes = kind->id_bytes;
  require_header(*file, info.header_bytes);
  if (word(*file, 1) != kind->version) {
    throw Error(YOKE_DATA_LOSS,
                file->name() +
                    concat(": llm.c's format ", kind->magic, " has version ", word(*file, 1)) +
                    concat("; supported: ", kind->version));
  }
  check_count(*file, info, word(*file, 2));
  return make_stream(std::move(file), info);
}

std::shared_ptr<const TokenStream> open_nanogpt(std::unique_ptr<MappedFile> file, IdFile info) {
  if (is_yoke(*file) || is_npy(*file) || llmc_kind(*file) != nullptr) {
    throw Error(YOKE_INVALID_ARGUMENT,
                file->name() + " has a header, but raw ids have none; set data.format = \"" +
                    (is_yoke(*file)  ? "yoke"
                     : is_npy(*file) ? "npy"
                                     : "llmc") +
                    "\"");
  }
  if (file->size() % 2 != 0) {
    throw Error(YOKE_DATA_LOSS,
                concat(file->name(), " has ", file->size(), " bytes") +
                    ", but ids of 2 bytes need an even number; the file is truncated, or not in "
                    "the format \"nanogpt\"");
  }
  return make_stream(std::move(file), info);
}

std::shared_ptr<const TokenStream> open_npy(std::unique_ptr<MappedFile> file, IdFile info) {
  const NpyArray array = read_npy_header(*file);
  info.header_bytes = array.header_bytes;
  info.id_bytes = array.id_bytes;
  info.is_signed = array.is_signed;
  check_count(*file, info, array.count);
  return make_stream(std::move(file), info);
}

std::string metadata_path(const std::string& path) {
  return path + ".metadata";
}

// Raw ids have no signature, so the name decides.
bool is_datatrove(const std::string& path) {
  return path.ends_with(".ds");
}

// Opens X.ds, whose metadata say how many bytes an id has.
std::shared_ptr<const TokenStream> open_datatrove(std::unique_ptr<MappedFile> file,
                                                  const std::string& path,
                                                  IdFile info) {
  std::ifstream metadata(metadata_path(path));
  std::string line;
  if (!metadata || !std::getline(metadata, line))
    throw Error(YOKE_NOT_FOUND,
                file->name() + " lacks " + metadata_path(path) +
                    ", or that file is empty; its first line must say how many bytes an id has");
  const std::string bytes = line.substr(line.rfind('|') + 1);
  if (line.find('|') == std::string::npos || (bytes != "2" && bytes != "4"))
    throw Error(YOKE_DATA_LOSS,
                metadata_path(path) + ": \"" + line +
                    "\" is not \"tokenizer|2\" or \"tokenizer|4\", the bytes per id");
  info.id_bytes = bytes == "2" ? 2 : 4;
  if (file->size() % info.id_bytes != 0)
    throw Error(YOKE_DATA_LOSS,
                concat(file->name(), " has ", file->size(), " bytes, which are no whole ids of ") +
                    bytes + " bytes; the file is truncated, write it again");
  return make_stream(std::move(file), info);
}

std::shared_ptr<const TokenStream> open_text(std::unique_ptr<MappedFile> file, IdFile) {
  return std::make_shared<ByteStream>(std::move(file));
}

// Refuses a file without a header that may hold raw ids. Raw ids have no signature, and a
// model trained on their bytes would be useless without any error. The only hints are the name and
// zero bytes, which no text contains.
void require_text(const MappedFile& file, const std::string& path) {
  const std::string hint =
      "; if it holds raw uint16 ids, as nanoGPT writes them, set data.format = \"nanogpt\"; if its "
      "bytes are the tokens, set data.format = \"text\" (for yoke data inspect: --format)";
  if (file.size() >= 4 && std::memcmp(file.data(), "PAR1", 4) == 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() +
                    " is a Parquet file; allowed: a text, or token ids; yoke data prepare "
                    "makes token ids of its texts");
  }
  if (path.ends_with(".bin")) {
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() + " has no known header (yoke: \"" + kTokenFileMagic +
                    "\", llm.c: 20240520, 20240801)" + hint +
                    "; for an indexed dataset of Megatron, put an undamaged X.idx beside it");
  }
  const size_t searched = std::min<size_t>(file.size(), 1 << 16);
  const void* zero = searched > 0 ? std::memchr(file.data(), 0, searched) : nullptr;
  if (zero == nullptr) return;
  const auto index = static_cast<const unsigned char*>(zero) - file.data();
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(file.name(), " is not a text: its byte ", index, " is zero", hint));
}

std::string detect(const MappedFile& file, const std::string& path) {
  if (is_yoke(file)) return "yoke";
  if (llmc_kind(file) != nullptr) return "llmc";
  if (is_npy(file)) return "npy";
  if (has_index(path)) return "megatron";
  if (is_datatrove(path)) return "datatrove";
  require_text(file, path);
  return "text";
}

using Open = std::shared_ptr<const TokenStream> (*)(std::unique_ptr<MappedFile>, IdFile);
constexpr std::pair<const char*, Open> kFormats[] = {{"text", open_text},
                                                     {"yoke", open_yoke},
                                                     {"nanogpt", open_nanogpt},
                                                     {"llmc", open_llmc},
                                                     {"npy", open_npy}};

}  // namespace

void check_token_range(int64_t begin, int64_t count, int64_t size) {
  if (begin < 0 || count < 0 || begin > size - count) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("tokens [", begin, ", ", begin, " + ", count, ") ") +
                    concat("are outside a stream of ", size, " tokens"));
  }
}

std::shared_ptr<const TokenStream> TokenStream::open(const std::string& path,
                                                     const std::string& format,
                                                     int64_t vocab,
                                                     const FileUse& use) {
  auto file = std::make_unique<MappedFile>(path, use.key);
  const std::string chosen = format == "auto" ? detect(*file, path) : format;
  if (chosen == "megatron")
    return std::make_shared<IndexedStream>(std::move(file), path, vocab, use);
  IdFile info;
  info.model_vocab = vocab;
  info.checked = use.checked;
  if (chosen == "datatrove") {
    info.format = "datatrove";
    return open_datatrove(std::move(file), path, info);
  }
  for (const auto& [name, open_as] : kFormats) {
    if (chosen != name) continue;
    info.format = name;
    return open_as(std::move(file), info);
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "data.format = \"" + format +
                  "\"; allowed: auto, text, yoke, nanogpt, llmc, npy, megatron, "
                  "datatrove");
}

}  // namespace yoke
