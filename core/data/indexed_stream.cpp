// The index is trusted only after it has been checked as a whole: a dataset whose two files do not
// belong together would otherwise give ids of the wrong places without any error.
#include "core/data/indexed_stream.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // 9 bytes, with the last zero
constexpr int64_t kMagicBytes = 9, kHeaderBytes = 34;

template <class T>
T load(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Returns the bytes of an id; 0 = the code is no type of ids.
int64_t item_of(int type) {
  switch (type) {
    case 1:
    case 2:
      return 1;
    case 3:
    case 8:
      return 2;
    case 4:
      return 4;
    case 5:
      return 8;
    default:
      return 0;
  }
}

// Negative ids stay negative, and are refused by the caller.
template <class Id>
void widen(const unsigned char* from, int64_t count, int64_t* out) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Id));
  for (int64_t i = 0; i < count; ++i) {
    const Id id = load<Id>(from + i * kBytes);
    out[i] = id;  // NOLINT(bugprone-signed-char-misuse)
  }
}

[[noreturn]] void damaged(const std::string& what) {
  throw Error(YOKE_DATA_LOSS,
              what +
                  "; the dataset is damaged, or its two files do not belong "
                  "together; write both again");
}

MappedFile open_index(const MappedFile& bin, const std::string& path, const std::string& key) {
  const std::string index = index_path(path);
  if (index.empty() || !std::filesystem::exists(index))
    throw Error(YOKE_NOT_FOUND,
                bin.name() + " lacks its index " + (index.empty() ? "X.idx of X.bin" : index) +
                    ", which data.format = \"megatron\" needs; put it beside the ids");
  return MappedFile(index, key);
}

}  // namespace

std::string index_path(const std::string& bin) {
  return bin.ends_with(".bin") ? bin.substr(0, bin.size() - 4) + ".idx" : "";
}

bool has_index(const std::string& bin) {
  std::ifstream file(index_path(bin), std::ios::binary);
  char magic[kMagicBytes] = {};
  return file.read(magic, kMagicBytes) && std::memcmp(magic, kMagic, kMagicBytes) == 0;
}

IndexedStream::IndexedStream(std::unique_ptr<MappedFile> bin,
                             const std::string& path,
                             int64_t vocab,
                             const FileUse& use)
    : bin_(std::move(bin)), index_(open_index(*bin_, path, use.key)), vocab_(vocab) {
  read_header();
  read_sequences();
  // A dataset of another tokenizer must be found now rather than hours into a run.
  std::vector<int64_t> first(static_cast<size_t>(std::min(size(), use.checked)));
  read(0, static_cast<int64_t>(first.size()), first.data());
}

void IndexedStream::read_header() {
  const unsigned char* bytes = index_.data();
  const auto size = static_cast<int64_t>(index_.size());
  if (size < kHeaderBytes || std::memcmp(bytes, kMagic, kMagicBytes) != 0)
    throw Error(YOKE_INVALID_ARGUMENT,
                index_.name() +
                    " is not the index of a Megatron dataset, which begins with "
                    "MMIDIDX and has at least 34 bytes");
  const auto version = load<uint64_t>(bytes + 9);
  if (version != 1)
    throw Error(YOKE_INVALID_ARGUMENT,
                index_.name() + concat(" has version ", version, "; supported: 1"));
  type_ = bytes[17];
  item_ = item_of(type_);
  if (item_ == 0)
    throw Error(YOKE_INVALID_ARGUMENT,
                index_.name() + concat(" has values of type ", type_) +
                    "; supported: token ids, the integer types 1, 2, 3, 4, 5 and 8");
  const auto sequences = load<uint64_t>(bytes + 18), documents = load<uint64_t>(bytes + 26);
  // Every sequence has at least 12 bytes here, so the products below cannot overflow.
  const auto limit = static_cast<uint64_t>(size);
  const bool possible = sequences <= limit / 12 && documents >= 1 && documents <= limit / 8;
  const int64_t needed = possible ? kHeaderBytes + 12 * static_cast<int64_t>(sequences) +
                                        8 * static_cast<int64_t>(documents)
                                  : 0;
  const bool fits =
      possible && (size == needed || size == needed + static_cast<int64_t>(sequences));
  if (!fits)
    damaged(index_.name() + concat(" has ", size, " bytes, which do not fit ", sequences) +
            concat(" sequences and ", documents, " ends of documents"));
  sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(documents) - 1;
  const auto last = load<int64_t>(bytes + needed - 8);
  if (last != sequences_)
    damaged(index_.name() + concat(": the documents end with sequence ", last) +
            concat(", but there are ", sequences_));
}

void IndexedStream::read_sequences() {
  starts_.reserve(static_cast<size_t>(sequences_) + 1);
  starts_.push_back(0);
  const auto bytes = static_cast<int64_t>(bin_->size());
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t tokens = length(s), begin = offset(s);
    if (tokens < 0 || begin < 0 || begin % item_ != 0 || begin > bytes - tokens * item_)
      damaged(index_.name() + concat(": sequence ", s, " has ", tokens, " tokens from byte ") +
              concat(begin, " on, but ", bin_->name(), " has ", bytes, " bytes"));
    starts_.push_back(starts_.back() + tokens);
  }
}

int64_t IndexedStream::length(int64_t sequence) const {
  return load<int32_t>(index_.data() + kHeaderBytes + 4 * sequence);
}

int64_t IndexedStream::offset(int64_t sequence) const {
  return load<int64_t>(index_.data() + kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

void IndexedStream::copy(int64_t byte, int64_t count, int64_t token, int64_t* out) const {
  const unsigned char* from = bin_->data() + byte;
  switch (type_) {
    case 1:
      widen<uint8_t>(from, count, out);
      break;
    case 2:
      widen<int8_t>(from, count, out);
      break;
    case 3:
      widen<int16_t>(from, count, out);
      break;
    case 4:
      widen<int32_t>(from, count, out);
      break;
    case 5:
      widen<int64_t>(from, count, out);
      break;
    default:
      widen<uint16_t>(from, count, out);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] >= 0 && (vocab_ == 0 || out[i] < vocab_)) continue;
    throw Error(
        YOKE_DATA_LOSS,
        bin_->name() + concat(": token ", token + i, " is ", out[i]) +
            (out[i] < 0 ? "; allowed: 0 or more; write the dataset again"
                        : concat(", but model.vocab = ", vocab_, " allows ids below ") +
                              concat(vocab_, "; set model.vocab to the vocabulary of the ") +
                              "tokenizer that wrote the dataset"));
  }
}

void IndexedStream::read(int64_t begin, int64_t count, int64_t* out) const {
  check_token_range(begin, count, size());
  auto sequence = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
  for (; count > 0; ++sequence) {
    const int64_t skip = begin - starts_[sequence];
    const int64_t n = std::min(count, starts_[sequence + 1] - begin);
    copy(offset(sequence) + skip * item_, n, begin, out);
    begin += n;
    out += n;
    count -= n;
  }
}

}  // namespace yoke
