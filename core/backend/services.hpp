// The services that the host offers to a backend: a YokeHost whose functions use a World.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/backend/backend_events.hpp"
#include "core/backend/inner_backends.hpp"
#include "core/comm/world.hpp"
#include "core/cuda/rank_device.hpp"
#include "yoke/parallel_backend.h"
#include "yoke/torch_device.hpp"

struct YokeComm {
  yoke::Communicator* comm;  // owned by the World
};

namespace yoke {

// Receives log lines of a backend; level is YOKE_LOG_... It may be called from any thread.
using LogSink = std::function<void(int32_t level, const std::string& text)>;

// The services of one rank: log, check_cancel, "yoke.collectives/1", "yoke.backends/1",
// "yoke.events/1" and, on a device, "yoke.torch_graphs/1" and "yoke.torch_kernels/1". What the
// constructor is given must outlive this object, and this object must outlive the contexts of the
// backend.
class HostServices {
 public:
  // `cancel` is true once the run should stop; NULL = never. `inner` opens other backends and
  // `events` collects those of the backend; NULL = the service is not offered.
  HostServices(World& world,
               LogSink log,
               const std::atomic<bool>* cancel,
               InnerBackends* inner = nullptr,
               BackendEvents* events = nullptr);
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  // Returns the host for the backend's init(). It lives as long as this object.
  const YokeHost* host() const { return &host_; }

 private:
  friend struct ServiceSlots;
  // Makes the host for an inner backend. The world of that host consists of the ranks that differ
  // from this one only in their coordinates along `axes`. Collective over the world of `whole`.
  HostServices(const HostServices& whole, uint32_t axes);
  // Returns the host for these axes. The first call makes it and is collective.
  const YokeHost* along(uint32_t axes);
  void fill_tables();

  World& world_;
  LogSink log_;
  const std::atomic<bool>* cancel_;
  InnerBackends* inner_;
  BackendEvents* events_;
  uint32_t axes_ = YOKE_ALL_AXES;  // axes spanned by this host's world
  YokeHost host_;
  YokeCollectives collectives_;
  YokeBackends backends_;
  YokeEvents events_table_;
  TorchGraphs graphs_;
  TorchKernels kernels_;
  std::map<Communicator*, YokeComm> comms_;                  // handles that the backend has
  std::map<uint32_t, std::unique_ptr<HostServices>> parts_;  // hosts of inner backends, by axes
};

}  // namespace yoke
