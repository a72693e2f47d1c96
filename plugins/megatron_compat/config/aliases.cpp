// Other spellings of arguments, older ones among them.
#include "plugins/megatron_compat/config/arguments.hpp"

namespace yoke::megatron_compat {
namespace {

// clang-format off
constexpr Alias kAliases[] = {
    {"--persistent-save-interval", "--save-interval"},
    {"--disable-pad-vocab-size", "--no-pad-vocab-size"},
    {"--disable-ckpt-fully-parallel-save", "--no-ckpt-fully-parallel-save"},
    {"--disable-ckpt-load-validate-sharding-integrity", "--no-ckpt-load-validate-sharding-integrity"},
    {"--disable-save-tokenizer-assets", "--no-save-tokenizer-assets"},
    {"--disable-stream-ckpt-dequant", "--no-stream-ckpt-dequant"},
    {"--disable-strict-fsdp-dtensor-load", "--no-strict-fsdp-dtensor-load"},
    {"--disable-use-tokenizer-model-from-checkpoint-args", "--no-use-tokenizer-model-from-checkpoint-args"},
    {"--disable-align-grad-reduce", "--no-align-grad-reduce"},
    {"--disable-flight-recorder-dump-on-timeout", "--no-flight-recorder-dump-on-timeout"},
    {"--disable-flight-recorder-extra-dump-on-exec", "--no-flight-recorder-extra-dump-on-exec"},
    {"--disable-flight-recorder-include-only-active", "--no-flight-recorder-include-only-active"},
    {"--disable-log-loss-scale-to-tensorboard", "--no-log-loss-scale-to-tensorboard"},
    {"--override-opt-param-scheduler", "--override-opt_param-scheduler"},
    {"--use-checkpoint-opt-param-scheduler", "--use-checkpoint-opt_param-scheduler"},
    {"--disable-tokenizer-sentencepiece-ignore-extra-whitespaces", "--no-tokenizer-sentencepiece-ignore-extra-whitespaces"},
    {"--disable-manual-gc-eval", "--no-manual-gc-eval"},
    {"--disable-async-tensor-model-parallel-allreduce", "--no-async-tensor-model-parallel-allreduce"},
    {"--disable-clone-scatter-output-in-embedding", "--no-clone-scatter-output-in-embedding"},
    {"--disable-dsa-indexer-rotate-activation", "--no-dsa-indexer-rotate-activation"},
    {"--disable-dsa-indexer-scoring-relu", "--no-dsa-indexer-scoring-relu"},
    {"--disable-fp8-wgrad", "--no-fp8-wgrad"},
    {"--encoder-num-layers", "--num-layers"},
    {"--encoder-seq-length", "--seq-length"},
    {"--batch-size", "--micro-batch-size"},
};
// clang-format on

}  // namespace

std::span<const Alias> aliases() {
  return kAliases;
}

}  // namespace yoke::megatron_compat
