// Threads that call pread and pwrite, for kernels and containers that do not permit io_uring.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "plugins/deepspeed_stub/offload/file_io.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Blocks all signals of this thread, and of threads that it creates, while it exists: the threads
// must not run the host's handlers.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

class ThreadIo final : public FileIo {
 public:
  explicit ThreadIo(const OffloadSettings::Io& settings) : FileIo(settings) {
    const NoSignals blocked;
    for (int64_t i = 0; i < settings.threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadIo() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void submit(Block& block) override {
    {
      const std::lock_guard lock(mutex_);
      todo_.push_back(&block);
    }
    work_.notify_one();
  }
  void flush() override {}
  Block& complete() override {
    std::unique_lock lock(mutex_);
    done_changed_.wait(lock, [&] { return !done_.empty(); });
    Block& block = *done_.front();
    done_.pop_front();
    return block;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return ended_ || !todo_.empty(); });
      if (todo_.empty()) return;
      Block& block = *todo_.front();
      todo_.pop_front();
      lock.unlock();
      const int file = block.file->descriptor();
      const auto bytes = static_cast<size_t>(block.bytes);
      const ssize_t result = block.writes ? pwrite(file, block.memory, bytes, block.offset)
                                          : pread(file, block.memory, bytes, block.offset);
      block.result = result < 0 ? -errno : result;
      lock.lock();
      done_.push_back(&block);
      done_changed_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_changed_;
  std::deque<Block*> todo_, done_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileIo> open_threads(const OffloadSettings::Io& settings) {
  return std::make_unique<ThreadIo>(settings);
}

}  // namespace yoke::deepspeed_stub
