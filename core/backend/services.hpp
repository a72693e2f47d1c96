// What the host does for a backend: fills a YokeHost over a CommWorld.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/comm/communicator.hpp"
#include "yoke/parallel_backend.h"

struct YokeComm {
  yoke::Communicator* comm;  // of the CommWorld
};

namespace yoke {

using LogSink =
    std::function<void(int32_t level, const std::string& text)>;  // YOKE_LOG_..., any thread

// The services of one rank: log, check_cancel, "yoke.collectives/1". The world, and what the sink
// and the flag refer to, outlive this; this outlives the contexts of the backend.
class HostServices {
 public:
  // cancel: may be NULL = never.
  HostServices(CommWorld& world, LogSink log, const std::atomic<bool>* cancel, YokeDevice device);
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  const YokeHost* host() const { return &host_; }

 private:
  friend struct ServiceSlots;

  CommWorld& world_;
  LogSink log_;
  const std::atomic<bool>* cancel_;
  YokeHost host_;
  YokeCollectives collectives_;
  std::map<Communicator*, YokeComm> comms_;  // handles given out
};

}  // namespace yoke
