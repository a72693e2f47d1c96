// Reads and writes of files that run while the caller computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/deepspeed_stub/config/offload.hpp"
#include "plugins/deepspeed_stub/offload/state_file.hpp"

namespace yoke::deepspeed_stub {

class FileIo;

// A read or a write in flight. Its memory must stay alive, and untouched, until wait() returns or
// the Transfer is destroyed or assigned to, which waits as well and ignores errors.
class Transfer {
 public:
  Transfer() = default;  // complete
  Transfer(Transfer&&) = default;
  Transfer& operator=(Transfer&& other) noexcept;
  ~Transfer();
  // Throws the Error of FileIo. A second call does nothing.
  void wait();

 private:
  friend class FileIo;
  FileIo* io_ = nullptr;
  std::unique_ptr<int64_t> left_;  // blocks in flight; NULL = complete
};

// Splits transfers into blocks of at most block_size bytes, of which at most queue_depth are in
// flight. Transfers may finish in any order: wait for one before starting another one on the same
// range of a file. One thread at a time.
//
// The first failure is final: the contents of the file are then unknown, so every later call throws
// the same Error, RESOURCE_EXHAUSTED if the disk is full and DATA_LOSS otherwise.
class FileIo {
 public:
  virtual ~FileIo() = default;
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  // offset and bytes count bytes. The file and the memory must outlive the transfer.
  Transfer read(const StateFile& file, int64_t offset, void* memory, int64_t bytes);
  Transfer write(const StateFile& file, int64_t offset, const void* memory, int64_t bytes);

 protected:
  struct Block {
    int64_t* left = nullptr;  // counter of its transfer
    const StateFile* file = nullptr;
    bool writes = false;
    int64_t offset = 0, bytes = 0;
    char* memory = nullptr;
    int64_t result = 0;  // bytes that were transferred, or a negative errno
  };
  explicit FileIo(const OffloadSettings::Io& settings);

  // Takes over a block. Blocks since the last flush need not run before the next one.
  virtual void submit(Block& block) = 0;
  virtual void flush() = 0;
  // Waits for any block that is complete, and returns it with its result.
  virtual Block& complete() = 0;

 private:
  friend class Transfer;
  Transfer start(Block whole);
  void finish(const int64_t& left);
  void take_completed();
  void fail(const Block& block);
  void throw_failure() const;

  const int64_t block_size_;
  std::vector<Block> blocks_;
  std::vector<Block*> free_;
  int failure_code_ = 0;
  std::string failure_;  // "" = none
};

// Transfers through io_uring. Returns NULL, with the reason in *why_not, if the kernel does not
// permit it.
std::unique_ptr<FileIo> open_uring(const OffloadSettings::Io& settings, std::string* why_not);
// Transfers by threads that call pread and pwrite. Works everywhere.
std::unique_ptr<FileIo> open_threads(const OffloadSettings::Io& settings);

}  // namespace yoke::deepspeed_stub
