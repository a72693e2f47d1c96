#include "plugins/nanotron_compat/settings.hpp"

namespace yoke::nanotron_compat {

// nanotron always trains on the mean of the means of micro-batches. A file is followed as long as
// this is the mean over all targets as well.
Settings read_settings(const Config& config, std::string_view loss) {
  Settings settings;
  settings.zero = config.integer("optimizer.zero_stage") == 1;
  // A size out of this range is refused where a plan is made.
  const auto size = config.integer("model.ddp_bucket_cap_mb");
  if (size && *size >= 1 && *size <= 1'000'000) settings.bucket_bytes = *size << 20;
  settings.recompute = config.boolean("parallelism.recompute_layer") == true;
  settings.sequence_parallel = config.word("parallelism.tp_mode") == "REDUCE_SCATTER";
  settings.one_f_one_b = config.word("parallelism.pp_engine") == "1f1b";
  if (!loss.empty()) {
    settings.loss = compat::loss_of(loss);
  } else if (config.has_file()) {
    settings.loss = compat::Loss::kEven;
  }
  return settings;
}

}  // namespace yoke::nanotron_compat
