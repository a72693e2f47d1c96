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
                  "path of a config of Accelerate, as `accelerate config` writes it"),
      option_info(YOKE_OPTION_VARIABLES,
                  "environment",
                  "ACCELERATE_*|FSDP_*|PARALLELISM_CONFIG_*",
                  "",
                  "environment variables to read, as Accelerate does; the file has precedence; "
                  "\"\" = none"),
      option_info(YOKE_OPTION_INT,
                  "bucket_cap_mb",
                  "25",
                  "",
                  "DDP: size in MiB of the buckets in which gradients are reduced",
                  {1, 1 << 20}),
      option_info(YOKE_OPTION_BOOL,
                  "find_unused_parameters",
                  "false",
                  "",
                  "DDP: look in every step for parameters that the loss does not depend on"),
      option_info(
          YOKE_OPTION_BOOL,
          "gradient_as_bucket_view",
          "true",
          "",
          "DDP: gradients live in the buckets that are reduced; false: they are copied there"),
      option_info(YOKE_OPTION_BOOL,
                  "sync_each_batch",
                  "false",
                  "",
                  "DDP: reduce after every micro-batch; false: only after the last one of a step"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = pointers_to(infos);
  return pointers;
}

}  // namespace yoke::accelerate_compat
