// A thread that waits for operations whose result somebody expects by a callback.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace yoke {

// The thread starts with the first task. All functions may be called from any thread.
class Completer {
 public:
  // Returns true once the operation is completed. If `doze` is set, it may first wait a
  // millisecond.
  using Poll = std::function<bool(bool doze)>;

  Completer() = default;
  // Drops the tasks that are left. Waits for a callback that is running, unless it makes this call.
  ~Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;

  // Calls `done` on the thread as soon as `poll` returns true. Neither may throw.
  void add(Poll poll, std::function<void()> done);

 private:
  struct Task {
    Poll poll;
    std::function<void()> done;
  };
  // Shared with the thread, because a callback may destroy the completer.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Task> added;
    bool stopping = false;
  };

  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace yoke
