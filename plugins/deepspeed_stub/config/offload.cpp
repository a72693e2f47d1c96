// Reads the keys of offload_optimizer, offload_param and aio.
//
// Whether a folder exists is checked when the run starts, not here: an import of a config must not
// need the disk of the machine that will run it.
#include "plugins/deepspeed_stub/config/offload.hpp"

#include <algorithm>

#include "yoke/optimizer.h"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

const std::string kZero = "zero_optimization.";
const std::string kOptimizer = kZero + "offload_optimizer.";
const std::string kParams = kZero + "offload_param.";

class Reader {
 public:
  Reader(const DsConfig& config, int64_t stage, PlanMessages& messages)
      : config_(config), stage_(stage), messages_(messages) {}

  OffloadSettings read() {
    read_optimizer();
    read_params();
    const bool files = all_.uses_files();
    integer("aio.block_size", 1, all_.io.block_size, files, kWithoutFiles);
    integer("aio.queue_depth", 1, all_.io.queue_depth, files, kWithoutFiles);
    integer("aio.intra_op_parallelism", 1, all_.io.threads, files, kWithoutFiles);
    boolean("aio.single_submit", all_.io.single_submit, files, kWithoutFiles);
    integer(kZero + "sub_group_size", 1, all_.tile, files, kWithoutFiles);
    all_.tile = std::min(all_.tile, OffloadSettings::kMaxTile);
    return all_;
  }

 private:
  static constexpr const char* kWithoutFiles = "no effect without offload to nvme";
  static constexpr const char* kWithoutOffload = "no effect without offload";

  void read_optimizer() {
    OffloadSettings::Optimizer& o = all_.optimizer;
    o.place = place(kOptimizer, {kZero + "cpu_offload"}, stage_ >= 1);
    const bool file = o.place == Place::kFile, on = o.place != Place::kDevice;
    o.folder = folder(kOptimizer, file);
    integer(kOptimizer + "buffer_count", 1, o.buffers, file, kWithoutFiles);
    boolean(kOptimizer + "pipeline_read", o.read_ahead, file, kWithoutFiles);
    boolean(kOptimizer + "pipeline_write", o.write_behind, file, kWithoutFiles);
    boolean(kOptimizer + "pin_memory", o.pinned, on, kWithoutOffload);
    const std::string ratio = kOptimizer + "ratio";
    const auto value = config_.number(ratio);
    if (!value) return;
    if (*value < 0 || *value > 1) return refuse(ratio, "0 to 1", "it is a part of the state");
    if (on && stage_ != 3) return note(ratio, concat("no effect at ZeRO stage ", stage_));
    if (!on) return note(ratio, kWithoutOffload);
    o.ratio = *value;
  }

  void read_params() {
    OffloadSettings::Params& p = all_.params;
    p.place =
        place(kParams, {kZero + "cpu_offload_params", kZero + "cpu_offload_param"}, stage_ == 3);
    const bool file = p.place == Place::kFile;
    p.folder = folder(kParams, file);
    integer(kParams + "buffer_count", 1, p.buffers, file, kWithoutFiles);
    integer(kParams + "buffer_size", 1, p.buffer_size, file, kWithoutFiles);
    integer(kParams + "max_in_cpu", 0, p.max_in_cpu, file, kWithoutFiles);
    boolean(kParams + "pin_memory", p.pinned, p.place != Place::kDevice, kWithoutOffload);
  }

  // older: paths of keys that mean the device "cpu" if they are true.
  Place place(const std::string& section, const std::vector<std::string>& older, bool has_effect) {
    const std::string path = section + "device";
    std::string key = path;
    Place chosen = Place::kDevice;
    const std::string device = config_.string(path).value_or("none");
    if (device == "cpu") chosen = Place::kHost;
    if (device == "nvme") chosen = Place::kFile;
    if (chosen == Place::kDevice && device != "none")
      refuse(path, "\"none\", \"cpu\", \"nvme\"", "DeepSpeed has no other device");
    for (const std::string& old : older) {
      if (config_.boolean(old) != true) continue;
      key = old;
      if (config_.find(path) == nullptr) chosen = Place::kHost;
      if (chosen != Place::kHost)
        refuse(
            old, "false", concat(path, " = \"", device, "\" contradicts it; remove one of them"));
    }
    if (chosen == Place::kDevice) return chosen;
    if (!has_effect) {
      note(key, concat("no effect at ZeRO stage ", stage_));
      return Place::kDevice;
    }
    if (chosen == Place::kHost)
      note(key, "moves state from a GPU to host memory; on the CPU it is there already");
    return chosen;
  }

  std::string folder(const std::string& section, bool file) {
    const std::string path = section + "nvme_path";
    const std::string folder = config_.string(path).value_or("");
    if (!file && !folder.empty() && folder != "none") note(path, kWithoutFiles);
    if (file && (folder.empty() || folder == "none"))
      refuse(path, "a folder on a local disk", "the device \"nvme\" keeps state in files there");
    return folder;
  }

  void integer(
      const std::string& path, int64_t least, int64_t& to, bool has_effect, const char* otherwise) {
    const auto value = config_.integer(path);
    if (!value) return;
    if (*value < least) return refuse(path, concat(least, " or more"), "correct the value");
    if (!has_effect) return note(path, otherwise);
    to = *value;
  }

  void boolean(const std::string& path, bool& to, bool has_effect, const char* otherwise) {
    const auto value = config_.boolean(path);
    if (!value) return;
    if (!has_effect) return note(path, otherwise);
    to = *value;
  }

  void refuse(const std::string& path, const std::string& allowed, const std::string& hint) {
    messages_.push_back({config_.label(path), config_.shown(path), allowed, hint});
  }
  void note(const std::string& path, const std::string& text) {
    messages_.push_back({config_.label(path), config_.shown(path), "", text, true});
  }

  const DsConfig& config_;
  const int64_t stage_;
  PlanMessages& messages_;
  OffloadSettings all_;
};

}  // namespace

OffloadSettings read_offload(const DsConfig& config, int64_t stage, PlanMessages& messages) {
  return Reader(config, stage, messages).read();
}

void check_buffers(const DsConfig& config,
                   const OffloadSettings& offload,
                   const YokePlan& plan,
                   PlanMessages& messages) {
  const OffloadSettings::Optimizer& o = offload.optimizer;
  if (o.place != Place::kFile) return;
  const char* kinds[2];
  const bool masters = plan.param_dtype == YOKE_BF16 || plan.param_dtype == YOKE_F16;
  const int64_t arrays = yoke_moments(plan.optimizer, kinds) + (masters ? 1 : 0);
  const int64_t used = (1 + (o.read_ahead ? 1 : 0) + (o.write_behind ? 1 : 0)) * arrays;
  const std::string key = kOptimizer + "buffer_count";
  const std::string state =
      concat("the state is ", arrays, " arrays", masters ? ", of which one is master weights" : "");
  if (o.buffers < arrays) {
    messages.push_back({config.label(key), config.shown(key), concat(arrays, " or more"), state});
  } else if (o.buffers < used) {
    messages.push_back(
        {config.label(key),
         concat(o.buffers),
         "",
         concat(
             state, "; pipeline_read and pipeline_write have their full effect from ", used, " on"),
         true});
  }
}

}  // namespace yoke::deepspeed_stub
