// The arguments that change nothing here.
#include "plugins/megatron_compat/config/arguments.hpp"

namespace yoke::megatron_compat {
namespace {

using enum Handling;

// clang-format off
constexpr std::string_view kCheckpointFiles[] = {
    "--async-ckpt-cpu-priority", "--async-ckpt-io-priority", "--async-ckpt-use-cpu-shm", "--async-save",
    "--async-strategy", "--ckpt-assume-constant-structure", "--ckpt-fully-parallel-load-exchange-algo",
    "--ckpt-fully-parallel-load-per-rank-objects", "--ckpt-fully-parallel-load-process-group",
    "--ckpt-fully-parallel-save-process-group", "--ckpt-pg-tensors-cache-create", "--ckpt-pg-tensors-cache-path",
    "--dist-ckpt-save-pre-mcore-014", "--dist-ckpt-strictness", "--distrib-optim-fully-reshardable-mem-efficient",
    "--no-ckpt-fully-parallel-save", "--no-ckpt-load-validate-sharding-integrity", "--no-save-tokenizer-assets",
    "--no-stream-ckpt-dequant", "--no-strict-fsdp-dtensor-load", "--no-use-tokenizer-model-from-checkpoint-args",
    "--non-persistent-ckpt-type", "--non-persistent-global-ckpt-dir", "--non-persistent-local-ckpt-algo",
    "--non-persistent-local-ckpt-dir", "--non-persistent-save-interval", "--replication", "--replication-factor",
    "--replication-jump", "--use-persistent-ckpt-worker", "--verify-integrity", "--ckpt-drop-redundant-extra-state",
    "--ckpt-fully-parallel-save", "--dist-ckpt-workers",
};
constexpr std::string_view kCommunicators[] = {
    "--disable-gloo-process-groups", "--distributed-timeout-seconds-after-init", "--high-priority-stream-groups",
    "--lazy-mpu-init", "--local-rank", "--nccl-communicator-config-path", "--sharp-enabled-group", "--use-sharp",
    "--high-priority-a2a-comm-stream", "--symmetric-ar-type", "--create-all-gather-group",
    "--disable-symmetric-registration", "--fake-process-group", "--fsdp-double-buffer", "--fsdp-manual-registration",
    "--gtp-expert-remat-nccl-ub", "--gtp-remat-nccl-ub", "--local_rank", "--suggested-communication-unit-size",
    "--use-nccl-ub", "--fsdp-db-use-persist-buf-on-alloc-fail", "--megatron-fsdp-enable-fine-grained-param-gather",
    "--megatron-fsdp-max-pool-double-buffer",
};
constexpr std::string_view kFusion[] = {
    "--disable-jit-fuser", "--cross-entropy-fusion-impl", "--cross-entropy-loss-fusion", "--fused-residual-rmsnorm",
    "--moe-permute-fusion", "--moe-router-fusion", "--use-fused-weighted-squared-relu", "--use-te-activation-func",
    "--use-transformer-engine-op-fuser", "--no-bias-dropout-fusion", "--no-bias-gelu-fusion",
    "--no-bias-swiglu-fusion", "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion",
    "--no-persist-layer-norm", "--no-rope-fusion",
};
constexpr std::string_view kFlightRecorder[] = {
    "--flight-recorder-dump-path", "--flight-recorder-include-stack-trace", "--flight-recorder-trace-buffer-size",
    "--no-flight-recorder-dump-on-timeout", "--no-flight-recorder-extra-dump-on-exec",
    "--no-flight-recorder-include-only-active",
};
constexpr std::string_view kOrderOfWork[] = {
    "--no-align-grad-reduce", "--train-sync-interval", "--defer-embedding-wgrad-compute", "--delay-wgrad-compute",
    "--distribute-saved-activations", "--no-async-tensor-model-parallel-allreduce",
    "--overlap-p2p-communication-warmup-flush", "--pipeline-model-parallel-comm-backend", "--use-ring-exchange-p2p",
    "--wgrad-deferral-limit", "--delay-param-gather", "--no-align-param-gather", "--no-delay-grad-reduce",
    "--no-gradient-reduce-div-fusion", "--no-overlap-p2p-communication", "--no-scatter-gather-tensors-in-pipeline",
    "--overlap-param-gather-with-optimizer-step",
};
constexpr std::string_view kLoggers[] = {
    "--log-device-memory-used", "--log-energy", "--log-max-attention-logit", "--log-memory-interval",
    "--log-memory-to-tensorboard", "--log-num-zeros-in-grad", "--log-params-norm", "--log-timers-to-tensorboard",
    "--log-validation-ppl-to-tensorboard", "--log-world-size-to-tensorboard", "--logging-level",
    "--no-barrier-with-level-1-timing", "--no-log-loss-scale-to-tensorboard", "--tensorboard-log-interval",
    "--tensorboard-queue-size", "--wandb-entity", "--wandb-exp-name", "--wandb-project", "--wandb-save-dir",
    "--log-batch-size-to-tensorboard", "--no-log-learnig-rate-to-tensorboard", "--otel-enabled",
    "--otel-service-name", "--otel-span-groups",
};
constexpr std::string_view kNotForTraining[] = {
    "--log-progress", "--timing-log-level", "--timing-log-option", "--straggler-minmax-count", "--chat-template",
    "--no-tokenizer-sentencepiece-ignore-extra-whitespaces", "--tiktoken-num-special-tokens", "--tiktoken-pattern",
    "--tokenizer-hf-no-include-special-tokens", "--tokenizer-hf-no-use-fast", "--tokenizer-metadata",
    "--tokenizer-sentencepiece-legacy", "--tokenizer-special-tokens", "--trust-remote-code", "--use-gigatoken",
    "--config-logger-dir", "--test-mode", "--allow-ambiguous-pad-tokens", "--mask-prob", "--retriever-seq-length",
    "--sample-rate", "--short-seq-prob", "--enable-experimental", "--bert-no-binary-head", "--onnx-safe",
    "--legacy-tokenizer", "--tiktoken-special-tokens", "--tokenizer-hf-include-special-tokens",
    "--tokenizer-hf-use-fast", "--check-for-large-grads", "--dump-param-to-param-group-map",
    "--result-rejected-tracker-filename",
};
constexpr std::string_view kProfiler[] = {
    "--memory-snapshot-path", "--nvtx-ranges", "--profile-ranks", "--pytorch-profiler-collect-callstack",
    "--pytorch-profiler-collect-chakra", "--pytorch-profiler-collect-shapes", "--record-memory-history",
    "--record-shapes", "--use-pytorch-profiler",
};
constexpr std::string_view kTuning[] = {
    "--inference-rng-tracker", "--te-rng-tracker", "--empty-unused-memory-level", "--gpu-sniff-test-interval",
    "--manual-gc", "--manual-gc-interval", "--no-manual-gc-eval", "--cuda-graph-impl", "--cuda-graph-warmup-steps",
    "--disable-bf16-reduced-precision-matmul", "--enable-cuda-graph", "--external-cuda-graph",
    "--init-model-with-meta-device", "--no-clone-scatter-output-in-embedding", "--cuda-graph-modules",
    "--cuda-graph-scope", "--optimizer-cuda-graph",
};
constexpr std::string_view kChecks[] = {
    "--check-for-spiky-loss", "--error-injection-rate", "--error-injection-type", "--rerun-mode",
};
constexpr std::string_view kResumedSchedule[] = {
    "--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler",
};
constexpr std::string_view kObservers[] = {
    "--disable-straggler-on-startup", "--log-straggler", "--straggler-ctrlr-port", "--run-workload-inspector-server",
};
constexpr std::string_view kLoading[] = {
    "--exit-signal-handler-for-dataloader", "--exit-signal-handler-for-training", "--dataloader-defer-npy-index-mmap",
    "--dataloader-fast-cache-load", "--no-create-attention-mask-in-dataloader", "--no-mmap-bin-files",
    "--num-dataset-builder-threads", "--num-workers", "--object-storage-cache-path", "--per-dataset-sequences-path",
    "--s3-cache-path",
};
constexpr std::string_view kKernels[] = {
    "--attention-backend", "--flash-attention-version", "--flash-decode", "--transformer-impl", "--use-flash-attn",
    "--use-legacy-models", "--use-mcore-models",
};
constexpr std::string_view kUserBuffers[] = {
    "--no-tp-comm-bulk-dgrad", "--no-tp-comm-bulk-wgrad", "--no-tp-comm-overlap-ag", "--no-tp-comm-overlap-rs",
    "--no-tp-comm-split-ag", "--no-tp-comm-split-rs", "--tp-comm-bootstrap-backend", "--tp-comm-overlap",
    "--tp-comm-overlap-rs-dgrad", "--disable-tp-comm-bulk-dgrad", "--disable-tp-comm-bulk-wgrad",
    "--disable-tp-comm-overlap-ag", "--disable-tp-comm-overlap-rs", "--disable-tp-comm-split-ag",
    "--disable-tp-comm-split-rs", "--tp-comm-overlap-cfg",
};
constexpr std::string_view kNvidiaScheduler[] = {
    "--adlr-autoresume", "--adlr-autoresume-interval",
};
constexpr std::string_view kNvidiaLauncher[] = {
    "--calc-ft-timeouts", "--enable-ft-package", "--ft-num-warmup-iters",
};
constexpr std::string_view kInprocessRestart[] = {
    "--inprocess-active-world-size", "--inprocess-barrier-timeout", "--inprocess-completion-timeout",
    "--inprocess-empty-cuda-cache", "--inprocess-granularity", "--inprocess-hard-timeout",
    "--inprocess-heartbeat-interval", "--inprocess-heartbeat-timeout", "--inprocess-last-call-wait",
    "--inprocess-max-iterations", "--inprocess-monitor-process-interval", "--inprocess-monitor-thread-interval",
    "--inprocess-progress-watchdog-interval", "--inprocess-soft-timeout", "--inprocess-termination-grace-time",
};
constexpr std::string_view kStorage[] = {
    "--disable-msc", "--enable-msc",
};
constexpr std::string_view kNvidiaLogger[] = {
    "--app-tag-run-name", "--app-tag-run-version", "--no-one-logger", "--one-logger-async", "--one-logger-project",
    "--one-logger-run-name",
};

constexpr Group kGroups[] = {
    {kNoEffect, "it concerns the files of Megatron's checkpoints, and checkpoints have the format of Yoke", kCheckpointFiles},
    {kNoEffect, "it tunes communicators of NCCL and does not change what is computed", kCommunicators},
    {kNoEffect, "the host decides which operations are one kernel", kFusion},
    {kNoEffect, "comm.check compares the collectives of all ranks", kFlightRecorder},
    {kNoEffect, "it changes when work starts or where it is stored, not what is computed", kOrderOfWork},
    {kNoEffect, "metrics are written to metrics.jsonl and to event files for TensorBoard", kLoggers},
    {kNoEffect, "training reads token ids and does not use it", kNotForTraining},
    {kNoEffect, "traces are written as profile.steps describes", kProfiler},
    {kNoEffect, "it tunes CUDA, Python or their memory", kTuning},
    {kNoEffect, "every step is checked", kChecks},
    {kNoEffect, "a resumed run keeps its learning-rate schedule", kResumedSchedule},
    {kNoEffect, "it observes a run and does not change what is computed", kObservers},
    {kNoEffect, "it concerns how samples are loaded, not which", kLoading},
    {kNoEffect, "the host chooses the kernels", kKernels},
    {kNoEffect, "it overlaps communication inside Transformer Engine, which is not used", kUserBuffers},
    {kNoEffect, "it belongs to a scheduler of NVIDIA", kNvidiaScheduler},
    {kNoEffect, "it belongs to a launcher of NVIDIA", kNvidiaLauncher},
    {kNoEffect, "it applies only with --inprocess-restart", kInprocessRestart},
    {kNoEffect, "files are read and written directly", kStorage},
    {kNoEffect, "it belongs to a logger of NVIDIA", kNvidiaLogger},
};
// clang-format on

}  // namespace

std::span<const Group> no_effect_groups() {
  return kGroups;
}

}  // namespace yoke::megatron_compat
