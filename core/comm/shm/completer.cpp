#include "core/comm/shm/completer.hpp"

#include <utility>

namespace yoke {

Completer::~Completer() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Completer::add(Poll poll, std::function<void()> done) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->added.push_back({std::move(poll), std::move(done)});
    if (!thread_.joinable()) thread_ = std::thread(run, state_);
  }
  state_->changed.notify_all();
}

// Looks at all tasks in turn: one that is completed never waits for one that is not, on which it
// may depend.
void Completer::run(const std::shared_ptr<State>& state) {
  std::vector<Task> tasks;
  for (;;) {
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(
          lock, [&] { return state->stopping || !tasks.empty() || !state->added.empty(); });
      if (state->stopping) return;
      std::move(state->added.begin(), state->added.end(), std::back_inserter(tasks));
      state->added.clear();
    }
    bool doze = true;
    for (auto task = tasks.begin(); task != tasks.end();) {
      const bool completed = task->poll(doze);
      doze = false;
      if (!completed) {
        ++task;
        continue;
      }
      const Task ready = std::move(*task);
      task = tasks.erase(task);
      ready.done();
    }
  }
}

}  // namespace yoke
