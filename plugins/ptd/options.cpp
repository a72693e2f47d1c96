#include "plugins/ptd/options.hpp"

#include <algorithm>
#include <string_view>

namespace yoke::ptd {

namespace {

PipelineKind pipeline_kind(std::string_view name) {
  const auto& infos = pipeline_infos();
  return std::find_if(
             infos.begin(), infos.end(), [&](const PipelineInfo& i) { return i.name == name; })
      ->kind;
}

Recompute recompute_of(std::string_view name) {
  return name == "full"    ? Recompute::kBlocks
         : name == "stage" ? Recompute::kStages
                           : Recompute::kNone;
}

}  // namespace

PtdOptions::PtdOptions(const Options& options, int32_t pp_degree)
    : unit_bytes(options.integer("unit_bytes")),
      reshard_after_forward(options.boolean("reshard_after_forward") &&
                            (pp_degree <= 1 || options.given("reshard_after_forward"))),
      accumulate(options.string("accumulate") == "sharded" &&
                         (pp_degree <= 1 || options.given("accumulate"))
                     ? Accumulate::kSharded
                     : Accumulate::kUnsharded),
      recompute(recompute_of(options.string("activation_checkpoint"))),
      fp8_gather(options.boolean("fp8_gather")),
      shard_over_cp(options.boolean("shard_over_cp")),
      cuda_graph(options.boolean("cuda_graph")),
      exact_sums(options.boolean("exact_sums")),
      pp_schedule(pipeline_kind(options.string("pp_schedule"))),
      pp_chunks(static_cast<int>(options.integer("pp_chunks"))),
      pp_cut(options.string("pp_cut")),
      pp_whole(static_cast<int>(options.integer("pp_whole"))),
      pp_schedule_file(options.string("pp_schedule_file")),
      pp_orders(options.content("pp_schedule_file")),
      mesh{.sequence_parallel = options.boolean("sequence_parallel"),
           .loss_parallel = options.boolean("loss_parallel"),
           .exchange = options.string("cp_attention") == "ring" ? SequenceExchange::kRing
                                                                : SequenceExchange::kAllGather,
           .order = options.string("cp_order") == "head_tail" ? SequenceOrder::kHeadTail
                                                              : SequenceOrder::kPlain,
           .log_ops = options.boolean("debug_ops"),
           .tp_pieces = static_cast<int>(options.integer("tp_pieces"))} {}

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
          "none|full|stage",
          "full: keep only what passes between blocks, and compute each block again for its "
          "backward; stage, with pp_degree > 1: keep only the input of each stage, and compute the "
          "stage again"),
      option_info(
          YOKE_OPTION_BOOL,
          "fp8_gather",
          "false",
          "",
          "with precision.product = \"fp8\" and the recipe tensorwise: parameters that only fp8 "
          "products use are gathered as fp8 numbers, 1 byte for each element"),
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
      option_info(YOKE_OPTION_INT,
                  "tp_pieces",
                  "1",
                  "",
                  "with tp_degree > 1 and sequence_parallel: number of pieces in which activations "
                  "are gathered and reduced over tp, each while the product with another piece is "
                  "computed; 1 = no overlap",
                  {1, 1024}),
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
          YOKE_OPTION_STRING,
          "pp_schedule",
          "1f1b",
          "gpipe|1f1b|interleaved|looped_bfs|zb_h1|zb_interleaved|zb_v|v_half|v_min|dual_pipe_v",
          "with pp_degree > 1: the order in which ranks compute their stages"),
      option_info(YOKE_OPTION_INT,
                  "pp_chunks",
                  "0",
                  "",
                  "with pp_degree > 1: number of stages on each rank; 0 = 1 for gpipe, 1f1b and "
                  "zb_h1, else 2",
                  {0, 1e6}),
      option_info(
          YOKE_OPTION_STRING,
          "pp_cut",
          "auto",
          "",
          "with pp_degree > 1: number of blocks of each stage, such as \"5,4,4,3\"; auto: the most "
          "loaded rank gets as little work as possible"),
      option_info(
          YOKE_OPTION_INT,
          "pp_whole",
          "0",
          "",
          "with pp_degree > 1: maximum number of pipeline stages of a rank whose parameters "
          "and gradients are unsharded at the same time; 0 = no limit",
          {0, 1e6}),
      option_info(YOKE_OPTION_FILE,
                  "pp_schedule_file",
                  "",
                  "",
                  "with pp_degree > 1: file with the order of each rank, in PyTorch's CSV format, "
                  "instead of "
                  "ptd.pp_schedule"),
      option_info(YOKE_OPTION_FILE,
                  "torchtitan_config",
                  "",
                  "*.toml",
                  "job file of torchtitan that describes the run"),
      option_info(
          YOKE_OPTION_BOOL,
          "exact_sums",
          "false",
          "",
          "true: results do not depend on pp_degree, the schedule or the cut, to the last bit"),
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
