// Tests the parity of ptd with matrices cut over tp and sequences cut over cp, alone and combined
// with dp.
#include <sstream>

#include "tests/ranks/parity_layouts.hpp"

namespace yoke::testing {
namespace {

// Returns a model with enough heads for four ranks. Its shards, and its parts over tp, end inside
// of rows.
PlainRun wide() {
  PlainRun run = base();
  run.kv_heads = 4;
  run.ffn_dim = 44;
  return run;
}
// Returns a model whose matrices can be cut in two by tp and then into three shards.
PlainRun thirds() {
  PlainRun run = base();
  run.dim = 36;
  run.heads = 6;
  run.ffn_dim = 50;
  run.vocab = 258;
  run.global_batch = 12;
  run.seq_len = 20;
  return run;
}
constexpr Problem kWide{"wide", wide}, kThirds{"thirds", thirds};

// Returns the arguments, split at spaces.
Args on(int ranks, const char* degrees) {
  Args args{"--virtual", std::to_string(ranks), "ptd.unit_bytes=1"};
  std::istringstream words(degrees);
  for (std::string word; words >> word;) args.push_back(word);
  return args;
}

// The expected multiples of the residual stream, for two layers:
//
//   20  with sequence parallelism: each layer has two gathers and two scatters in the forward and
//       as many in the backward (2 * 8); there is one of each after the embedding and before the
//       head (4)
//   10  without sequence parallelism: each pair of a gather and a scatter is one all_reduce
//   +8  with activation checkpointing, which repeats the forward of the layers; +4 without sequence
//       parallelism
//   +8  without loss parallelism: the logits, which are eight times the stream, are gathered
INSTANTIATE_TEST_SUITE_P(
    TensorParallel,
    Parity,
    ::testing::Values(
        Layout{"tp_2", "ptd", on(2, "tp_degree=2"), kBase, {"tp", 0, 0, 0, 20}},
        Layout{
            "tp_2_processes", "ptd", {"--nproc", "2", "tp_degree=2"}, kBase, {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_gloo",
               "ptd",
               {"--nproc", "2", "tp_degree=2", "comm.transport=gloo"},
               kBase,
               {"tp", 0, 0, 0, 20}},
        Layout{"tp_4", "ptd", on(4, "tp_degree=4"), kWide, {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_pieces_processes",
               "ptd",
               {"--nproc", "2", "tp_degree=2", "ptd.tp_pieces=3"},
               kBase,
               {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_pieces_gloo",
               "ptd",
               {"--nproc", "2", "tp_degree=2", "ptd.tp_pieces=3", "comm.transport=gloo"},
               kBase,
               {"tp", 0, 0, 0, 20}},
        Layout{"tp_4_pieces_processes",
               "ptd",
               {"--nproc", "4", "tp_degree=4", "ptd.tp_pieces=2"},
               kWide,
               {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_no_sequence_parallel",
               "ptd",
               on(2, "tp_degree=2 ptd.sequence_parallel=false"),
               kBase,
               {"tp", 0, 0, 0, 10}},
        Layout{"tp_2_no_loss_parallel",
               "ptd",
               on(2, "tp_degree=2 ptd.loss_parallel=false"),
               kBase,
               {"tp", 0, 0, 0, 28}},
        Layout{"tp_4_neither",
               "ptd",
               on(4, "tp_degree=4 ptd.sequence_parallel=false ptd.loss_parallel=false"),
               kWide,
               {"tp", 0, 0, 0, 18}},
        Layout{"tp_2_tied", "ptd", on(2, "tp_degree=2"), kTied, {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_checkpointing",
               "ptd",
               on(2, "tp_degree=2 ptd.activation_checkpoint=full"),
               kBase,
               {"tp", 0, 0, 0, 28}},
        Layout{"tp_2_accumulation_4",
               "ptd",
               on(2, "tp_degree=2 train.micro_batch=2"),
               kBase,
               {"tp", 0, 0, 0, 20}},
        Layout{"tp_2_sgd", "ptd", on(2, "tp_degree=2"), kSgd, {"tp", 0, 0, 0, 20}},
        Layout{"ddp_2_tp_2", "ptd", on(4, "dp_degree=2 tp_degree=2"), kBase, {"tp", 0, 0, 0, 10}},
        Layout{"fsdp_2_tp_2", "ptd", on(4, "dp_shards=2 tp_degree=2"), kBase, {"tp", 0, 0, 0, 10}},
        Layout{"fsdp_2_tp_2_processes",
               "ptd",
               {"--nproc", "4", "dp_shards=2", "tp_degree=2", "train.micro_batch=1"},
               kTied,
               {"tp", 0, 0, 0, 10}},
        Layout{"fsdp_3_tp_2_inside_rows",
               "ptd",
               on(6, "dp_shards=3 tp_degree=2 ptd.activation_checkpoint=full"),
               kThirds,
               {"tp", 0, 0, 0, 28.0 / 3}},
        Layout{"fsdp_2_tp_2_no_reshard_accumulation_unsharded",
               "ptd",
               on(4,
                  "dp_shards=2 tp_degree=2 train.micro_batch=1 ptd.accumulate=unsharded "
                  "ptd.reshard_after_forward=false"),
               kMatrices,
               {"tp", 0, 0, 0, 10}},
        Layout{"fsdp_2_tp_2_pieces_checkpointing",
               "ptd",
               on(4, "dp_shards=2 tp_degree=2 ptd.tp_pieces=4 ptd.activation_checkpoint=full"),
               kTied,
               {"tp", 0, 0, 0, 14}},
        Layout{"hsdp_2_2_tp_2",
               "ptd",
               on(8, "dp_degree=2 dp_shards=2 tp_degree=2"),
               kTied,
               {"tp", 0, 0, 0, 5}}),
    layout_name);

// The keys and values of a layer are as large as the residual stream here. On a ring of n ranks
// each rank passes (n - 1) / n of them to the next one in the forward, again in the backward, and
// the same amount of their gradients. For two layers that is 3 with two ranks and 4.5 with four.
// With all_gather all keys and values count, so it is 6. Parameters are sharded over cp as by FSDP,
// or their gradients are summed.
INSTANTIATE_TEST_SUITE_P(
    ContextParallel,
    Parity,
    ::testing::Values(
        Layout{"cp_2_ring",
               "ptd",
               on(2, "cp_degree=2 ptd.cp_attention=ring"),
               kBase,
               {"cp", 3, 3, 1, 3}},
        Layout{"cp_2_processes", "ptd", {"--nproc", "2", "cp_degree=2"}, kBase, {"cp", 2, 3, 0, 3}},
        Layout{"cp_2_all_gather",
               "ptd",
               on(2, "cp_degree=2 ptd.cp_attention=all_gather"),
               kBase,
               {"cp", 3, 3, 1, 6}},
        Layout{"cp_2_ring_plain_order",
               "ptd",
               on(2, "cp_degree=2 ptd.cp_attention=ring ptd.cp_order=plain"),
               kBase,
               {"cp", 3, 3, 1, 3}},
        Layout{"cp_4_all_gather_plain_order",
               "ptd",
               on(4, "cp_degree=4 ptd.cp_attention=all_gather ptd.cp_order=plain"),
               kBase,
               {"cp", 3, 3, 1, 6}},
        Layout{"cp_4_ring_tied", "ptd", on(4, "cp_degree=4"), kTied, {"cp", 2, 3, 0, 4.5}},
        Layout{"cp_2_parameters_replicated",
               "ptd",
               on(2, "cp_degree=2 ptd.shard_over_cp=false"),
               kBase,
               {"cp", 1, 1, 0, 3}},
        Layout{"cp_2_checkpointing_accumulation",
               "ptd",
               on(2, "cp_degree=2 ptd.activation_checkpoint=full train.micro_batch=2"),
               kBase,
               {"cp", 8, 12, 0, 4}},
        Layout{"ddp_2_cp_2", "ptd", on(4, "dp_degree=2 cp_degree=2"), kBase, {"cp", 3, 3, 1, 1.5}},
        Layout{"fsdp_2_cp_2", "ptd", on(4, "dp_shards=2 cp_degree=2"), kBase, {"cp", 0, 0, 0, 1.5}},
        Layout{"fsdp_2_cp_2_replicated_over_cp",
               "ptd",
               on(4, "dp_shards=2 cp_degree=2 ptd.shard_over_cp=false train.micro_batch=2"),
               kTied,
               {"cp", 0.5, 0.5, 0, 1.5}}),
    layout_name);

INSTANTIATE_TEST_SUITE_P(
    TensorAndContextParallel,
    Parity,
    ::testing::Values(
        Layout{"cp_2_tp_2", "ptd", on(4, "cp_degree=2 tp_degree=2"), kBase, {"tp", 0, 0, 0, 10}},
        Layout{"cp_2_tp_2_processes",
               "ptd",
               {"--nproc", "4", "cp_degree=2", "tp_degree=2", "ptd.cp_attention=all_gather"},
               kTied,
               {"tp", 0, 0, 0, 10}},
        Layout{"cp_2_tp_2_no_sequence_parallel_checkpointing",
               "ptd",
               on(4,
                  "cp_degree=2 tp_degree=2 ptd.sequence_parallel=false "
                  "ptd.activation_checkpoint=full ptd.cp_order=plain"),
               kBase,
               {"tp", 0, 0, 0, 7}},
        Layout{"fsdp_2_cp_2_tp_2",
               "ptd",
               on(8, "dp_shards=2 cp_degree=2 tp_degree=2"),
               kBase,
               {"tp", 0, 0, 0, 5}},
        Layout{"ddp_2_cp_2_tp_2_tied_accumulation",
               "ptd",
               on(8, "dp_degree=2 cp_degree=2 tp_degree=2 train.micro_batch=2"),
               kTied,
               {"tp", 0, 0, 0, 5}}),
    layout_name);

}  // namespace
}  // namespace yoke::testing
