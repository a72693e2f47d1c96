// The arguments that act only together with one that is refused. Megatron ignores them otherwise,
// so their values are not read.
#include "plugins/megatron_compat/config/arguments.hpp"

namespace yoke::megatron_compat {
namespace {

using enum Handling;

// clang-format off
constexpr std::string_view kFaultInjection[] = {
    "--fault-injector-delay-start-iteration", "--fault-injector-fault-delay", "--fault-injector-fault-probabilities",
    "--fault-injector-fault-types", "--fault-injector-mtti-seconds", "--fault-injector-num-ranks",
    "--fault-injector-offset-seconds", "--fault-injector-ranks", "--fault-injector-seed",
};
constexpr std::string_view kOfRefusedFeatures[] = {
    "--moe-routing-trace-capture-hidden-states", "--moe-routing-trace-capture-logits",
    "--moe-routing-trace-dump-weights", "--moe-routing-trace-max-training-iters", "--moe-routing-trace-path",
    "--activation-offload-fraction", "--batch-invariant-backend", "--cpu-offloading-retain-pinned-cpu-buffers",
    "--delay-offload-until-cuda-graph", "--delta-offload-bytes-across-pp-ranks", "--disable-mamba-mem-eff-path",
    "--dsa-indexer-head-dim", "--dsa-indexer-k-norm-epsilon", "--dsa-indexer-k-norm-fp32", "--dsa-indexer-loss-coeff",
    "--dsa-indexer-n-heads", "--dsa-indexer-rope-interleaved", "--dsa-indexer-skip-topk-offset", "--dsa-indexer-topk",
    "--dsa-indexer-topk-freq", "--dsa-indexer-use-sparse-loss", "--dsa-kernel-backend",
    "--ep-overlap-early-attn-memory-release", "--fine-grained-offloading-max-inflight-offloads",
    "--first-last-layers-bf16", "--fp4-quantizer-factory", "--fp4-recipe", "--fp8-amax-compute-algo",
    "--fp8-amax-history-len", "--fp8-interval", "--fp8-margin", "--fp8-output-proj", "--fp8-quantizer-factory",
    "--fp8-recipe", "--gdp-cutedsl-kernel", "--gdp-num-chunk-states-to-recompute", "--gdp-num-householder",
    "--gtp-remat-opt-in-modules", "--inference-cuda-graph-scope", "--inference-disable-triton-nvls-kernels",
    "--inference-fuse-tp-communication", "--inference-grouped-gemm-backend",
    "--inference-moe-disable-fused-quant-kernels", "--inference-moe-token-dispatcher-type",
    "--kitchen-attention-backend", "--linear-conv-kernel-dim", "--linear-key-head-dim", "--linear-num-key-heads",
    "--linear-num-value-heads", "--linear-value-head-dim", "--mamba-head-dim", "--mamba-num-groups",
    "--mamba-num-heads", "--mamba-state-dim", "--mhc-init-gating-factor", "--mhc-num-residual-streams",
    "--mhc-recompute-layer-num", "--mhc-sinkhorn-iterations", "--min-offloaded-tensor-size",
    "--mlp-chunks-for-prefill", "--mlp-chunks-for-training", "--moe-apply-probs-on-input", "--moe-combine-bwd-dtype",
    "--moe-deepep-num-sms", "--moe-dispatch-fwd-dtype", "--moe-enable-deepep", "--moe-enable-routing-replay",
    "--moe-expert-capacity-factor", "--moe-expert-rank-capacity-factor", "--moe-extended-tp", "--moe-ffn-hidden-size",
    "--moe-flex-dispatcher-backend", "--moe-flex-dispatcher-num-sms", "--moe-grouped-gemm",
    "--moe-hybridep-num-blocks-permute", "--moe-hybridep-num-blocks-unpermute", "--moe-hybridep-num-sms",
    "--moe-hybridep-num-sms-preprocessing", "--moe-hybridep-pad-uneven-dispatch-inputs", "--moe-input-jitter-eps",
    "--moe-latent-size", "--moe-layer-recompute", "--moe-mlp-glu-interleave-size", "--moe-ncclep-static-shape",
    "--moe-ncclep-zero-copy", "--moe-pad-expert-input-to-capacity", "--moe-pad-experts-for-cuda-graph-inference",
    "--moe-paged-stash", "--moe-paged-stash-buffer-size-factor-cpu", "--moe-paged-stash-buffer-size-factor-cuda",
    "--moe-paged-stash-page-size", "--moe-per-layer-logging", "--moe-permute-fusion-into-hybridep",
    "--moe-router-bias-update-rate", "--moe-router-dtype", "--moe-router-enable-expert-bias",
    "--moe-router-force-biased", "--moe-router-force-load-balancing", "--moe-router-group-topk",
    "--moe-router-num-groups", "--moe-router-padding-for-fp8", "--moe-router-padding-for-quantization",
    "--moe-router-pre-softmax", "--moe-router-quantile-balancing-ema", "--moe-router-score-function",
    "--moe-router-topk", "--moe-router-topk-scaling-factor", "--moe-shared-expert-gate",
    "--moe-shared-expert-glu-interleave-size", "--moe-shared-expert-intermediate-size", "--moe-shared-expert-overlap",
    "--moe-single-grouped-bias", "--moe-single-grouped-weight", "--moe-token-dispatcher-type",
    "--moe-token-drop-policy", "--moe-use-grouped-tensor", "--moe-use-legacy-grouped-gemm", "--moe-z-loss-coeff",
    "--mtp-detach-heads", "--mtp-hsm", "--mtp-hybrid-override-pattern", "--mtp-loss-scaling-factor",
    "--mtp-use-repeated-layer", "--mup-attn-scale-power", "--mup-base-head-dim", "--mup-base-hidden-size",
    "--mup-embedding-mult", "--mup-output-mult", "--mup-width-mult", "--nccl-all-reduce-for-prefill",
    "--no-dsa-indexer-rotate-activation", "--no-dsa-indexer-scoring-relu", "--no-fp8-wgrad",
    "--num-layers-at-end-in-bf16", "--num-layers-at-start-in-bf16", "--offload-modules",
    "--overlap-dispatch-backward-with-experts-wgrad", "--overlap-moe-expert-parallel-comm", "--qk-clip-alpha",
    "--qk-clip-threshold", "--use-grouped-gemm-for-dense-mlp", "--use-grouped-gemm-for-shared-expert",
    "--use-kitchen-attention", "--fim-eod-token", "--fim-fragment-rate", "--fim-middle-token", "--fim-no-prefix",
    "--fim-pad-token", "--fim-prefix-token", "--fim-rate", "--fim-split-sample", "--fim-spm-rate",
    "--fim-suffix-token", "--keep-fp8-transpose-cache", "--keep-fp8-transpose-cache-when-using-custom-fsdp",
    "--no-use-layer-wise-param-layout", "--decode-only-cuda-graphs", "--disable-chunked-prefill",
    "--enable-chunked-prefill", "--inference-batch-times-seqlen-threshold", "--inference-coordinator-port",
    "--inference-cuda-graph-all-prefills", "--inference-cuda-graph-max-tokens", "--inference-disable-ep-consensus",
    "--inference-dynamic-batching", "--inference-dynamic-batching-async-sched-mode",
    "--inference-dynamic-batching-block-size", "--inference-dynamic-batching-buffer-guaranteed-fraction",
    "--inference-dynamic-batching-buffer-overflow-factor", "--inference-dynamic-batching-buffer-size-gb",
    "--inference-dynamic-batching-chunk-size", "--inference-dynamic-batching-cuda-graph-max-tokens",
    "--inference-dynamic-batching-cuda-graph-mixed-prefill-count",
    "--inference-dynamic-batching-cuda-graph-sizing-distribution", "--inference-dynamic-batching-logprobs-mode",
    "--inference-dynamic-batching-mamba-memory-ratio", "--inference-dynamic-batching-max-requests",
    "--inference-dynamic-batching-max-requests-override", "--inference-dynamic-batching-max-tokens",
    "--inference-dynamic-batching-max-tokens-override", "--inference-dynamic-batching-num-cuda-graphs",
    "--inference-dynamic-batching-paused-buffer-size-gb", "--inference-dynamic-batching-prefix-caching",
    "--inference-dynamic-batching-prefix-caching-coordinator-policy",
    "--inference-dynamic-batching-prefix-caching-eviction-policy",
    "--inference-dynamic-batching-prefix-caching-mamba-gb",
    "--inference-dynamic-batching-prefix-caching-routing-alpha", "--inference-dynamic-batching-sampling-backend",
    "--inference-dynamic-batching-track-generated-token-events",
    "--inference-dynamic-batching-track-paused-request-events", "--inference-dynamic-batching-unified-memory-level",
    "--inference-logging-step-interval", "--inference-max-batch-size", "--inference-max-requests",
    "--inference-max-seq-length", "--inference-shards", "--inference-text-gen-server-logging",
    "--inference-use-synchronous-zmq-collectives", "--inference-wandb-logging", "--mamba-inference-conv-states-dtype",
    "--mamba-inference-ssm-states-dtype", "--num-speculative-tokens", "--hysteresis",
    "--initial-loss-scale", "--loss-scale-window", "--mamba-training-ssm-states-dtype", "--min-loss-scale",
    "--reuse-grad-buf-for-mxfp8-param-ag", "--moe-aux-loss-coeff", "--moe-layer-freq",
    "--moe-router-load-balancing-type", "--moe-upcycling-granularity",
    "--no-yarn-correction-range-round-to-int", "--relative-attention-max-distance",
    "--relative-attention-num-buckets", "--rope-scaling-factor", "--yarn-beta-fast", "--yarn-beta-slow",
    "--yarn-correction-range-round-to-int", "--yarn-original-max-position-embeddings", "--lion-beta1", "--lion-beta2",
    "--muon-coefficient-type", "--muon-extra-scale-factor", "--muon-fp32-matmul-prec", "--muon-momentum",
    "--muon-nesterov", "--muon-no-split-qkv", "--muon-num-ns-steps", "--muon-scalar-optimizer", "--muon-scale-mode",
    "--muon-tp-mode", "--muon-use-nesterov", "--muon-use-syrk", "--no-pin-cpu-grads", "--no-pin-cpu-params",
    "--optimizer-offload-fraction", "--overlap-cpu-optimizer-d2h-h2d", "--use-torch-optimizer-for-cpu-offload",
};
constexpr std::string_view kBiencoder[] = {
    "--bert-load", "--biencoder-projection-dim", "--biencoder-shared-query-context-model", "--block-data-path",
    "--embedding-path", "--evidence-data-path", "--ict-head-size", "--ict-load", "--indexer-batch-size",
    "--indexer-log-interval", "--query-in-block-prob", "--retriever-report-topk-accuracies",
    "--retriever-score-scaling", "--titles-data-path", "--use-one-sent-docs",
};
constexpr std::string_view kInference[] = {
    "--bert-embedder-type", "--max-tokens-to-oom", "--use-legacy-static-engine",
    "--use-same-sampling-seed-across-dp-ranks",
};
constexpr std::string_view kLogits[] = {
    "--logits-load-decode-threads", "--logits-load-ignore-errors", "--logits-load-kd-loss-alpha",
    "--logits-load-msc-prefetch-depth", "--logits-load-prefetch-factor", "--logits-save-dtype",
    "--logits-save-top-k", "--logits-save-top-p", "--logits-save-top-p-min-k",
};
constexpr std::string_view kLatentAttention[] = {
    "--cache-mla-latents", "--kv-lora-rank", "--mla-down-proj-fusion", "--mscale", "--mscale-all-dim",
    "--q-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--rotary-scaling-factor", "--v-head-dim",
};
constexpr std::string_view kRetro[] = {
    "--retro-attention-gate", "--retro-cyclic-train-iters",
    "--retro-encoder-attention-dropout", "--retro-encoder-hidden-dropout", "--retro-encoder-layers",
    "--retro-no-verify-neighbor-count", "--retro-num-neighbors", "--retro-num-retrieved-chunks",
    "--retro-project-dir",
};
constexpr std::string_view kReinforcement[] = {
    "--grpo-clamp-eps-lower", "--grpo-clamp-eps-upper", "--grpo-entropy-term-weight",
    "--grpo-filter-groups-with-same-reward", "--grpo-group-size", "--grpo-iterations", "--grpo-kl-beta",
    "--grpo-prompts-per-step", "--langrl-env-config", "--langrl-external-server",
    "--langrl-inference-server-conversation-template", "--langrl-inference-server-type", "--refit-method",
    "--rl-consumption-granularity", "--rl-default-temperature", "--rl-default-top-k", "--rl-default-top-p",
    "--rl-durable-rollout-bank", "--rl-generation-lag", "--rl-importance-sampling-truncation-coef",
    "--rl-inference-expert-model-parallel-size", "--rl-inference-expert-tensor-model-parallel-size",
    "--rl-inference-logprobs-is-correction", "--rl-inference-model-unified-memory-level", "--rl-inference-parsers",
    "--rl-inference-pipeline-model-parallel-size", "--rl-inference-tensor-model-parallel-size",
    "--rl-kv-cache-management-mode", "--rl-max-inflight-requests", "--rl-offload-inference-model-weights-when-idle",
    "--rl-offload-kv-cache-during-training", "--rl-offload-optimizer-during-inference",
    "--rl-parallel-generation-tasks", "--rl-partial-rollouts", "--rl-persist-cuda-graphs", "--rl-profile",
    "--rl-profile-dir", "--rl-prompts-per-eval", "--rl-remove-kv-cache-during-training", "--rl-reset-cuda-graphs",
    "--rl-rollout-bank-dir", "--rl-rollout-bank-max-bytes", "--rl-sequence-packing-algo",
    "--rl-sequence-packing-max-sequences-per-bin", "--rl-skip-bos-token", "--rl-submission-granularity",
    "--rl-training-cuda-graphs", "--rl-use-sequence-packing", "--rl-verify-model-weights-swap",
};
constexpr std::string_view kSft[] = {
    "--sft-tokenizer-prompt-format",
};
constexpr std::string_view kVision[] = {
    "--classes-fraction", "--data-per-class-fraction", "--dino-bottleneck-size", "--dino-freeze-last-layer",
    "--dino-head-hidden-size", "--dino-local-crops-number", "--dino-local-img-size", "--dino-norm-last-layer",
    "--dino-teacher-temp", "--dino-warmup-teacher-temp", "--dino-warmup-teacher-temp-epochs", "--head-lr-mult",
    "--img-h", "--img-w", "--iter-per-epoch", "--mask-factor", "--mask-type", "--no-data-sharding", "--num-channels",
    "--num-classes", "--patch-dim", "--swin-backbone-type", "--vision-backbone-type", "--vision-pretraining",
    "--vision-pretraining-type",
};

constexpr Group kGroups[] = {
    {kInert, "it applies only with fault injection", kFaultInjection},
    {kInert, "its feature is not supported", kOfRefusedFeatures},
    {kInert, "it applies only to biencoders", kBiencoder},
    {kInert, "it applies only to inference", kInference},
    {kInert, "it applies only with --logits-save-dir or --logits-load-dir", kLogits},
    {kInert, "it applies only with --multi-latent-attention", kLatentAttention},
    {kInert, "it applies only with --retro-add-retriever", kRetro},
    {kInert, "it applies only with --perform-rl-step", kReinforcement},
    {kInert, "it applies only with --sft", kSft},
    {kInert, "it applies only to vision models", kVision},
};
// clang-format on

}  // namespace

std::span<const Group> inert_groups() {
  return kGroups;
}

}  // namespace yoke::megatron_compat
