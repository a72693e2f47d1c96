// The hub of a run: a thread in the process of rank 0 to which every rank keeps one connection.
// Through it the ranks meet and compare what they run, exchange keys and notes, and learn within
// seconds that one of them is lost.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/base/file_descriptor.hpp"
#include "core/control/hub_state.hpp"

namespace yoke {

class Hub {
 public:
  // Starts to serve the listening socket. `progress` is called every five seconds, from the hub's
  // thread, with a sentence that names the missing ranks, until all are present; may be empty.
  // Throws Error(RESOURCE_EXHAUSTED) if no thread or descriptor can be made.
  Hub(FileDescriptor listener,
      HubOptions options,
      std::function<void(const std::string&)> progress);
  // Does the same for another kind of hub. `progress` gets what logic->missing() returns.
  Hub(FileDescriptor listener,
      std::unique_ptr<HubLogic> logic,
      std::function<void(const std::string&)> progress);
  // Waits until no member needs the hub any more, at most five seconds, and closes all connections.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Tells all ranks, also those that come later, why the run does not start. Thread-safe.
  void refuse(const std::string& text);

 private:
  class Server;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace yoke
