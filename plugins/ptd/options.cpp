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
          "blocks are gathered together until their parameters hold this many bytes; 1 = every "
          "block alone",
          {1, 1e12}),
      option_info(
          YOKE_OPTION_BOOL,
          "reshard_after_forward",
          "true",
          "",
          "true: free whole parameters after forward, gather them again for backward; false: once "
          "per step"),
      option_info(
          YOKE_OPTION_STRING,
          "accumulate",
          "sharded",
          "sharded|unsharded",
          "sharded: reduce every micro-batch (least memory); unsharded: once per step (least "
          "traffic)"),
      option_info(YOKE_OPTION_STRING,
                  "activation_checkpoint",
                  "none",
                  "none|full",
                  "full: keep only what passes between blocks and compute each block again for its "
                  "backward"),
      option_info(YOKE_OPTION_BOOL,
                  "sequence_parallel",
                  "true",
                  "",
                  "with tp_degree > 1: between products activations are cut along the sequence"),
      option_info(YOKE_OPTION_BOOL,
                  "loss_parallel",
                  "true",
                  "",
                  "with tp_degree > 1: the loss is taken over a vocabulary that stays cut"),
      option_info(
          YOKE_OPTION_BOOL,
          "shard_over_cp",
          "true",
          "",
          "with cp_degree > 1: parameters are sharded over dp_shards x cp_degree; false: every "
          "rank of cp has the same"),
      option_info(
          YOKE_OPTION_STRING,
          "cp_attention",
          "ring",
          "ring|all_gather",
          "keys and values of the other ranks of cp: one neighbour's at a time (least memory), or "
          "all at once (fewest messages)"),
      option_info(
          YOKE_OPTION_STRING,
          "cp_order",
          "head_tail",
          "head_tail|plain",
          "part of the sequence of a rank of cp: one from the front and one from the back (equal "
          "work under a causal mask), or one piece"),
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
          "with device = cuda: record a whole step once and repeat it, which takes the time of "
          "starting its kernels off the CPU"),
  };
  static const std::vector<const YokeOptionInfo*> pointers = pointers_to(infos);
  return pointers;
}

}  // namespace yoke::ptd
