// Tests the parity of megatron_compat, and the bytes that it moves in a step: one reduction of all
// gradients, and with the distributed optimizer one gather of all parameters.
#include "tests/ranks/parity_layouts.hpp"

namespace yoke::testing {
namespace {

const Args kOverlap = {"megatron_compat.overlap_grad_reduce=true",
                       "megatron_compat.ddp_bucket_size=4000"};

Args with(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}
// The distributed optimizer, with overlap of both directions.
Args distributed(const Args& more) {
  return with(with({"megatron_compat.use_distributed_optimizer=true",
                    "megatron_compat.overlap_param_gather=true"},
                   kOverlap),
              more);
}

INSTANTIATE_TEST_SUITE_P(
    MegatronCompat,
    Parity,
    ::testing::Values(
        Layout{"single", "megatron_compat", {}},
        Layout{"replicas_2", "megatron_compat", {"--virtual", "2"}, kTied, {"dp_replicate", 1, 1}},
        Layout{"replicas_2_processes_overlap",
               "megatron_compat",
               with(kOverlap, {"--nproc", "2"}),
               kBase,
               {"dp_replicate", 1, 1}},
        // Padding adds to the bytes.
        Layout{"shards_2_processes",
               "megatron_compat",
               distributed({"--nproc", "2"}),
               kBase,
               {"dp_shard", 2, 2.1, 0, 0, true}},
        Layout{"shards_2_without_overlap",
               "megatron_compat",
               {"--virtual", "2", "megatron_compat.use_distributed_optimizer=true"},
               kMatrices,
               {"dp_shard", 2, 2.1}},
        Layout{"shards_3_uneven_tied",
               "megatron_compat",
               distributed({"--virtual", "3"}),
               kDeepTied,
               {"dp_shard", 2, 2.4, 0, 0, true}},
        Layout{"shards_4_accumulation_2",
               "megatron_compat",
               distributed({"--virtual", "4", "train.micro_batch=1"}),
               kBase,
               {"dp_shard", 2, 2.1, 0, 0, true}},
        Layout{"instances_2_of_2_shards_sgd",
               "megatron_compat",
               distributed(
                   {"--virtual", "4", "megatron_compat.num_distributed_optimizer_instances=2"}),
               kSgd,
               {"dp_replicate", 0.5, 0.6, 0, 0, true}},
        Layout{"recomputed",
               "megatron_compat",
               distributed({"--virtual",
                            "2",
                            "model.blocks=half",
                            "megatron_compat.recompute_granularity=full",
                            "megatron_compat.recompute_method=uniform",
                            "megatron_compat.recompute_num_layers=1"}),
               kBase,
               {"dp_shard", 2, 2.1, 0, 0, true}}),
    layout_name);

// FSDP, which ptd runs. Parameters are gathered for the forward and for the backward, unless they
// are kept.
const Args kFsdp = {"megatron_compat.use_torch_fsdp2=true", "ptd.unit_bytes=1"};

INSTANTIATE_TEST_SUITE_P(
    MegatronCompatFsdp,
    Parity,
    ::testing::Values(
        Layout{"shards_2_processes",
               "megatron_compat",
               with({"--nproc", "2"}, kFsdp),
               kBase,
               {"dp_shard", 3, 3, 1}},
        Layout{"shards_2_kept",
               "megatron_compat",
               with({"--virtual", "2", "megatron_compat.torch_fsdp2_no_reshard_after_forward=true"},
                    kFsdp),
               kBase,
               {"dp_shard", 2, 2}},
        Layout{"instances_2_of_2_shards",
               "megatron_compat",
               {"--virtual",
                "4",
                "ptd.unit_bytes=1",
                "megatron_compat.use_megatron_fsdp=true",
                "megatron_compat.data_parallel_sharding_strategy=optim_grads_params",
                "megatron_compat.num_distributed_optimizer_instances=2"},
               kBase,
               {"dp_replicate", 0.5, 0.6}},
        Layout{"shards_2_tp_2_recomputed",
               "megatron_compat",
               with({"--virtual",
                     "4",
                     "tp_degree=2",
                     "megatron_compat.recompute_granularity=full",
                     "megatron_compat.recompute_method=uniform",
                     "megatron_compat.recompute_num_layers=1"},
                    kFsdp),
               kBase,
               kAnyTraffic},
        Layout{"shards_2_of_the_optimizer",
               "megatron_compat",
               {"--virtual",
                "2",
                "megatron_compat.use_megatron_fsdp=true",
                "megatron_compat.data_parallel_sharding_strategy=optim"},
               kBase,
               {"dp_shard", 2, 2.1}}),
    layout_name);

// Each form of model parallelism alone, and together with the others and the engine's own.
const Args kStages = {"pp_degree=2", "train.micro_batch=1"};
const Args kSequence = {"tp_degree=2", "megatron_compat.sequence_parallel=true"};
const Args kTensors = {"tp_degree=2"};

INSTANTIATE_TEST_SUITE_P(
    MegatronCompatDivided,
    Parity,
    ::testing::Values(
        Layout{"tp_2", "megatron_compat", with({"--virtual", "2"}, kTensors), kTied, kAnyTraffic},
        Layout{"tp_2_sp_processes",
               "megatron_compat",
               with({"--nproc", "2"}, kSequence),
               kBase,
               kAnyTraffic},
        Layout{"cp_2", "megatron_compat", {"--virtual", "2", "cp_degree=2"}, kBase, kAnyTraffic},
        Layout{"cp_2_gathered_shards_2",
               "megatron_compat",
               distributed(
                   {"--virtual", "4", "cp_degree=2", "megatron_compat.cp_comm_type=all_gather"}),
               kBase,
               kAnyTraffic},
        // All micro-batches have as many targets, so the mean of means is the mean.
        Layout{"cp_2_replicas_2_mean_of_means",
               "megatron_compat",
               {"--virtual",
                "4",
                "cp_degree=2",
                "megatron_compat.loss=mean_of_means",
                "megatron_compat.ddp_average_in_collective=true"},
               kBase,
               kAnyTraffic},
        Layout{"pp_2_tied_processes",
               "megatron_compat",
               with({"--nproc", "2"}, kStages),
               kTied,
               kAnyTraffic},
        Layout{"pp_2_shards_2_tied",
               "megatron_compat",
               distributed(with({"--virtual", "4"}, kStages)),
               kTied,
               kAnyTraffic},
        Layout{"pp_2_interleaved_shards_2",
               "megatron_compat",
               distributed(with(
                   {"--virtual", "4", "megatron_compat.num_virtual_stages_per_pipeline_rank=2"},
                   kStages)),
               kFourLayers,
               kAnyTraffic},
        Layout{"pp_2_uneven_replicas_2_sgd",
               "megatron_compat",
               with({"--virtual", "4", "megatron_compat.pipeline_model_parallel_layout=E|ttL"},
                    kStages),
               kSgd,
               kAnyTraffic},
        Layout{"pp_2_recomputed",
               "megatron_compat",
               with({"--virtual",
                     "2",
                     "model.blocks=half",
                     "megatron_compat.recompute_granularity=full",
                     "megatron_compat.recompute_method=block",
                     "megatron_compat.recompute_num_layers=1"},
                    kStages),
               kBase,
               kAnyTraffic},
        Layout{"pp_2_tp_2_sp_shards_2",
               "megatron_compat",
               distributed(with(with({"--virtual", "8"}, kSequence), kStages)),
               kTied,
               kAnyTraffic},
        Layout{"pp_2_cp_2_tp_2_sp",
               "megatron_compat",
               with(with({"--virtual", "8", "cp_degree=2"}, kSequence), kStages),
               kMatrices,
               kAnyTraffic}),
    layout_name);

}  // namespace
}  // namespace yoke::testing
