// The settings of the engine, with nanotron's defaults.
#pragma once

#include <cstdint>
#include <string_view>

#include "plugins/nanotron_compat/config/config.hpp"
#include "sdk/compat/batch_loss.hpp"

namespace yoke::nanotron_compat {

// Each member is described at its key in config/table_run.cpp.
struct Settings {
  bool zero = false;                         // ZeRO stage 1, else 0
  int64_t bucket_bytes = int64_t{25} << 20;  // bytes of parameters
  bool recompute = false;
  bool sequence_parallel = false;  // tp_mode REDUCE_SCATTER
  bool one_f_one_b = false;        // pp_engine 1f1b, else afab: all forwards, then all backwards
  compat::Loss loss = compat::Loss::kPerToken;
};

// Returns the settings of a file and a run file. loss: the option of this name, which may be empty.
Settings read_settings(const Config& config, std::string_view loss);

}  // namespace yoke::nanotron_compat
