// io_uring, through liburing. All calls are made by the thread of the rank: there is no thread of
// our own that would take a core from the ranks.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugins/deepspeed_stub/offload/file_io.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

class UringIo final : public FileIo {
 public:
  UringIo(const OffloadSettings::Io& settings, const io_uring& ring)
      : FileIo(settings), ring_(ring), single_submit_(settings.single_submit) {}
  ~UringIo() override { io_uring_queue_exit(&ring_); }

 private:
  void submit(Block& block) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // the kernel may round the size of the ring, but never down
      flush();
      entry = io_uring_get_sqe(&ring_);
    }
    if (entry == nullptr) throw Error(YOKE_INTERNAL, "io_uring has no free entry");
    const auto bytes = static_cast<unsigned>(block.bytes);
    const auto offset = static_cast<uint64_t>(block.offset);
    const int file = block.file->descriptor();
    if (block.writes) {
      io_uring_prep_write(entry, file, block.memory, bytes, offset);
    } else {
      io_uring_prep_read(entry, file, block.memory, bytes, offset);
    }
    io_uring_sqe_set_data(entry, &block);
    if (single_submit_) flush();
  }

  void flush() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int code = io_uring_submit(&ring_);
      if (code < 0 && code != -EINTR && code != -EAGAIN && code != -EBUSY)
        throw Error(YOKE_INTERNAL, concat("io_uring failed: ", std::strerror(-code)));
    }
  }

  Block& complete() override {
    io_uring_cqe* entry = nullptr;
    int code = io_uring_wait_cqe(&ring_, &entry);
    while (code == -EINTR || code == -EAGAIN) code = io_uring_wait_cqe(&ring_, &entry);
    if (code < 0) throw Error(YOKE_INTERNAL, concat("io_uring failed: ", std::strerror(-code)));
    Block& block = *static_cast<Block*>(io_uring_cqe_get_data(entry));
    block.result = entry->res;
    io_uring_cqe_seen(&ring_, entry);
    return block;
  }

  io_uring ring_;
  const bool single_submit_;
};

}  // namespace

std::unique_ptr<FileIo> open_uring(const OffloadSettings::Io& settings, std::string* why_not) {
  io_uring ring{};
  const auto entries = static_cast<unsigned>(std::min<int64_t>(settings.queue_depth, 4096));
  const int code = io_uring_queue_init(entries, &ring, 0);
  if (code == 0) return std::make_unique<UringIo>(settings, ring);
  *why_not = concat("io_uring: ", std::strerror(-code));
  return nullptr;
}

}  // namespace yoke::deepspeed_stub
