// A graph of a device whose replays count in the metrics, and in the check of collectives, like the
// work that was recorded.
#pragma once

#include <memory>
#include <utility>

#include "core/comm/world.hpp"
#include "yoke/torch_device.hpp"

namespace yoke {

// The world must outlive the graph.
class CountedGraph final : public DeviceGraph {
 public:
  CountedGraph(std::unique_ptr<DeviceGraph> graph, World& world)
      : graph_(std::move(graph)), world_(world) {}

  ~CountedGraph() override {
    if (recording_) world_.end_recording();
  }
  CountedGraph(const CountedGraph&) = delete;
  CountedGraph& operator=(const CountedGraph&) = delete;

  void begin() override {
    graph_->begin();
    world_.start_recording();
    recording_ = true;
  }
  void end() override {
    recording_ = false;
    operations_ = world_.end_recording();
    graph_->end();
  }
  // The operations were counted when they were recorded, and the first replay executes them.
  void replay() override {
    if (std::exchange(replayed_, true)) operations_.count_again();
    graph_->replay();
  }

 private:
  std::unique_ptr<DeviceGraph> graph_;
  World& world_;
  RecordedOperations operations_;
  bool recording_ = false, replayed_ = false;
};

}  // namespace yoke
