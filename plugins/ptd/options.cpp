#include "plugins/ptd/options.hpp"

namespace yoke::ptd {

PtdOptions::PtdOptions(const Options& options)
    : unit_bytes(options.integer("unit_bytes")),
      reshard_after_forward(options.boolean("reshard_after_forward")),
      accumulate(options.string("accumulate") == "sharded" ? Accumulate::kSharded
                                                           : Accumulate::kUnsharded),
      recompute(options.string("activation_checkpoint") == "full"),
      shard_over_cp(options.boolean("shard_over_cp")),
      cuda_graph(options.boolean("cuda_graph")),
      mesh{.sequence_parallel = options.boolean("sequence_parallel"),
           .loss_parallel = options.boolean("loss_parallel"),
           .exchange = options.string("cp_attention") == "ring" ? SequenceExchange::kRing
                                                                : SequenceExchange::kAllGather,
           .order = options.string("cp_order") == "head_tail" ? SequenceOrder::kHeadTail
                                                              : SequenceOrder::kPlain,
           .log_ops = options.boolean("debug_ops")} {}

const std::vector<const YokeOptionInfo*>& option_infos() {
  static const YokeOptionInfo infos[] = {
      option_info(
          YOKE_OPTION_INT,
          "unit_bytes",
          "1048576",
          "",
          "consecutive blocks are gathered together until their parameters hold this many bytes; "
          "1 = every block alone",
          {1, 1e12}),
      option_info(
          YOKE_OPTION_BOOL,
          "reshard_after_forward",
          "true",
          "",
          "true: free whole parameters after forward and gather them again for backward; false: "
          "gather them once per step"),
      option_info(
          YOKE_OPTION_STRING,
          "accumulate",
          "sharded",
          "sharded|unsharded",
          "sharded: reduce every micro-batch (least memory); unsharded: once per step (least "
          "traffic)"),
      option_info(
          YOKE_OPTION_STRING,
          "activation_checkpoint",
          "none",
          "none|full",
          "full: keep only what passes between blocks, and compute each block again for its "
          "backward"),
      option_info(
          YOKE_OPTION_BOOL,
          "sequence_parallel",
          "true",
          "",
          "with tp_degree > 1: between matrix products, activations are cut along the sequence"),
      option_info(
          YOKE_OPTION_BOOL,
          "loss_parallel",
          "true",
          "",
          "with tp_degree > 1: the loss is computed on logits that stay cut along the vocabulary"),
      option_info(
          YOKE_OPTION_BOOL,
          "shard_over_cp",
          "true",
          "",
          "with cp_degree > 1: parameters are sharded over dp_shards x cp_degree; false: all "
          "ranks of cp have the same shard"),
      option_info(
          YOKE_OPTION_STRING,
          "cp_attention",
          "ring",
          "ring|all_gather",
          "how attention gets the keys and values of the other ranks of cp: one neighbour's at a "
          "time (least memory), or all at once (fewest messages)"),
      option_info(
          YOKE_OPTION_STRING,
          "cp_order",
          "head_tail",
          "head_tail|plain",
          "which part of the sequence a rank of cp has: one piece from the front and one from the "
          "back (equal work under a causal mask), or a single piece"),
      option_info(YOKE_OPTION_BOOL,
                  "debug_ops",
                  "false",
                  "",
                  "log every operator on distributed tensors: placements in and out, collectives"),
      option_info(
          YOKE_OPTION_BOOL,
          "cuda_graph",
          "false",
          "",
          "with device = cuda: record a whole step as a graph and repeat it, so that the CPU no "
          "longer starts each kernel"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = pointers_to(infos);
  return pointers;
}

}  // namespace yoke::ptd
