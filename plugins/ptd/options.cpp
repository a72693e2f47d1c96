#include "plugins/ptd/options.hpp"

namespace yoke::ptd {
namespace {

constexpr double kNoLimit[2] = {1, 0};  // min > max

YokeOptionInfo info(int32_t type,
                    std::string_view key,
                    std::string_view value,
                    std::string_view choices,
                    const double (&range)[2],
                    std::string_view doc) {
  YokeOptionInfo o{};
  o.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO);
  o.key = view(key);
  o.default_value = view(value);
  o.choices = view(choices);
  o.doc = view(doc);
  o.min = range[0];
  o.max = range[1];
  o.type = type;
  return o;
}

}  // namespace

PtdOptions::PtdOptions(const Options& options)
    : unit_bytes(options.integer("unit_bytes")),
      reshard_after_forward(options.boolean("reshard_after_forward")),
      accumulate(options.string("accumulate") == "sharded" ? Accumulate::kSharded
                                                           : Accumulate::kUnsharded),
      recompute(options.string("activation_checkpoint") == "full") {}

const std::vector<const YokeOptionInfo*>& option_infos() {
  static const YokeOptionInfo infos[] = {
      info(YOKE_OPTION_INT,
           "unit_bytes",
           "1048576",
           "",
           {1, 1e12},
           "blocks are gathered together until their parameters hold this many bytes; 1 = every "
           "block alone"),
      info(YOKE_OPTION_BOOL,
           "reshard_after_forward",
           "true",
           "",
           kNoLimit,
           "true: free whole parameters after forward, gather them again for backward; false: once "
           "per step"),
      info(YOKE_OPTION_STRING,
           "accumulate",
           "sharded",
           "sharded|unsharded",
           kNoLimit,
           "sharded: reduce every micro-batch (least memory); unsharded: once per step (least "
           "traffic)"),
      info(YOKE_OPTION_STRING,
           "activation_checkpoint",
           "none",
           "none|full",
           kNoLimit,
           "full: keep only what passes between blocks and compute each block again for its "
           "backward"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = [] {
    std::vector<const YokeOptionInfo*> list;
    for (const YokeOptionInfo& o : infos) list.push_back(&o);
    return list;
  }();
  return pointers;
}

}  // namespace yoke::ptd
