#include "plugins/accelerate_compat/config/options.hpp"

namespace yoke::accelerate_compat {

DdpOptions::DdpOptions(const Options& options)
    : bucket_cap_mb(options.integer("bucket_cap_mb")),
      find_unused_parameters(options.boolean("find_unused_parameters")),
      gradient_as_bucket_view(options.boolean("gradient_as_bucket_view")),
      sync_each_batch(options.boolean("sync_each_batch")) {}

const std::vector<const char*>& ddp_option_keys() {
  static const std::vector<const char*> keys = {
      "bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "sync_each_batch"};
  return keys;
}

const std::vector<const YokeOptionInfo*>& option_infos() {
  static const YokeOptionInfo infos[] = {
      option_info(YOKE_OPTION_FILE,
                  "config_file",
                  "",
                  "*.yaml|*.yml",
                  "a config of Accelerate, as `accelerate config` writes it"),
      option_info(YOKE_OPTION_VARIABLES,
                  "environment",
                  "ACCELERATE_*|FSDP_*|PARALLELISM_CONFIG_*",
                  "",
                  "variables that are read too, as Accelerate does; the file wins; \"\" = none"),
      option_info(YOKE_OPTION_INT,
                  "bucket_cap_mb",
                  "25",
                  "",
                  "DDP: gradients of so many MiB are reduced together",
                  {1, 1 << 20}),
      option_info(YOKE_OPTION_BOOL,
                  "find_unused_parameters",
                  "false",
                  "",
                  "DDP: look for parameters that a loss does not depend on, in every step"),
      option_info(YOKE_OPTION_BOOL,
                  "gradient_as_bucket_view",
                  "true",
                  "",
                  "DDP: gradients live in the buckets that are reduced; false: beside them"),
      option_info(YOKE_OPTION_BOOL,
                  "sync_each_batch",
                  "false",
                  "",
                  "DDP: reduce after every micro-batch; false: after the last one of a step"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = pointers_to(infos);
  return pointers;
}

}  // namespace yoke::accelerate_compat
