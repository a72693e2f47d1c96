// The ids are appended to one file, and a small JSON file says how many of them count. A resumed
// preparation continues behind them and overwrites what follows. The JSON file is replaced only
// after the ids are on the device, so it never promises more than there is. A file for each part
// was rejected: it needs a second pass over all tokens at the end.
#include "core/data/prepared_output.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/strict_json.hpp"
#include "core/data/token_stream.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr uint64_t kMostProgressBytes = uint64_t{1} << 28;  // the job names all inputs
// No count of bytes, tokens or documents is larger, so sums of counts do not overflow.
constexpr int64_t kMostCount = int64_t{1} << 48;

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A path need not be UTF-8, which JSON must be.
std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

PreparedOutput::PreparedOutput(const std::string& out,
                               const nlohmann::json& job,
                               int64_t vocab,
                               bool with_mask,
                               const std::vector<uint64_t>& input_sizes)
    : out_(out),
      folder_(out + ".partial"),
      job_(text_of(job)),
      vocab_(vocab),
      with_mask_(with_mask),
      id_bytes_(vocab <= 1 << 16 ? 2 : 4) {
  check_places(read_progress());
  make_folders(folder_);
  lock_.emplace(folder_);
  if (!lock_->held()) {
    throw Error(YOKE_FAILED_PRECONDITION,
                folder_ + " is in use: another process prepares " + out_ +
                    "; wait for it, or choose another name");
  }
  const nlohmann::json progress = read_progress();
  check_places(progress);  // another process may have finished since
  if (resume(progress, input_sizes)) return;
  remove_file(progress_path());
  remove_file(ids_path());
  remove_file(partial_mask_path());
  ids_.emplace(File::create(ids_path()));
  if (with_mask_) mask_.emplace(File::create(partial_mask_path()));
}

PreparedOutput::~PreparedOutput() = default;

// Returns the state of an interrupted preparation; an empty object if there is none.
nlohmann::json PreparedOutput::read_progress() const {
  if (!std::filesystem::exists(progress_path()) || !std::filesystem::exists(ids_path()))
    return nlohmann::json::object();
  try {
    return parse_json_object(read_text(progress_path(), kMostProgressBytes), "the file");
  } catch (const Error& e) {
    damaged(e.what());
  }
}

// Refuses what would be overwritten. An interrupted finish() of the same job may have moved the
// mask and written the description.
void PreparedOutput::check_places(const nlohmann::json& progress) const {
  const std::string description = token_info_path(out_), mask = mask_path(out_);
  if (description == out_ || mask == out_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                out_ +
                    ": the description and the mask of the token ids have the extensions .json "
                    "and .mask; choose another name, such as OUT.bin");
  }
  const bool same = is_same_job(progress);
  const bool mask_moved = same && with_mask_ && !std::filesystem::exists(partial_mask_path());
  const bool finishing = same && (mask_moved || !with_mask_);
  for (const std::string& path : {out_, description, mask}) {
    const bool own = (path == description && finishing) || (path == mask && mask_moved);
    if (own || !std::filesystem::exists(path)) continue;
    throw Error(YOKE_FAILED_PRECONDITION, path + " exists; remove it, or choose another name");
  }
}

bool PreparedOutput::is_same_job(const nlohmann::json& progress) const {
  return progress.value("job", nlohmann::json()) == job_;
}

// Opens what an earlier process of the same job wrote. Returns false if there is nothing.
bool PreparedOutput::resume(const nlohmann::json& progress,
                            const std::vector<uint64_t>& input_sizes) {
  started_over_ = !progress.empty() && !is_same_job(progress);
  if (!is_same_job(progress)) return false;
  remove_file(token_info_path(out_));
  if (with_mask_ && std::filesystem::exists(mask_path(out_)))
    rename_path(mask_path(out_), partial_mask_path());
  const auto number = [&](const char* key) {
    const nlohmann::json value = progress.value(key, nlohmann::json());
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMostCount)
      damaged(concat("\"", key, "\" must be a whole number from 0 to ", kMostCount));
    return value.get<int64_t>();
  };
  so_far_ = {
      number("file"), number("offset"), number("tokens"), number("documents"), number("empty")};
  if (with_mask_ && !std::filesystem::exists(partial_mask_path())) damaged("the mask is missing");
  ids_.emplace(File::open_for_writing(ids_path()));
  if (with_mask_) mask_.emplace(File::open_for_writing(partial_mask_path()));
  check_so_far(input_sizes);
  return true;
}

// Checks that the inputs and the written files are as long as was counted.
void PreparedOutput::check_so_far(const std::vector<uint64_t>& input_sizes) const {
  if (so_far_.file >= std::ssize(input_sizes))
    damaged(
        concat("\"file\" is ", so_far_.file, ", but there are ", input_sizes.size(), " inputs"));
  const uint64_t size = input_sizes[static_cast<size_t>(so_far_.file)];
  if (static_cast<uint64_t>(so_far_.offset) > size)
    damaged(concat("\"offset\" is ", so_far_.offset, ", but the input ends at ", size));
  const uint64_t ids = ids_->size(), header = kTokenFileHeaderBytes;
  uint64_t tokens = ids > header ? (ids - header) / static_cast<uint64_t>(id_bytes_) : 0;
  if (mask_) tokens = std::min(tokens, mask_->size());
  if (static_cast<uint64_t>(so_far_.tokens) > tokens)
    damaged(concat("\"tokens\" is ", so_far_.tokens, ", but the files hold ", tokens));
}

void PreparedOutput::damaged(const std::string& what) const {
  throw Error(YOKE_DATA_LOSS,
              progress_path() + ": " + what + "; remove " + folder_ + " to start over");
}

void PreparedOutput::append(const std::vector<int32_t>& ids,
                            const std::string& mask,
                            const PreparedSoFar& after) {
  bytes_.resize(ids.size() * static_cast<size_t>(id_bytes_));
  for (size_t i = 0; i < ids.size(); ++i) {
    // The machine is little-endian, so the low bytes of an id come first.
    std::memcpy(bytes_.data() + i * static_cast<size_t>(id_bytes_),
                &ids[i],
                static_cast<size_t>(id_bytes_));
  }
  ids_->write_at(bytes_.data(),
                 bytes_.size(),
                 kTokenFileHeaderBytes + static_cast<uint64_t>(so_far_.tokens * id_bytes_));
  if (mask_) mask_->write_at(mask.data(), mask.size(), static_cast<uint64_t>(so_far_.tokens));
  so_far_ = after;
}

void PreparedOutput::save() {
  ids_->sync_data();
  if (mask_) mask_->sync_data();
  const nlohmann::json json = {{"job", job_},
                               {"file", so_far_.file},
                               {"offset", so_far_.offset},
                               {"tokens", so_far_.tokens},
                               {"documents", so_far_.documents},
                               {"empty", so_far_.empty}};
  replace_text(progress_path(), text_of(json));
}

std::vector<char> PreparedOutput::header(int64_t tokens) const {
  std::vector<char> bytes(kTokenFileHeaderBytes);
  const auto id_bytes = static_cast<uint32_t>(id_bytes_), vocab = static_cast<uint32_t>(vocab_);
  const auto count = static_cast<uint64_t>(tokens);
  std::memcpy(bytes.data(), kTokenFileMagic, 8);
  std::memcpy(bytes.data() + 8, &id_bytes, 4);
  std::memcpy(bytes.data() + 12, &vocab, 4);
  std::memcpy(bytes.data() + 16, &count, 8);
  return bytes;
}

void PreparedOutput::finish(const TokenInfo& info) {
  save();  // a finish() that is interrupted is taken back, and done again
  const std::vector<char> first = header(so_far_.tokens);
  ids_->write_at(first.data(), first.size(), 0);
  ids_->sync();
  ids_->close();
  // A process that was killed while it appended may have written more than it counted.
  std::filesystem::resize_file(
      ids_path(), kTokenFileHeaderBytes + static_cast<uint64_t>(so_far_.tokens * id_bytes_));
  if (mask_) {
    mask_->sync();
    mask_->close();
    std::filesystem::resize_file(partial_mask_path(), static_cast<uint64_t>(so_far_.tokens));
    rename_path(partial_mask_path(), mask_path(out_));
  }
  write_token_info(out_, info);
  rename_path(ids_path(), out_);
  sync_folder(parent_of(out_));
  remove_tree(folder_);
}

}  // namespace yoke
