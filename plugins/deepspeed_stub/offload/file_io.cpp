#include "plugins/deepspeed_stub/offload/file_io.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {

// ---- Transfer ----

Transfer& Transfer::operator=(Transfer&& other) noexcept {
  Transfer before;  // its destructor waits
  before.io_ = std::exchange(io_, other.io_);
  before.left_ = std::exchange(left_, std::move(other.left_));
  return *this;
}

Transfer::~Transfer() {
  try {
    wait();
  } catch (const Error&) {  // every later call reports the same failure
  }
}

void Transfer::wait() {
  if (left_ == nullptr) return;
  const std::unique_ptr<int64_t> left = std::move(left_);
  io_->finish(*left);
}

// ---- FileIo ----

FileIo::FileIo(const OffloadSettings::Io& settings)
    : block_size_(settings.block_size), blocks_(static_cast<size_t>(settings.queue_depth)) {
  for (Block& block : blocks_) free_.push_back(&block);
}

Transfer FileIo::read(const StateFile& file, int64_t offset, void* memory, int64_t bytes) {
  return start({nullptr, &file, false, offset, bytes, static_cast<char*>(memory)});
}

Transfer FileIo::write(const StateFile& file, int64_t offset, const void* memory, int64_t bytes) {
  char* const from = static_cast<char*>(const_cast<void*>(memory));  // is only read
  return start({nullptr, &file, true, offset, bytes, from});
}

Transfer FileIo::start(Block whole) {
  throw_failure();
  Transfer transfer;
  transfer.io_ = this;
  transfer.left_ = std::make_unique<int64_t>(0);
  for (int64_t at = 0; at < whole.bytes; at += block_size_) {
    if (free_.empty()) {
      flush();
      take_completed();
    }
    Block& block = *free_.back();
    free_.pop_back();
    block = whole;
    block.left = transfer.left_.get();
    block.offset += at;
    block.memory += at;
    block.bytes = std::min(block_size_, whole.bytes - at);
    ++*block.left;
    submit(block);
  }
  flush();
  return transfer;
}

void FileIo::finish(const int64_t& left) {
  while (left > 0) take_completed();
  throw_failure();
}

void FileIo::take_completed() {
  Block& block = complete();
  const bool again = block.result == -EINTR || block.result == -EAGAIN;
  if (again || (block.result > 0 && block.result < block.bytes)) {
    const int64_t done = again ? 0 : block.result;
    block.offset += done;
    block.memory += done;
    block.bytes -= done;
    submit(block);
    return flush();
  }
  if (block.result <= 0) fail(block);
  --*block.left;
  free_.push_back(&block);
}

void FileIo::fail(const Block& block) {
  if (!failure_.empty()) return;
  const auto code = static_cast<int>(-block.result);
  const bool full = code == ENOSPC || code == EDQUOT;
  failure_code_ = full ? YOKE_RESOURCE_EXHAUSTED : YOKE_DATA_LOSS;
  failure_ = concat("offload could not ",
                    block.writes ? "write to" : "read from",
                    " its file in ",
                    block.file->folder(),
                    ": ",
                    block.result == 0 ? "the file has become shorter" : std::strerror(code),
                    full ? "; free space there, or set nvme_path to another disk"
                         : "; check the disk, and resume from the newest checkpoint");
}

void FileIo::throw_failure() const {
  if (!failure_.empty()) throw Error(failure_code_, failure_);
}

}  // namespace yoke::deepspeed_stub
