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
      recompute(options.string("activation_checkpoint") == "full"),
      sequence_parallel(options.boolean("sequence_parallel")),
      loss_parallel(options.boolean("loss_parallel")),
      shard_over_cp(options.boolean("shard_over_cp")),
      exchange(options.string("cp_attention") == "ring" ? SequenceExchange::kRing
                                                        : SequenceExchange::kAllGather),
      order(options.string("cp_order") == "head_tail" ? SequenceOrder::kHeadTail
                                                      : SequenceOrder::kPlain),
      debug_ops(options.boolean("debug_ops")) {}

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
      info(YOKE_OPTION_BOOL,
           "sequence_parallel",
           "true",
           "",
           kNoLimit,
           "with tp_degree > 1: between products activations are cut along the sequence"),
      info(YOKE_OPTION_BOOL,
           "loss_parallel",
           "true",
           "",
           kNoLimit,
           "with tp_degree > 1: the loss is taken over a vocabulary that stays cut"),
      info(YOKE_OPTION_BOOL,
           "shard_over_cp",
           "true",
           "",
           kNoLimit,
           "with cp_degree > 1: parameters are sharded over dp_shards x cp_degree; false: every "
           "rank of cp has the same"),
      info(YOKE_OPTION_STRING,
           "cp_attention",
           "ring",
           "ring|all_gather",
           kNoLimit,
           "keys and values of the other ranks of cp: one neighbour's at a time (least memory), or "
           "all at once (fewest messages)"),
      info(YOKE_OPTION_STRING,
           "cp_order",
           "head_tail",
           "head_tail|plain",
           kNoLimit,
           "part of the sequence of a rank of cp: one from the front and one from the back (equal "
           "work under a causal mask), or one piece"),
      info(YOKE_OPTION_BOOL,
           "debug_ops",
           "false",
           "",
           kNoLimit,
           "log every operator on distributed tensors: placements in and out, collectives"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = [] {
    std::vector<const YokeOptionInfo*> list;
    for (const YokeOptionInfo& o : infos) list.push_back(&o);
    return list;
  }();
  return pointers;
}

}  // namespace yoke::ptd
