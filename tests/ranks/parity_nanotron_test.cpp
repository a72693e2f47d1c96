// Tests the parity of nanotron_compat, and the bytes that it moves in a step: one reduction of all
// gradients, and with ZeRO one gather of all parameters.
#include "tests/ranks/parity_layouts.hpp"

namespace yoke::testing {
namespace {

// ZeRO stage 1.
Args zero(const Args& args) {
  Args all{"nanotron_compat.zero_stage=1"};
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    NanotronCompat,
    Parity,
    ::testing::Values(
        Layout{"single", "nanotron_compat", {}},
        Layout{"single_zero_accumulation_4", "nanotron_compat", zero({"train.micro_batch=2"})},
        Layout{"replicas_2", "nanotron_compat", {"--virtual", "2"}, kTied, {"dp_replicate", 1, 1}},
        Layout{"replicas_2_processes_accumulation_2",
               "nanotron_compat",
               {"--nproc", "2", "train.micro_batch=2"},
               kMatrices,
               {"dp_replicate", 1, 1}},
        Layout{"replicas_4_accumulation_2",
               "nanotron_compat",
               {"--virtual", "4", "train.micro_batch=1"},
               kBase,
               {"dp_replicate", 1, 1}},
        Layout{"zero_2_processes",
               "nanotron_compat",
               zero({"--nproc", "2"}),
               kBase,
               {"dp_shard", 2, 2}},
        // Slices of different sizes are padded, which adds to the bytes.
        Layout{"zero_3_uneven_tied",
               "nanotron_compat",
               zero({"--virtual", "3"}),
               kDeepTied,
               {"dp_shard", 2, 2.1}},
        Layout{"zero_4_accumulation_2",
               "nanotron_compat",
               zero({"--virtual", "4", "train.micro_batch=1"}),
               kBase,
               {"dp_shard", 2, 2}},
        Layout{"zero_4_sgd", "nanotron_compat", zero({"--virtual", "4"}), kSgd, {"dp_shard", 2, 2}},
        Layout{
            "recomputed",
            "nanotron_compat",
            zero({"--virtual", "2", "model.blocks=half", "nanotron_compat.recompute_layer=true"}),
            kBase,
            {"dp_shard", 2, 2}}),
    layout_name);

// Each form of model parallelism alone, and together with the others.
INSTANTIATE_TEST_SUITE_P(
    NanotronCompatDivided,
    Parity,
    ::testing::Values(
        Layout{"tp_2_all_reduce",
               "nanotron_compat",
               {"--virtual", "2", "tp_degree=2"},
               kTied,
               kAnyTraffic},
        Layout{"tp_2_reduce_scatter_processes",
               "nanotron_compat",
               {"--nproc", "2", "tp_degree=2", "nanotron_compat.tp_mode=REDUCE_SCATTER"},
               kBase,
               kAnyTraffic},
        Layout{"cp_2_zero_2",
               "nanotron_compat",
               zero({"--virtual", "4", "cp_degree=2"}),
               kBase,
               kAnyTraffic},
        // All micro-batches have as many targets, so the mean of means is the mean.
        Layout{"cp_2_replicas_2_mean_of_means",
               "nanotron_compat",
               {"--virtual", "4", "cp_degree=2", "nanotron_compat.loss=mean_of_means"},
               kBase,
               kAnyTraffic},
        Layout{"pp_2_afab_tied",
               "nanotron_compat",
               {"--virtual", "2", "pp_degree=2", "train.micro_batch=1"},
               kTied,
               kAnyTraffic},
        Layout{"pp_2_1f1b_zero_2",
               "nanotron_compat",
               zero({"--virtual",
                     "4",
                     "pp_degree=2",
                     "train.micro_batch=1",
                     "nanotron_compat.pp_engine=1f1b"}),
               kTied,
               kAnyTraffic},
        Layout{"pp_2_tp_2_cp_2_recomputed",
               "nanotron_compat",
               {"--virtual",
                "8",
                "pp_degree=2",
                "cp_degree=2",
                "tp_degree=2",
                "train.micro_batch=1",
                "nanotron_compat.recompute_layer=true",
                "nanotron_compat.tp_mode=REDUCE_SCATTER"},
               kMatrices,
               kAnyTraffic}),
    layout_name);

}  // namespace
}  // namespace yoke::testing
