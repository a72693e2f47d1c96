// Reads any part of a checkpoint into any layout of ranks.
//
// A rank may request any elements of any tensor, while the checkpoint is made of the pieces that
// other ranks wrote. The reader intersects the two: for each stored piece it finds the elements
// that are both in the piece and requested, and reads the chunks of 4 MiB that contain them. A
// chunk is always read as a whole, because its checksum covers all of it. Nothing is cached.
//
// Opening a checkpoint is cheap: it reads the manifest and the headers, and compares sizes. The
// bytes of a tensor are verified when they are read, or all of them by verify().

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/base/crc32c.hpp"
#include "core/base/files.hpp"
#include "core/checkpoint/adapter.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/contents.hpp"
#include "core/checkpoint/convert.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/pieces.hpp"
#include "core/checkpoint/retention.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxCompanionBytes = uint64_t{64} << 20;
constexpr char kConfigFile[] = "config.json";

[[noreturn]] void damaged(const std::string& where, const std::string& reason) {
  throw Error(YOKE_DATA_LOSS, where + ": " + reason);
}

bool has_tensors(const StoredFile& file) {
  return file.name.ends_with(".safetensors");
}

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/manifest.json";
  std::string text;
  try {
    text = read_text(file, kMaxManifestBytes);
  } catch (const Error& e) {
    if (e.code() != YOKE_NOT_FOUND) throw;
    const std::string newest = checkpoint_near(path);
    throw Error(
        YOKE_NOT_FOUND,
        path +
            (std::filesystem::exists(path) ? " is not a checkpoint: it has no manifest.json; "
                                           : " does not exist; ") +
            (newest.empty() ? "name a folder like .../checkpoints/step-00001000"
                            : "the newest checkpoint there is " + newest));
  }
  try {
    Manifest manifest = parse_manifest(text);
    manifest.info.path = path;
    return manifest;
  } catch (const Error& e) {
    throw Error(e.code(), file + ": " + e.what());
  }
}

File open_file(const std::string& path, const StoredFile& stored) {
  try {
    File file = File::open_for_reading(path);
    if (file.size() != stored.bytes) {
      damaged(
          path,
          concat("it has ", file.size(), " bytes, but had ", stored.bytes, " when it was saved"));
    }
    return file;
  } catch (const Error& e) {
    if (e.code() == YOKE_NOT_FOUND) damaged(path, "the file is missing");
    throw;
  }
}

// Returns the CRC32C of the first `bytes` bytes. They are read in parts, because a head may be
// large.
uint32_t head_crc(const File& file, uint64_t bytes) {
  std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(bytes, kChunkBytes)));
  uint32_t crc = 0;
  for (uint64_t done = 0; done < bytes;) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(bytes - done, buffer.size()));
    file.read_at(buffer.data(), length, done);
    crc = crc32c(crc, buffer.data(), length);
    done += length;
  }
  return crc;
}

// Reads elements [from, to) of a stored piece into `out`; `at` says which elements of the tensor
// the piece has. Spans that are close together are read in one system call, with the bytes between
// them, and then copied out: one call for each of them would take longer.
void read_spans(const File& file,
                const StoredTensor& tensor,
                const StridedSpan& at,
                int64_t from,
                int64_t to,
                char* out) {
  constexpr int64_t kNear = 16;  // at most this many times the wanted bytes are read
  const int64_t item = tensor.item_bytes();
  const int64_t together =
      at.stride <= kNear * at.run ? std::max<int64_t>(1, kChunkBytes / item / at.stride) : 1;
  std::vector<char> between;
  for (int64_t i = from; i < to;) {
    const int64_t until = std::min(to, (i / at.run + together) * at.run);
    const int64_t first = at.element(i), end = at.element(until - 1) + 1;
    const uint64_t place = tensor.offset + static_cast<uint64_t>(first * item);
    char* const mine = out + (i - from) * item;
    if (end - first == until - i) {
      file.read_at(mine, static_cast<size_t>((end - first) * item), place);
    } else {
      between.resize(static_cast<size_t>((end - first) * item));
      file.read_at(between.data(), between.size(), place);
      at.for_each_span(i, until, [&](int64_t element, int64_t k, int64_t n) {
        std::memcpy(mine + (k - i) * item, &between[(element - first) * item], n * item);
      });
    }
    i = until;
  }
}

}  // namespace

struct CheckpointReader::Impl {
  // Receives elements [i, i + n) of the requested span.
  using Use = std::function<void(const char* bytes, int64_t i, int64_t n)>;

  Manifest manifest;
  std::map<std::string, File> files;
  std::map<std::pair<std::string, std::string>, const StoredTensor*> tensors;  // keys: name, kind

  explicit Impl(const std::string& path) : manifest(read_manifest(path)) {
    std::map<std::string, std::map<std::string, const StoredTensor*>> by_file;
    for (const StoredTensor& tensor : manifest.tensors) {
      tensors[{tensor.name, tensor.kind}] = &tensor;
      by_file[tensor.file][tensor.stored_name()] = &tensor;
    }
    // Tensors that remain in by_file after the loop are in files that the manifest does not list.
    for (const StoredFile& stored : manifest.files) {
      const std::string file_path = path + "/" + stored.name;
      const File& file = files.emplace(stored.name, open_file(file_path, stored)).first->second;
      if (has_tensors(stored)) check_header(file, stored, by_file[stored.name]);
      by_file.erase(stored.name);
    }
    if (!by_file.empty())
      damaged(path + "/manifest.json", "it places tensors in a file that it does not list");
  }

  // The file's own header and the manifest must agree, in both directions.
  void check_header(const File& file,
                    const StoredFile& stored,
                    const std::map<std::string, const StoredTensor*>& expected) const {
    const SafetensorsHeader header = read_safetensors_header(file);
    if (header.data_begin != stored.head_bytes || header.tensors.size() != expected.size()) {
      damaged(file.path(), "its header is not the one that was saved");
    }
    for (const SafetensorsTensor& tensor : header.tensors) {
      const auto at = expected.find(tensor.name);
      if (at == expected.end() || at->second->dtype != tensor.dtype ||
          at->second->shape != tensor.shape || at->second->offset != tensor.begin) {
        damaged(file.path(), "its header and manifest.json disagree about '" + tensor.name + "'");
      }
    }
  }

  void verify_heads() const {
    for (const StoredFile& stored : manifest.files) {
      const File& file = files.at(stored.name);
      if (head_crc(file, stored.head_bytes) != stored.head_crc) {
        damaged(file.path(),
                concat("bytes [0, ", stored.head_bytes, ") are not what was saved (CRC32C)"));
      }
    }
  }

  // Reads and verifies every chunk that has elements of `wanted`, and passes those elements to
  // `use`.
  void read_chunks(const StoredTensor& tensor, const StridedSpan& wanted, const Use& use) const {
    const int64_t item = tensor.item_bytes(), per_chunk = kChunkBytes / item;
    std::vector<char> chunk;
    for (const StoredPiece& piece : tensor.pieces) {
      const StridedSpan& at = piece.at;
      if (at.begin >= wanted.end()) break;  // the pieces are sorted by `begin`
      const int64_t first = at.first_from(wanted.begin), last = at.first_from(wanted.end());
      for (int64_t from = first - first % per_chunk; from < last; from += per_chunk) {
        const int64_t to = std::min(from + per_chunk, at.count);
        chunk.clear();
        // The chunk is read when its first wanted element is found, so a chunk without any is not
        // read.
        const auto pass = [&](int64_t i, int64_t j, int64_t n) {
          if (chunk.empty()) read_chunk(tensor, piece, from, to, &chunk);
          use(chunk.data() + (i - from) * item, j, n);
        };
        for_each_common(at, std::max(first, from), std::min(last, to), wanted, pass);
      }
    }
  }

  // Reads and verifies one chunk of a piece: its elements [from, to).
  void read_chunk(const StoredTensor& tensor,
                  const StoredPiece& piece,
                  int64_t from,
                  int64_t to,
                  std::vector<char>* chunk) const {
    const File& file = files.at(tensor.file);
    const int64_t item = tensor.item_bytes();
    chunk->resize(static_cast<size_t>((to - from) * item));
    read_spans(file, tensor, piece.at, from, to, chunk->data());
    const uint32_t crc = crc32c(0, chunk->data(), chunk->size());
    const uint32_t saved = piece.crc[static_cast<size_t>(from * item / kChunkBytes)];
    if (crc == saved) return;
    damaged(file.path(),
            concat(tensor.describe(),
                   ", elements [",
                   piece.at.element(from),
                   ", ",
                   piece.at.element(to - 1) + 1,
                   ")",
                   piece.at.is_flat() ? "" : " of the piece " + piece.at.text(),
                   " are not what was saved (CRC32C ",
                   to_hex({crc}),
                   ", was ",
                   to_hex({saved}),
                   ")"));
  }

  // The error lists the kinds that the parameter has, because the usual cause is a different
  // optimizer.
  const StoredTensor& find(const std::string& name, const std::string& kind) const {
    const auto at = tensors.find({name, kind});
    if (at != tensors.end()) return *at->second;
    std::set<std::string> kinds;
    for (const auto& [key, tensor] : tensors) {
      if (key.first == name) kinds.insert(kind_text(key.second));
    }
    std::string known;
    for (const std::string& k : kinds) known += (known.empty() ? "" : ", ") + k;
    throw Error(
        YOKE_NOT_FOUND,
        "the checkpoint " + manifest.info.path + " has no '" + kind + "' of '" + name + "'" +
            (known.empty() ? ""
                           : "; it has " + known + ": was it saved with another train.optimizer?"));
  }

  static std::string kind_text(const std::string& kind) { return "'" + kind + "'"; }
};

CheckpointReader::CheckpointReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
CheckpointReader::~CheckpointReader() = default;
const CheckpointInfo& CheckpointReader::info() const {
  return impl_->manifest.info;
}

uint64_t CheckpointReader::bytes() const {
  uint64_t bytes = 0;
  for (const StoredFile& file : impl_->manifest.files) bytes += file.bytes;
  return bytes;
}

Shapes CheckpointReader::param_shapes() const {
  Shapes shapes;
  for (const StoredTensor& tensor : impl_->manifest.tensors) {
    if (tensor.kind == "param") shapes[tensor.name] = tensor.shape;
  }
  return shapes;
}

std::string CheckpointReader::hf_config_json() const {
  if (!impl_->files.contains(kConfigFile)) return "";
  impl_->verify_heads();
  return read_text(impl_->files.at(kConfigFile).path(), kMaxManifestBytes);
}

const std::vector<std::string>& companion_files() {
  static const std::vector<std::string> names = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "tokenizer.model",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "chat_template.jinja",
                                                 "generation_config.json",
                                                 kAdapterConfig};
  return names;
}

std::map<std::string, std::string> read_companions(const std::string& folder) {
  if (std::filesystem::exists(folder + "/manifest.json"))
    return CheckpointReader(folder).companions();
  std::map<std::string, std::string> texts;
  for (const std::string& name : companion_files()) {
    const std::string path = folder + "/" + name;
    if (std::filesystem::exists(path)) texts[name] = read_text(path, kMaxCompanionBytes);
  }
  return texts;
}

std::map<std::string, std::string> CheckpointReader::companions() const {
  std::map<std::string, std::string> texts;
  for (const std::string& name : companion_files()) {
    if (!impl_->files.contains(name)) continue;
    if (texts.empty()) impl_->verify_heads();
    texts[name] = read_text(impl_->files.at(name).path(), kMaxCompanionBytes);
  }
  return texts;
}

void CheckpointReader::check_model(const Shapes& model) const {
  require_same_shapes(
      model,
      param_shapes(),
      info().path + " is a checkpoint of another model; check [model] of the run file",
      "the checkpoint");
}

void CheckpointReader::visit(const YokePiece& piece) const {
  const StoredTensor wanted = tensor_of(piece);
  const StoredTensor& stored = impl_->find(wanted.name, wanted.kind);
  if (stored.shape != wanted.shape || !can_convert(stored.dtype, wanted.dtype)) {
    throw Error(YOKE_FAILED_PRECONDITION,
                stored.describe() + " is " + dtype_name(stored.dtype) + " " +
                    shape_text(stored.shape) + " in the checkpoint " + info().path + ", but " +
                    dtype_name(wanted.dtype) + " " + shape_text(wanted.shape) + " in this run");
  }
  if (piece.count == 0) return;
  char* out = piece.view == nullptr ? nullptr : data_of(piece, wanted.dtype);
  impl_->read_chunks(stored, span_of(piece), [&](const char* bytes, int64_t i, int64_t n) {
    if (out == nullptr) return;
    convert(bytes, stored.dtype, out + i * wanted.item_bytes(), wanted.dtype, n);
  });
}

std::optional<std::vector<int64_t>> CheckpointReader::shape(const std::string& name,
                                                            const std::string& kind) const {
  const auto at = impl_->tensors.find({name, kind});
  if (at == impl_->tensors.end()) return std::nullopt;
  return at->second->shape;
}

void CheckpointReader::verify() const {
  const std::string name = std::filesystem::absolute(info().path).lexically_normal().filename();
  if (const auto step = step_of(name); step && *step != info().step)
    damaged(info().path, concat("it holds step ", info().step, ", not the one in its name"));
  impl_->verify_heads();
  try {
    check_counts(impl_->manifest.tensors, impl_->manifest.counts);
  } catch (const Error& e) {
    damaged(info().path, e.what());
  }
  for (const StoredTensor& tensor : impl_->manifest.tensors) {
    impl_->read_chunks(
        tensor, StridedSpan::flat(0, tensor.numel()), [](const char*, int64_t, int64_t) {});
  }
}

}  // namespace yoke
