// The arguments whose values the run file decides, because every backend must agree on them or
// because the host acts on them. `yoke config import` prints the lines that have the same effect.
#include "plugins/megatron_compat/config/arguments.hpp"

namespace yoke::megatron_compat {
namespace {

using enum Handling;
using enum Form;

// clang-format off
constexpr Argument kRows[] = {
    // ---- Model ----
    {"--num-layers", kRun, kInt, "", "", "must equal model.layers"},
    {"--hidden-size", kRun, kInt, "", "", "must equal model.dim"},
    {"--ffn-hidden-size", kRun, kInt, "", "", "must equal model.ffn_dim; the default is 8/3 of --hidden-size, rounded down to a multiple of 64"},
    {"--num-attention-heads", kRun, kInt, "", "", "must equal model.heads"},
    {"--group-query-attention", kRun, kSwitch, "", "", "needed for --num-query-groups to have an effect"},
    {"--num-query-groups", kRun, kInt, "1", "", "must equal model.kv_heads; without --group-query-attention, model.kv_heads must equal model.heads"},
    {"--kv-channels", kRun, kInt, "", "", "must be --hidden-size divided by --num-attention-heads"},
    {"--normalization", kRun, kWord, "LayerNorm", "RMSNorm", "the model has RMSNorm"},
    {"--norm-epsilon", kRun, kNumber, "1e-05", "", "must equal model.norm_eps"},
    {"--apply-layernorm-1p", kRun, kSwitch, "", "", "stores the gain of a norm minus 1, which does not change the model"},
    {"--swiglu", kRun, kSwitch, "off", "on", "the model has SwiGLU"},
    {"--disable-bias-linear", kRun, kSwitch, "off", "on", "the model has no biases"},
    {"--hidden-dropout", kRun, kNumber, "0.1", "0", "the model has no dropout"},
    {"--attention-dropout", kRun, kNumber, "0.1", "0", "the model has no dropout"},
    {"--position-embedding-type", kRun, kWord, "learned_absolute", "rope", "the model has rotary positions"},
    {"--use-rotary-position-embeddings", kRun, kSwitch, "", "", "older form of --position-embedding-type rope"},
    {"--no-position-embedding", kRun, kSwitch, "", "", "the model has no learned positions"},
    {"--rotary-base", kRun, kNumber, "10000", "", "must equal model.rope_theta"},
    {"--rotary-percent", kRun, kNumber, "1.0", "1", "positions rotate the whole head"},
    {"--max-position-embeddings", kRun, kInt, "", "", "must be at least --seq-length"},
    {"--untie-embeddings-and-output-weights", kRun, kSwitch, "", "", "model.tied must be false with it, and true without"},
    {"--init-method-std", kRun, kNumber, "0.02", "0.02", "initial values have a standard deviation of 0.02; start from other values with model.from"},
    {"--attention-softmax-in-fp32", kRun, kSwitch, "", "", "the softmax is always computed in fp32 at least"},
    {"--fp32-residual-connection", kRun, kSwitch, "", "off", "activations have the dtype of precision.param"},
    // ---- Vocabulary and tokenizer ----
    {"--padded-vocab-size", kRun, kInt, "", "", "must equal model.vocab"},
    {"--vocab-size", kRun, kInt, "", "", "model.vocab must be this number, padded to a multiple of --make-vocab-size-divisible-by times the tensor-parallel size: the softmax of Megatron runs over the padding as well. Releases before core 0.18 add one id with NullTokenizer; where this changes the result, give --padded-vocab-size instead"},
    {"--make-vocab-size-divisible-by", kRun, kInt, "128", "", "see --vocab-size"},
    {"--no-pad-vocab-size", kRun, kSwitch, "", "", "model.vocab must be --vocab-size without padding"},
    {"--vocab-extra-ids", kRun, kInt, "0", "0", "ids of T5 are not supported"},
    {"--tokenizer-type", kNote, kWord, "", "", "a run reads token ids; set model.vocab"},
    {"--tokenizer-model", kNote, kWord, "", "", "a run reads token ids; set model.vocab"},
    {"--vocab-file", kNote, kWord, "", "", "a run reads token ids; set model.vocab"},
    {"--merge-file", kNote, kWord, "", "", "a run reads token ids; set model.vocab"},
    {"--null-tokenizer-eod-id", kRun, kInt, "", "", "a run reads token ids and needs no end of a document"},
    {"--null-tokenizer-pad-id", kNote, kInt, "-1", "", "set data.pad_token if targets with this id must not count"},
    // ---- Data ----
    {"--seq-length", kRun, kInt, "", "", "must equal data.seq_len"},
    {"--data-path", kRun, kWords, "", "", "is data.path with data.order = \"megatron\", and data.weights if there are several; a blend needs weights"},
    {"--train-data-path", kRun, kWords, "", "", "is data.path, as --data-path, but all of it is for training"},
    {"--valid-data-path", kRun, kWords, "", "", "is eval.path, a single dataset"},
    {"--test-data-path", kNote, kWords, "", "", "a run has one set for evaluation"},
    {"--data-args-path", kNote, kWord, "", "", "set data.path to the datasets in this file"},
    {"--data-cache-path", kRun, kWord, "", "", "a run needs no index files"},
    {"--split", kRun, kWord, "969, 30, 1", "", "is data.split"},
    {"--mid-level-dataset-surplus", kRun, kNumber, "0.005", "0.005", "the order of a blend is made with this number"},
    {"--dataloader-type", kRun, kWord, "single", "single", "another order of the samples; set data.order"},
    // ---- Degrees ----
    {"--tensor-model-parallel-size", kRun, kInt, "1", "", "becomes tp_degree"},
    {"--pipeline-model-parallel-size", kRun, kInt, "1", "", "becomes pp_degree"},
    {"--context-parallel-size", kRun, kInt, "1", "", "becomes cp_degree"},
    // ---- Batch and length ----
    {"--micro-batch-size", kRun, kInt, "", "", "must equal train.micro_batch, which is set to this value if it is unset"},
    {"--global-batch-size", kRun, kInt, "", "", "must equal train.global_batch; the default is --micro-batch-size times the data ranks"},
    {"--train-iters", kRun, kInt, "", "", "sets train.steps"},
    {"--train-samples", kRun, kInt, "", "", "sets train.steps, as a multiple of the global batch"},
    {"--exit-interval", kNote, kInt, "", "", "set train.steps to end a run earlier, and lr_schedule.total_steps to keep its schedule"},
    {"--exit-duration-in-mins", kNote, kNumber, "", "", "end the run with SIGTERM, which saves a checkpoint"},
    {"--exit-signal", kRun, kWord, "", "", "SIGTERM and SIGINT save a checkpoint and end the run"},
    {"--exit-signal-handler", kRun, kSwitch, "", "", "SIGTERM and SIGINT save a checkpoint and end the run"},
    {"--skip-train", kRun, kSwitch, "", "off", "a run trains"},
    // ---- Loss, precision ----
    {"--calculate-per-token-loss", kRun, kSwitch, "", "", "trains on the mean over all targets of the batch; without it, on the mean of the means of the micro-batches. See megatron_compat.loss"},
    {"--bf16", kRun, kSwitch, "", "", "precision.param must be \"bf16\" with it, and \"fp32\" or \"fp64\" without"},
    {"--deterministic-mode", kRun, kSwitch, "", "", "sets train.deterministic"},
    {"--no-check-for-nan-in-loss-and-grad", kRun, kSwitch, "", "", "a loss or norm that is not finite always ends the run"},
    // ---- Optimizer ----
    {"--optimizer", kRun, kWord, "adam", "adam|sgd", "adam is train.optimizer = \"adamw\", for Megatron's weight decay is decoupled; sgd is \"sgd\", and needs --weight-decay 0, for there it is not"},
    {"--lr", kRun, kNumber, "", "", "must equal train.lr"},
    {"--adam-beta1", kRun, kNumber, "0.9", "", "must equal the first of train.betas"},
    {"--adam-beta2", kRun, kNumber, "0.999", "", "must equal the second of train.betas"},
    {"--adam-eps", kRun, kNumber, "1e-08", "", "must equal train.eps"},
    {"--sgd-momentum", kRun, kNumber, "0.9", "", "must equal train.momentum"},
    {"--clip-grad", kRun, kNumber, "1.0", "", "must equal train.clip"},
    {"--weight-decay", kRun, kNumber, "0.01", "", "must equal train.weight_decay; norms and biases do not decay, so train.decay must be \"matrices\""},
    {"--weight-decay-incr-style", kRun, kWord, "constant", "constant", "weight decay is constant"},
    {"--start-weight-decay", kRun, kNumber, "", "", "must equal --weight-decay, because weight decay is constant"},
    {"--end-weight-decay", kRun, kNumber, "", "", "must equal --weight-decay, because weight decay is constant"},
    // ---- Learning rate ----
    {"--lr-decay-style", kRun, kWord, "linear", "constant|linear|cosine|inverse-square-root|WSD", "must equal train.schedule: constant, linear, cosine, inverse_sqrt, wsd"},
    {"--lr-decay-iters", kRun, kInt, "", "", "must equal lr_schedule.total_steps; the default is --train-iters; with inverse-square-root it must not end before the run"},
    {"--lr-decay-samples", kRun, kInt, "", "", "--lr-decay-iters times the global batch"},
    {"--lr-warmup-iters", kRun, kInt, "0", "", "must equal train.warmup, with lr_schedule.first_step = 0"},
    {"--lr-warmup-samples", kRun, kInt, "0", "", "--lr-warmup-iters times the global batch"},
    {"--lr-warmup-fraction", kRun, kNumber, "", "", "--lr-warmup-iters as a part of --lr-decay-iters"},
    {"--lr-warmup-init", kRun, kNumber, "0.0", "", "must equal lr_schedule.start_factor x train.lr"},
    {"--min-lr", kRun, kNumber, "0.0", "", "must equal train.min_lr_factor x train.lr"},
    {"--lr-wsd-decay-style", kRun, kWord, "exponential", "exponential|linear|cosine|minus_sqrt", "must equal lr_schedule.decay_shape: exponential, linear, cosine, sqrt"},
    {"--lr-wsd-decay-iters", kRun, kInt, "", "", "must equal lr_schedule.decay_steps; the decay must not begin within the warmup"},
    {"--lr-wsd-decay-samples", kRun, kInt, "", "", "--lr-wsd-decay-iters times the global batch"},
    // ---- Evaluation ----
    {"--eval-interval", kRun, kInt, "", "", "sets eval.every"},
    {"--eval-iters", kRun, kInt, "100", "", "sets eval.batches; 0 sets eval.every = 0"},
    {"--eval-global-batch-size", kNote, kInt, "", "", "an evaluation has the global batch of the run"},
    {"--eval-micro-batch-size", kRun, kInt, "", "", "the loss does not depend on it"},
    // ---- Checkpoints ----
    {"--save", kNote, kWord, "", "", "set run.dir, in which checkpoints are saved"},
    {"--save-interval", kRun, kInt, "", "", "sets checkpoint.every"},
    {"--save-retain-interval", kNote, kInt, "", "", "set checkpoint.keep, the number of checkpoints that are kept"},
    {"--load", kNote, kWord, "", "", "set checkpoint.resume; Megatron's own checkpoints are not read yet"},
    {"--pretrained-checkpoint", kNote, kWord, "", "", "set model.from; Megatron's own checkpoints are not read yet"},
    {"--finetune", kNote, kSwitch, "", "", "set model.from"},
    {"--ckpt-step", kNote, kInt, "", "", "set checkpoint.resume to the path of a checkpoint"},
    {"--ckpt-format", kRun, kWord, "torch_dist", "torch_dist|torch_dcp|fsdp_dtensor", "checkpoints have one format, that of Yoke"},
    {"--auto-detect-ckpt-format", kRun, kSwitch, "", "", "checkpoints have one format, that of Yoke"},
    {"--dist-ckpt-format", kRun, kWord, "torch_dist", "torch_dist", "checkpoints have one format, that of Yoke"},
    {"--use-dist-ckpt", kRun, kSwitch, "", "", "checkpoints have one format, that of Yoke"},
    {"--ckpt-fully-parallel-load", kRun, kSwitch, "", "", "every rank reads what it needs"},
    {"--dist-ckpt-optim-fully-reshardable", kRun, kSwitch, "", "", "every checkpoint can be loaded in every layout"},
    {"--exit-on-missing-checkpoint", kNote, kSwitch, "", "", "set checkpoint.resume to a path, which must exist"},
    {"--use-checkpoint-args", kNote, kSwitch, "", "", "write the dimensions into [model]"},
    {"--use-mp-args-from-checkpoint-args", kNote, kSwitch, "", "", "write the degrees into the run file"},
    {"--no-load-optim", kNote, kSwitch, "", "", "set model.from to start from parameters alone"},
    {"--no-load-rng", kRun, kSwitch, "", "", "a run has no state of a random generator"},
    {"--no-save-optim", kRun, kSwitch, "", "off", "every checkpoint can be resumed"},
    {"--no-save-rng", kRun, kSwitch, "", "", "a run has no state of a random generator"},
    // ---- The rest of the run ----
    {"--seed", kRun, kInt, "1234", "", "set seed; it decides the order of the data and the initial values, which are not those of Megatron"},
    {"--use-cpu-initialization", kRun, kSwitch, "", "", "initial values do not depend on the device"},
    {"--distributed-backend", kRun, kWord, "nccl", "nccl|gloo", "device decides: NCCL on CUDA devices, Gloo on the CPU"},
    {"--distributed-timeout-minutes", kRun, kNumber, "10", "", "sets comm.timeout, in seconds"},
    {"--check-weight-hash-across-dp-replicas-interval", kRun, kInt, "", "", "sets verify.every"},
    {"--log-interval", kRun, kInt, "100", "", "sets metrics.every"},
    {"--log-throughput", kRun, kSwitch, "", "", "the log line always shows tokens per second and TFLOP/s"},
    {"--tensorboard-dir", kNote, kWord, "", "", "metrics.tensorboard = true writes event files into the run folder"},
    {"--profile", kRun, kSwitch, "", "", "sets profile.steps"},
    {"--profile-step-start", kRun, kInt, "10", "", "sets profile.steps, with --profile"},
    {"--profile-step-end", kRun, kInt, "12", "", "sets profile.steps, with --profile"},
};
// clang-format on

}  // namespace

std::span<const Argument> run_arguments() {
  return kRows;
}

}  // namespace yoke::megatron_compat
