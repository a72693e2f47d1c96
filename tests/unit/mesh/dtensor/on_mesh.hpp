// Runs test bodies on every rank of a mesh; the ranks are threads.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "sdk/mesh/dtensor/dtensor.hpp"
#include "tests/support/virtual_ranks.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::mesh::testing {

// The axes of the world, slowest first, with the trainer's names.
struct MeshShape {
  int dp_shard = 1, cp = 1, tp = 1;
  int world() const { return dp_shard * cp * tp; }
};

inline Comm comm_of(World& world, uint32_t axes, const char* purpose) {
  Communicator& comm = world.comm(axes, purpose);
  if (comm.size() == 1) return {};
  return {comm.process_group()->getBackend(at::kCPU), comm.size(), comm.rank()};
}

// Makes a mesh of the axes cp and tp. `change` may modify the axes.
using AxisSetting = std::function<void(Mesh::Axis& cp, Mesh::Axis& tp)>;
inline std::unique_ptr<Mesh> make_mesh(World& world, const AxisSetting& change = {}) {
  std::vector<Mesh::Axis> axes(2);
  axes[0].name = "cp";
  axes[0].comm = comm_of(world, YOKE_AXIS_BIT(YOKE_CP), "dtensor");
  axes[1].name = "tp";
  axes[1].comm = comm_of(world, YOKE_AXIS_BIT(YOKE_TP), "dtensor");
  if (change) change(axes[0], axes[1]);
  return std::make_unique<Mesh>(std::move(axes));
}

// Runs body on every rank of a world of that shape. A failure on any rank fails the test.
inline void on_world(const MeshShape& shape, const std::function<void(World&)>& body) {
  CommOptions options;
  options.check = CommCheck::kFull;
  test::orderly_virtual_ranks(shape.world(), options, [&](World& world) {
    world.set_mesh(yoke::Mesh({1, 1, shape.dp_shard, shape.cp, shape.tp}));
    body(world);
  });
}

inline void on_mesh(const MeshShape& shape,
                    const std::function<void(Mesh&)>& body,
                    const AxisSetting& change = {}) {
  on_world(shape, [&](World& world) { body(*make_mesh(world, change)); });
}

// Returns the same pseudo-random numbers on every rank and thread, independent of other generators.
inline at::Tensor numbers(at::IntArrayRef sizes, int64_t seed, at::ScalarType type = at::kDouble) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  const at::Tensor index = at::arange(n, at::kDouble) + static_cast<double>(seed) * 1000.0;
  return (index * 12.9898).sin().mul(43758.5453).frac().view(sizes).to(type);
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const double d = (a - b).abs().max().item<double>();
  return std::isnan(d) ? INFINITY : d;
}

}  // namespace yoke::mesh::testing
