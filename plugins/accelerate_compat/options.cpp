#include "plugins/accelerate_compat/options.hpp"

namespace yoke::accelerate_compat {
namespace {

YokeOptionInfo info(int32_t type,
                    std::string_view key,
                    std::string_view value,
                    std::string_view choices,
                    std::string_view doc) {
  YokeOptionInfo o{};
  o.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO);
  o.key = view(key);
  o.default_value = view(value);
  o.choices = view(choices);
  o.doc = view(doc);
  o.min = 1;  // no limit
  o.max = 0;
  o.type = type;
  return o;
}

}  // namespace

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
  static const std::vector<YokeOptionInfo> infos = [] {
    std::vector<YokeOptionInfo> list = {
        info(YOKE_OPTION_FILE,
             "config_file",
             "",
             "*.yaml|*.yml",
             "a config of Accelerate, as `accelerate config` writes it"),
        info(YOKE_OPTION_VARIABLES,
             "environment",
             "ACCELERATE_*|FSDP_*|PARALLELISM_CONFIG_*",
             "",
             "variables that are read too, as Accelerate does; the file wins; \"\" = none"),
        info(YOKE_OPTION_INT,
             "bucket_cap_mb",
             "25",
             "",
             "DDP: gradients of so many MiB are reduced together"),
        info(YOKE_OPTION_BOOL,
             "find_unused_parameters",
             "false",
             "",
             "DDP: look for parameters that a loss does not depend on, in every step"),
        info(YOKE_OPTION_BOOL,
             "gradient_as_bucket_view",
             "true",
             "",
             "DDP: gradients live in the buckets that are reduced; false: beside them"),
        info(YOKE_OPTION_BOOL,
             "sync_each_batch",
             "false",
             "",
             "DDP: reduce after every micro-batch; false: after the last one of a step"),
    };
    list[2].min = 1;
    list[2].max = 1 << 20;
    return list;
  }();
  static const std::vector<const YokeOptionInfo*> pointers = [] {
    std::vector<const YokeOptionInfo*> list;
    for (const YokeOptionInfo& o : infos) list.push_back(&o);
    return list;
  }();
  return pointers;
}

}  // namespace yoke::accelerate_compat
