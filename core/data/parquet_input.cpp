// Rows are read in order by whichever thread takes the next part. Decoding a column is ten times
// as fast or more than encoding its texts, so the others rarely wait for it. Letting each thread
// read row groups of its own was rejected: a row group may hold a gigabyte of text.
#include "core/data/parquet_input.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <utility>

#include "core/data/data_files.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace fs = std::filesystem;

namespace yoke {
namespace {

constexpr char kLibrary[] = "libyoke_parquet.so";
// A row without text counts as this many bytes, so that a part of such rows ends, too.
constexpr size_t kRowBytes = 64;
constexpr char kConvert[] =
    ", or convert the file to .jsonl, for example in Python: "
    "datasets.Dataset.from_parquet(FILE).to_json(OUT)";

// Finds the library in the folder ../lib beside that of the program, as in the build tree and in an
// install. Returns an empty path if there is none.
fs::path library_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path library = program.parent_path().parent_path() / "lib" / kLibrary;
  return fs::exists(library, error) ? library : fs::path();
}

// Loads Arrow if it is beside the LibTorch that YOKE_TORCH_LIB names, as pip installs it. Otherwise
// the dynamic linker looks for it.
void load_arrow_beside_libtorch() {
  const char* torch = std::getenv("YOKE_TORCH_LIB");
  if (torch == nullptr) return;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(fs::path(torch) / "../../pyarrow", error)) {
    if (file.path().filename().string().starts_with("libparquet.so"))
      ::dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

OpenParquet load(const std::string& file) {
  const auto refuse = [&](const std::string& text) {
    throw Error(YOKE_FAILED_PRECONDITION, path_is(kInputKey, file) + " is a Parquet file, " + text);
  };
  const fs::path path = library_path();
  if (path.empty()) {
    refuse(concat("but this Yoke was built without Parquet: ", kLibrary) +
           " is missing; run scripts/setup --parquet and build Yoke again" + kConvert);
  }
  load_arrow_beside_libtorch();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string reason = ::dlerror();
    refuse("but Apache Arrow cannot be loaded: " + reason +
           "; `pip install pyarrow==" YOKE_ARROW_VERSION
           "` beside LibTorch installs it, or name its folder in LD_LIBRARY_PATH" +
           kConvert);
  }
  const auto open = reinterpret_cast<OpenParquet>(::dlsym(library, kParquetEntry));
  if (open == nullptr)
    refuse("but " + path.string() + " is of another version of Yoke; reinstall Yoke");
  return open;
}

// Calls f. Arrow throws exceptions of its own for some damaged files.
template <class F>
auto named(const std::string& where, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + e.what());
  } catch (const std::exception& e) {
    throw Error(YOKE_DATA_LOSS, where + ": the file is damaged: " + e.what());
  }
}

std::unique_ptr<ParquetFile> open_file(const std::string& path, const DocumentKind& kind) {
  const OpenParquet open = load(path);
  return named(path_is(kInputKey, path),
               [&] { return std::unique_ptr<ParquetFile>(open(path, kind.field, kind.chat)); });
}

size_t text_bytes(const ParquetRow& row) {
  size_t bytes = row.text.size();
  for (const MessageCell& message : row.messages) {
    for (const auto& field : {message.role, message.content}) bytes += field ? field->size() : 0;
  }
  return bytes;
}

}  // namespace

bool is_parquet(const std::string& path, std::string_view bytes) {
  if (bytes.starts_with("PAR1")) return true;
  if (path.ends_with(".parquet")) {
    throw Error(YOKE_INVALID_ARGUMENT,
                path_is(kInputKey, path) +
                    " does not begin with PAR1 and is no Parquet file, although its name says so; "
                    "is it a pointer of Git LFS, or was the download interrupted?");
  }
  return false;
}

ParquetInput::ParquetInput(const std::string& path, const DocumentKind& kind)
    : path_(path),
      chat_(kind.chat),
      file_(open_file(path, kind)),
      size_(static_cast<size_t>(file_->rows())),
      bytes_(fs::file_size(path)) {}

uint64_t ParquetInput::bytes_before(size_t place) const {
  if (place == size_) return bytes_;
  return static_cast<uint64_t>(static_cast<double>(bytes_) * static_cast<double>(place) /
                               static_cast<double>(size_));
}

InputPart ParquetInput::take(size_t begin, size_t bytes) {
  const std::string where = concat(path_, ", from row ", begin, " on");
  if (begin != ahead_at_) {
    named(where, [&] { file_->seek(static_cast<int64_t>(begin)); });
    ahead_.clear();
    next_ = 0;
    ahead_at_ = begin;
  }
  const auto rows = std::make_shared<Rows>();
  for (size_t taken = 0; taken < bytes && ahead_at_ < size_;) {
    if (next_ == ahead_.size()) {
      next_ = 0;
      ahead_ = named(where, [&] { return file_->read(); });
      if (ahead_.empty()) {
        throw Error(YOKE_DATA_LOSS,
                    concat(path_, ": the file ends at row ", ahead_at_, " of ", size_));
      }
    }
    rows->push_back(std::move(ahead_[next_++]));
    taken += kRowBytes + text_bytes(rows->back());
    ++ahead_at_;
  }
  return {begin, ahead_at_, rows};
}

void ParquetInput::for_each_document(const InputPart& part, const Visit& visit) const {
  const auto& rows = *std::static_pointer_cast<const Rows>(part.content);
  for (size_t i = 0; i < rows.size(); ++i)
    visit({rows[i].text, chat_ ? &rows[i].messages : nullptr}, part.begin + i);
}

std::string ParquetInput::name_of(size_t place) const {
  return concat(path_, ": row ", place);
}

}  // namespace yoke
