// Where the state of the optimizer and the slices of parameters are kept, from a ds_config.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

enum class Place {
  kDevice,
  kHost,  // host memory; on the CPU the same as kDevice
  kFile,
};

// Settings of offload. Each member is described at its key in keys.cpp.
struct OffloadSettings {
  struct Optimizer {
    Place place = Place::kDevice;
    std::string folder;
    int64_t buffers = 4;  // arrays of at most `tile` elements
    bool read_ahead = false, write_behind = false, pinned = true;
    double ratio = 1;
  } optimizer;
  struct Params {
    Place place = Place::kDevice;
    std::string folder;
    int64_t buffers = 5;
    int64_t buffer_size = 100'000'000;   // elements
    int64_t max_in_cpu = 1'000'000'000;  // elements
    bool pinned = true;
  } params;
  struct Io {
    int64_t block_size = 1 << 20;  // bytes
    int64_t queue_depth = 8;
    int64_t threads = 1;
    bool single_submit = false;
  } io;
  int64_t tile = kMaxTile;  // elements of state in a file that are updated together

  static constexpr int64_t kMaxTile = 1 << 18;

  bool uses_files() const {
    return optimizer.place == Place::kFile || params.place == Place::kFile;
  }
};

// Returns the settings of a config. Values out of range, and a missing folder, are added to
// `messages` as refusals; keys that have no effect at the stage or with the device are added as
// notes.
OffloadSettings read_offload(const DsConfig& config, int64_t stage, PlanMessages& messages);

// Refuses a buffer_count that has no room for one array of each kind of state, and notes if it has
// none for tiles that are read ahead or written behind. plan: with its optimizer and dtypes set.
void check_buffers(const DsConfig& config,
                   const OffloadSettings& offload,
                   const YokePlan& plan,
                   PlanMessages& messages);

}  // namespace yoke::deepspeed_stub
