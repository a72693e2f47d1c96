#include "core/data/token_stream.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/data/mapped_file.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr int64_t kCheckedAtOpen = 1 << 20;  // ids

void check_range(int64_t begin, int64_t count, int64_t size) {
  if (begin < 0 || count < 0 || begin > size - count) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "tokens [" + std::to_string(begin) + ", " + std::to_string(begin) + " + " +
                    std::to_string(count) + ") are not in a stream of " + std::to_string(size));
  }
}

// Every byte of the file is one token.
class ByteStream final : public TokenStream {
 public:
  explicit ByteStream(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  const char* format() const override { return "text"; }
  int64_t size() const override { return static_cast<int64_t>(file_->size()); }
  int64_t vocab() const override { return 256; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_range(begin, count, size());
    for (int64_t i = 0; i < count; ++i) out[i] = file_->data()[begin + i];
  }

 private:
  std::unique_ptr<MappedFile> file_;
};

// What is known of a file of ids before one of them is read.
struct IdFile {
  std::string path;
  const char* format = "";
  size_t header_bytes = 0;
  size_t id_bytes = 2;
  int64_t promised_vocab = 0;  // by the header; 0 = nothing
  int64_t model_vocab = 0;     // 0 = no model
};

template <class Id>
class IdStream final : public TokenStream {
 public:
  IdStream(std::unique_ptr<MappedFile> file, IdFile info)
      : file_(std::move(file)),
        info_(std::move(info)),
        bound_(info_.promised_vocab > 0 ? info_.promised_vocab : info_.model_vocab) {}
  const char* format() const override { return info_.format; }
  int64_t size() const override {
    return static_cast<int64_t>((file_->size() - info_.header_bytes) / sizeof(Id));
  }
  int64_t vocab() const override { return info_.promised_vocab; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_range(begin, count, size());
    const unsigned char* ids = file_->data() + info_.header_bytes;
    for (int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, ids + static_cast<size_t>(begin + i) * sizeof(Id), sizeof(Id));
      if (bound_ > 0 && id >= bound_) refuse(begin + i, id);
      out[i] = id;
    }
  }

 private:
  [[noreturn]] void refuse(int64_t token, int64_t id) const {
    const std::string bound = std::to_string(bound_);
    throw Error(YOKE_DATA_LOSS,
                data_path_is(info_.path) + ": token " + std::to_string(token) + " (byte " +
                    std::to_string(info_.header_bytes + static_cast<size_t>(token) * sizeof(Id)) +
                    ") is " + std::to_string(id) +
                    (info_.promised_vocab > 0
                         ? ", but its header promises ids below " + bound + "; write the file again"
                         : ", but model.vocab = " + bound + " allows ids below " + bound +
                               "; give the vocabulary of the tokenizer that wrote the file, or see "
                               "whether data.format is right"));
  }

  std::unique_ptr<MappedFile> file_;
  IdFile info_;
  int64_t bound_;
};

std::shared_ptr<const TokenStream> make_stream(std::unique_ptr<MappedFile> file, IdFile info) {
  std::shared_ptr<const TokenStream> stream;
  if (info.id_bytes == 2) {
    stream = std::make_shared<IdStream<uint16_t>>(std::move(file), std::move(info));
  } else {
    stream = std::make_shared<IdStream<uint32_t>>(std::move(file), std::move(info));
  }
  // A file of another format or tokenizer shows at once, not after hours.
  std::vector<int64_t> first(static_cast<size_t>(std::min(stream->size(), kCheckedAtOpen)));
  stream->read(0, static_cast<int64_t>(first.size()), first.data());
  return stream;
}

// What the header promises against what is there.
void check_count(const MappedFile& file, const IdFile& info, uint64_t promised) {
  const uint64_t bytes = file.size() - info.header_bytes;
  if (promised == bytes / info.id_bytes && bytes % info.id_bytes == 0) return;
  throw Error(YOKE_DATA_LOSS,
              data_path_is(info.path) + ": the header promises " + std::to_string(promised) +
                  " ids of " + std::to_string(info.id_bytes) + " bytes, but " +
                  std::to_string(bytes) + " bytes follow it, which are " +
                  std::to_string(bytes / info.id_bytes) +
                  (bytes % info.id_bytes == 0 ? "" : " and a part of one") +
                  "; it is cut or damaged, write it again");
}

void require_header(const MappedFile& file, const std::string& path, size_t bytes) {
  if (file.size() >= bytes) return;
  throw Error(YOKE_DATA_LOSS,
              data_path_is(path) + " has " + std::to_string(file.size()) +
                  " bytes, fewer than its header of " + std::to_string(bytes) +
                  "; it is cut, write it again");
}

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
                data_path_is(info.path) + " does not begin with \"" + kTokenFileMagic +
                    "\", so it is not of the format \"yoke\" (core/data/token_stream.hpp)");
  }
  info.header_bytes = kTokenFileHeaderBytes;
  require_header(*file, info.path, info.header_bytes);
  info.id_bytes = word(*file, 2);
  info.promised_vocab = word(*file, 3);
  uint64_t count = 0;
  std::memcpy(&count, file->data() + 16, 8);
  if ((info.id_bytes != 2 && info.id_bytes != 4) || info.promised_vocab == 0) {
    throw Error(YOKE_DATA_LOSS,
                data_path_is(info.path) + ": the header says ids of " +
                    std::to_string(info.id_bytes) + " bytes and a vocabulary of " +
                    std::to_string(info.promised_vocab) + "; allowed: 2 or 4 bytes, 1 and above");
  }
  check_count(*file, info, count);
  return make_stream(std::move(file), std::move(info));
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
                data_path_is(info.path) +
                    " does not begin with a magic of llm.c (20240520, 20240801), so it is not of "
                    "the format \"llmc\"");
  }
  info.header_bytes = kLlmcHeaderBytes;
  info.id_bytes = kind->id_bytes;
  require_header(*file, info.path, info.header_bytes);
  if (word(*file, 1) != kind->version) {
    throw Error(YOKE_DATA_LOSS,
                data_path_is(info.path) + ": version " + std::to_string(word(*file, 1)) +
                    " of llm.c's " + std::to_string(kind->magic) +
                    "; known: " + std::to_string(kind->version));
  }
  check_count(*file, info, word(*file, 2));
  return make_stream(std::move(file), std::move(info));
}

std::shared_ptr<const TokenStream> open_nanogpt(std::unique_ptr<MappedFile> file, IdFile info) {
  if (is_yoke(*file) || llmc_kind(*file) != nullptr) {
    throw Error(YOKE_INVALID_ARGUMENT,
                data_path_is(info.path) +
                    " has a header, which raw ids have not; give data.format = \"" +
                    (is_yoke(*file) ? "yoke" : "llmc") + "\"");
  }
  if (file->size() % 2 != 0) {
    throw Error(YOKE_DATA_LOSS,
                data_path_is(info.path) + " has " + std::to_string(file->size()) +
                    " bytes, but ids of 2 bytes need an even number; it is cut, or not of the "
                    "format \"nanogpt\"");
  }
  return make_stream(std::move(file), std::move(info));
}

std::shared_ptr<const TokenStream> open_text(std::unique_ptr<MappedFile> file, IdFile) {
  return std::make_shared<ByteStream>(std::move(file));
}

// Raw ids have nothing to be told by. Trained on as bytes they would make a model of nonsense.
void require_text(const MappedFile& file, const std::string& path) {
  const std::string hint =
      "; if it holds raw uint16 ids, as nanoGPT writes them, give data.format = \"nanogpt\"; if "
      "its "
      "bytes are the tokens, \"text\" (yoke data inspect: --format)";
  if (path.ends_with(".bin")) {
    throw Error(YOKE_INVALID_ARGUMENT,
                data_path_is(path) + " has no header that is known (yoke: \"" + kTokenFileMagic +
                    "\", llm.c: 20240520, 20240801)" + hint);
  }
  const size_t looked_at = std::min<size_t>(file.size(), 1 << 16);
  const void* zero = looked_at > 0 ? std::memchr(file.data(), 0, looked_at) : nullptr;
  if (zero == nullptr) return;
  const auto at = static_cast<const unsigned char*>(zero) - file.data();
  throw Error(
      YOKE_INVALID_ARGUMENT,
      data_path_is(path) + " is no text: its byte " + std::to_string(at) + " is zero" + hint);
}

std::string detect(const MappedFile& file, const std::string& path) {
  if (is_yoke(file)) return "yoke";
  if (llmc_kind(file) != nullptr) return "llmc";
  require_text(file, path);
  return "text";
}

using Open = std::shared_ptr<const TokenStream> (*)(std::unique_ptr<MappedFile>, IdFile);
constexpr std::pair<const char*, Open> kFormats[] = {
    {"text", open_text}, {"yoke", open_yoke}, {"nanogpt", open_nanogpt}, {"llmc", open_llmc}};

}  // namespace

std::shared_ptr<const TokenStream> TokenStream::open(const std::string& path,
                                                     const std::string& format,
                                                     int64_t vocab) {
  auto file = std::make_unique<MappedFile>(path);
  const std::string chosen = format == "auto" ? detect(*file, path) : format;
  for (const auto& [name, open_as] : kFormats) {
    if (chosen != name) continue;
    return open_as(std::move(file), IdFile{path, name, 0, 2, 0, vocab});
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "data.format = \"" + format + "\"; allowed: auto, text, yoke, nanogpt, llmc");
}

}  // namespace yoke
