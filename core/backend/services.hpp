// What the host does for a backend: fills a YokeHost over a World.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/backend/inner_backends.hpp"
#include "core/comm/world.hpp"
#include "core/cuda/rank_device.hpp"
#include "yoke/parallel_backend.h"

struct YokeComm {
  yoke::Communicator* comm;  // of the World
};

namespace yoke {

using LogSink =
    std::function<void(int32_t level, const std::string& text)>;  // YOKE_LOG_..., any thread

// The services of one rank: log, check_cancel, "yoke.collectives/1", "yoke.backends/1", on a device
// "yoke.torch_graphs/1". The world, and what the sink and the flag refer to, outlive this; this
// outlives the contexts of the backend.
class HostServices {
 public:
  // cancel: may be NULL = never. inner: NULL = this host opens no other backend.
  HostServices(World& world,
               LogSink log,
               const std::atomic<bool>* cancel,
               InnerBackends* inner = nullptr);
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  const YokeHost* host() const { return &host_; }

 private:
  friend struct ServiceSlots;
  // The host of the ranks that differ from this one only in `axes`. Collective over the world.
  HostServices(const HostServices& whole, uint32_t axes);
  const YokeHost* along(uint32_t axes);
  void fill_tables();

  World& world_;
  LogSink log_;
  const std::atomic<bool>* cancel_;
  InnerBackends* inner_;
  uint32_t axes_ = YOKE_ALL_AXES;  // what its world is
  YokeHost host_;
  YokeCollectives collectives_;
  YokeBackends backends_;
  TorchGraphs graphs_;
  std::map<Communicator*, YokeComm> comms_;                  // handles given out
  std::map<uint32_t, std::unique_ptr<HostServices>> parts_;  // by axes
};

}  // namespace yoke
