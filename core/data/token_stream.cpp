#include "core/data/token_stream.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "yoke/error.hpp"

namespace yoke {
namespace {

// A whole file, mapped read-only; ranks of one machine share its pages.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(path, errno);
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd);
      throw Error(YOKE_INVALID_ARGUMENT,
                  "data.path = \"" + path +
                      "\" is not a regular file; give a text, or a .bin of token ids");
    }
    size_ = static_cast<size_t>(info.st_size);
    if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (data_ == MAP_FAILED) fail(path, error);
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  size_t size() const { return size_; }

 private:
  [[noreturn]] static void fail(const std::string& path, int error) {
    if (error == ENOENT || error == ENOTDIR) {
      throw Error(YOKE_NOT_FOUND,
                  "data.path = \"" + path +
                      "\" does not exist; for the demo text run scripts/demo (it fetches it) or "
                      "scripts/fetch_text data/novels.txt, or without a network "
                      "scripts/generate_text FILE");
    }
    throw Error(YOKE_INVALID_ARGUMENT,
                "data.path = \"" + path + "\" cannot be read: " + std::strerror(error));
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

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
  int64_t size() const override { return static_cast<int64_t>(file_->size()); }
  int64_t vocab() const override { return 256; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_range(begin, count, size());
    for (int64_t i = 0; i < count; ++i) out[i] = file_->data()[begin + i];
  }

 private:
  std::unique_ptr<MappedFile> file_;
};

// Token ids of Id bytes each behind a header; see token_stream.hpp.
template <class Id>
class IdStream final : public TokenStream {
 public:
  IdStream(std::unique_ptr<MappedFile> file, int64_t vocab)
      : file_(std::move(file)), vocab_(vocab) {}
  int64_t size() const override {
    return static_cast<int64_t>((file_->size() - kTokenFileHeaderBytes) / sizeof(Id));
  }
  int64_t vocab() const override { return vocab_; }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_range(begin, count, size());
    const unsigned char* ids = file_->data() + kTokenFileHeaderBytes;
    for (int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, ids + static_cast<size_t>(begin + i) * sizeof(Id), sizeof(Id));
      if (id >= vocab_) {
        throw Error(YOKE_DATA_LOSS,
                    "token " + std::to_string(begin + i) + " of the stream is " +
                        std::to_string(id) + ", but its header promises ids below " +
                        std::to_string(vocab_) + "; write the file again");
      }
      out[i] = id;
    }
  }

 private:
  std::unique_ptr<MappedFile> file_;
  int64_t vocab_;
};

std::shared_ptr<const TokenStream> open_ids(std::unique_ptr<MappedFile> file,
                                            const std::string& path) {
  uint32_t id_bytes = 0, vocab = 0;
  uint64_t count = 0;
  std::memcpy(&id_bytes, file->data() + 8, 4);
  std::memcpy(&vocab, file->data() + 12, 4);
  std::memcpy(&count, file->data() + 16, 8);
  const std::string who = "data.path = \"" + path + "\": ";
  if (id_bytes != 2 && id_bytes != 4) {
    throw Error(YOKE_DATA_LOSS,
                who + "ids of " + std::to_string(id_bytes) + " bytes; allowed: 2, 4");
  }
  const uint64_t present = (file->size() - kTokenFileHeaderBytes) / id_bytes;
  if (vocab == 0 || count != present || (file->size() - kTokenFileHeaderBytes) % id_bytes != 0) {
    throw Error(YOKE_DATA_LOSS,
                who + "the header promises " + std::to_string(count) + " ids of a vocabulary of " +
                    std::to_string(vocab) + ", the file has " + std::to_string(present) +
                    "; it is cut or damaged, write it again");
  }
  if (id_bytes == 2) return std::make_shared<IdStream<uint16_t>>(std::move(file), vocab);
  return std::make_shared<IdStream<uint32_t>>(std::move(file), vocab);
}

}  // namespace

std::shared_ptr<const TokenStream> TokenStream::open(const std::string& path) {
  auto file = std::make_unique<MappedFile>(path);
  const bool has_magic =
      file->size() >= kTokenFileHeaderBytes && std::memcmp(file->data(), kTokenFileMagic, 8) == 0;
  if (has_magic) return open_ids(std::move(file), path);
  if (path.size() >= 4 && path.compare(path.size() - 4, 4, ".bin") == 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "data.path = \"" + path + "\" does not start with \"" + kTokenFileMagic +
                    "\", so it is no file of token ids (format: "
                    "core/data/token_stream.hpp); a text must not end in .bin");
  }
  return std::make_shared<ByteStream>(std::move(file));
}

}  // namespace yoke
