// Takes and gives back buffers as ShardedUnit does, from a pool without memory. Adding up the
// buffers that are in use would be simpler, but the pool also holds idle ones: at the action at
// which a step needs the most memory, half of the buffers may be idle. What is idle at the start of
// a step depends on the step before, so the list is run twice.
#include "sdk/mesh/schedule/unsharded.hpp"

#include <algorithm>
#include <optional>
#include <variant>

#include "sdk/mesh/schedule/buffer_pool.hpp"

namespace yoke::mesh {
namespace {

class Buffers {
 public:
  explicit Buffers(const StepSpec& spec)
      : spec_(spec), units_(spec.units.size()), pool_([](size_t) { return std::monostate(); }) {}

  int64_t held() const { return static_cast<int64_t>(pool_.held()); }

  void begin_step() {
    for (Unit& unit : units_) unit.shard_written = false;
  }

  void apply(const Action& a) {
    switch (a.kind) {
      case ActionKind::kUnshard:
        if (spec_.units[a.unit].fp8_bytes > 0)
          return attach(units_[a.unit].fp8, spec_.units[a.unit].fp8_bytes);
        attach(units_[a.unit].params, spec_.units[a.unit].param_bytes);
        return attach(units_[a.unit].cast, spec_.units[a.unit].cast_bytes);
      case ActionKind::kWaitUnshard:
        attach(units_[a.unit].params, spec_.units[a.unit].param_bytes);
        detach(units_[a.unit].fp8);
        return detach(units_[a.unit].cast);
      case ActionKind::kReshard:
        return detach(units_[a.unit].params);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        for (const int u : spec_.blocks[a.block])
          attach(units_[u].grads, spec_.units[u].grad_bytes);
        return;
      case ActionKind::kReduceGrad:
        if (units_[a.unit].shard_written)
          attach(units_[a.unit].partial, spec_.units[a.unit].grad_bytes / spec_.shards);
        return;
      case ActionKind::kWaitReduce:
        detach(units_[a.unit].partial);
        detach(units_[a.unit].grads);
        units_[a.unit].shard_written = true;
        return;
      default:
        return;
    }
  }

 private:
  using Pool = BufferPool<std::monostate>;
  // As in ShardedUnit.
  struct Unit {
    std::optional<Pool::Buffer> params, cast, fp8, grads, partial;
    bool shard_written = false;
  };

  void attach(std::optional<Pool::Buffer>& buffer, int64_t bytes) {
    if (!buffer && bytes > 0) buffer = pool_.take(static_cast<size_t>(bytes));
  }
  void detach(std::optional<Pool::Buffer>& buffer) {
    if (buffer) pool_.give_back(*buffer);
    buffer.reset();
  }

  const StepSpec& spec_;
  std::vector<Unit> units_;
  Pool pool_;
};

}  // namespace

std::vector<int64_t> unsharded_bytes(const StepSpec& spec, const std::vector<Action>& list) {
  const bool keeps = spec.keeps_roundings(spec.micros, spec.forward_only);
  std::vector<int64_t> bytes(list.size(), keeps ? spec.rounding_bytes : 0);
  if (spec.shards == 1) return bytes;
  Buffers buffers(spec);
  for (int step = 0; step < 2; ++step) {
    buffers.begin_step();
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t before = buffers.held();
      buffers.apply(list[i]);
      bytes[i] = std::max(before, buffers.held());
    }
  }
  return bytes;
}

}  // namespace yoke::mesh
