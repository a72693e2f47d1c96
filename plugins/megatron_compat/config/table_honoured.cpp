// The arguments that the engine follows. A run file can set each of them in [megatron_compat] as
// well.
#include "plugins/megatron_compat/config/arguments.hpp"

namespace yoke::megatron_compat {
namespace {

using enum Handling;
using enum Form;

// clang-format off
constexpr Argument kRows[] = {
    {"--use-distributed-optimizer", kHonoured, kSwitch, "", "", "cuts every bucket into one shard for each data rank; a rank updates its shards and keeps moments and fp32 copies of them only. The data ranks become dp_shards; without it, dp_degree"},
    {"--num-distributed-optimizer-instances", kHonoured, kInt, "1", "", "number of groups of ranks that each hold all shards; becomes dp_degree, and dp_shards is the number of data ranks divided by it; also with --use-megatron-fsdp"},
    {"--overlap-grad-reduce", kHonoured, kSwitch, "", "", "reduces a bucket as soon as its last gradient is complete, while the backward continues; without it there is one bucket, which is reduced after the backward"},
    {"--overlap-param-gather", kHonoured, kSwitch, "", "", "gathers the parameters of a bucket before the first block that reads them in the next forward; without it, after the update"},
    {"--ddp-bucket-size", kHonoured, kInt, "", "", "a bucket is full with this many elements; the default is the larger of 40,000,000 and 1,000,000 for each data rank"},
    {"--ddp-num-buckets", kHonoured, kInt, "", "", "number of buckets; a bucket is then full with the number of all elements divided by it"},
    {"--ddp-pad-buckets-for-high-nccl-busbw", kHonoured, kSwitch, "", "", "pads buckets to multiples of 65,536 elements, which NCCL transfers faster"},
    {"--ddp-average-in-collective", kHonoured, kSwitch, "", "", "lets the collective divide by the number of ranks; without it, gradients are divided before they are summed"},
    {"--accumulate-allreduce-grads-in-fp32", kHonoured, kSwitch, "", "", "keeps the gradient buffer of a bf16 model in fp32, which is the default of both programs; sets precision.reduce = \"fp32\""},
    {"--grad-reduce-in-bf16", kHonoured, kSwitch, "", "", "keeps the gradient buffer of a bf16 model in bf16; sets precision.reduce = \"bf16\""},
    {"--sequence-parallel", kHonoured, kSwitch, "", "", "between the products of a layer, each tensor-parallel rank has a part of the sequence; needs a tensor-parallel size above 1"},
    {"--cp-comm-type", kHonoured, kWord, "p2p", "p2p|all_gather", "how context-parallel ranks exchange keys and values: in a ring, or all at once; one word, for all layers"},
    {"--num-layers-per-virtual-pipeline-stage", kHonoured, kInt, "", "", "layers of a stage; with several stages, a rank interleaves them"},
    {"--num-virtual-stages-per-pipeline-rank", kHonoured, kInt, "", "", "stages of each rank, which it interleaves"},
    {"--microbatch-group-size-per-virtual-pipeline-stage", kHonoured, kInt, "", "", "micro-batches that a rank computes on a stage before it turns to the next one; must be the pipeline-parallel size, its default"},
    {"--decoder-first-pipeline-num-layers", kHonoured, kInt, "", "", "layers of the first pipeline rank; the others share the rest evenly"},
    {"--decoder-last-pipeline-num-layers", kHonoured, kInt, "", "", "layers of the last pipeline rank; the others share the rest evenly"},
    {"--account-for-embedding-in-pipeline-split", kHonoured, kSwitch, "", "", "counts the embedding as a layer when layers are shared among pipeline ranks"},
    {"--account-for-loss-in-pipeline-split", kHonoured, kSwitch, "", "", "counts the head with the loss as a layer when layers are shared among pipeline ranks"},
    {"--pipeline-model-parallel-layout", kHonoured, kWord, "", "", "the stages written out: E embedding, t layer, L loss, | between stages, as in Et*3|(tt|)*2L"},
    {"--use-torch-fsdp2", kHonoured, kSwitch, "", "", "FSDP: all data ranks share parameters, gradients and moments, as dp_shards. The backend ptd then does the training"},
    {"--torch-fsdp2-no-reshard-after-forward", kHonoured, kSwitch, "", "", "with --use-torch-fsdp2: keeps gathered parameters from the forward to the backward"},
    {"--use-megatron-fsdp", kHonoured, kSwitch, "", "", "shards what --data-parallel-sharding-strategy names; that argument must be given"},
    {"--use-custom-fsdp", kHonoured, kSwitch, "", "", "the old name of --use-megatron-fsdp"},
    {"--data-parallel-sharding-strategy", kHonoured, kWord, "", "no_shard|optim|optim_grads_params", "with --use-megatron-fsdp: optim_grads_params is FSDP, optim is --use-distributed-optimizer, no_shard is neither"},
    {"--outer-dp-sharding-strategy", kHonoured, kWord, "no_shard", "no_shard", "with several instances, each holds all shards, and gradients are summed over the instances"},
    {"--recompute-granularity", kHonoured, kWord, "", "full|selective", "full computes layers again in the backward instead of keeping their activations; selective means the scores of attention, which are never kept here"},
    {"--recompute-method", kHonoured, kWord, "", "uniform|block", "with --recompute-granularity full: uniform keeps the input of every --recompute-num-layers layers; block computes that many layers again, one at a time, and keeps the activations of the others"},
    {"--recompute-num-layers", kHonoured, kInt, "", "", "number of layers, see --recompute-method"},
    {"--recompute-modules", kHonoured, kWords, "core_attn", "core_attn", "what --recompute-granularity selective computes again"},
    {"--recompute-activations", kHonoured, kSwitch, "", "", "short for --recompute-granularity selective"},
};
// clang-format on

}  // namespace

std::span<const Argument> honoured_arguments() {
  return kRows;
}

}  // namespace yoke::megatron_compat
