#include "core/config/schema.hpp"

#include <algorithm>

namespace yoke {
namespace {

constexpr Range kAny{};

constexpr Range count_from(double min) {
  return {.min = min, .max = kMaxCount};
}
constexpr Range at_least(double min) {
  return {.min = min};
}
constexpr Range above(double min) {
  return {.min = min, .open_min = true};
}
constexpr Range from_below(double min, double max) {
  return {min, max, false, true};
}

// A row reads: name, place, range, choices, flags, one line for the user.
#define PLACE(member) [](RunConfig& c) -> Field { return &c.member; }

std::vector<Key> make_schema() {
  return {
      {"parallel_backend",
       PLACE(parallel_backend),
       kAny,
       "",
       kRequired | kFree,
       "which backend runs the step: a name, or an absolute path to a .so"},
      {"backend_path",
       PLACE(backend_path),
       kAny,
       "",
       kFree | kNoVariable,
       "absolute folders in which backends are looked for first"},
      {"pp_degree", PLACE(degrees.pp), count_from(1), "", kFree, "pipeline stages"},
      {"dp_degree", PLACE(degrees.dp_replicate), count_from(1), "", kFree, "replicas of the model"},
      {"dp_shards",
       PLACE(degrees.dp_shard),
       count_from(1),
       "",
       kFree,
       "ranks over which each replica's parameters are sharded"},
      {"cp_degree", PLACE(degrees.cp), count_from(1), "", kFree, "ranks that share each sequence"},
      {"tp_degree", PLACE(degrees.tp), count_from(1), "", kFree, "ranks that share each matrix"},
      {"device",
       PLACE(device),
       kAny,
       "cpu|cuda|auto",
       kFree,
       "where the ranks compute; auto = on CUDA devices if there are any for all of them"},
      {"seed", PLACE(seed), at_least(0), "", 0, "of the initial parameters and of the data order"},
      {"worker",
       PLACE(worker),
       kAny,
       "",
       kFree,
       "absolute path of another worker program (models of your own); empty = yoke-worker"},

      {"run.dir",
       PLACE(run_dir),
       kAny,
       "",
       kFree | kNotEmpty,
       "folder of logs, metrics and checkpoints; a numbered sibling if it is not empty"},

      {"model.family", PLACE(model.family), kAny, "", kNotEmpty, "kind of model"},
      {"model.preset",
       PLACE(model.preset),
       kAny,
       "",
       0,
       "named dimensions of the family; empty = those below"},
      {"model.from",
       PLACE(model.from),
       kAny,
       "",
       0,
       "folder with config.json and *.safetensors that the run starts from; empty = random values"},
      {"model.dim", PLACE(model.dim), count_from(1), "", kZeroIsUnset, "width of the hidden state"},
      {"model.layers", PLACE(model.layers), count_from(1), "", kZeroIsUnset, "transformer blocks"},
      {"model.heads", PLACE(model.heads), count_from(1), "", kZeroIsUnset, "attention heads"},
      {"model.kv_heads",
       PLACE(model.kv_heads),
       count_from(1),
       "",
       kZeroIsUnset,
       "key and value heads"},
      {"model.ffn_dim",
       PLACE(model.ffn_dim),
       count_from(1),
       "",
       kZeroIsUnset,
       "width of the feed-forward layer"},
      {"model.vocab", PLACE(model.vocab), count_from(1), "", kZeroIsUnset, "tokens; 256 for bytes"},
      {"model.tied", PLACE(model.tied), kAny, "", 0, "embedding and head share one matrix"},
      {"model.rope_theta",
       PLACE(model.rope_theta),
       above(0),
       "",
       0,
       "base of the rotary embedding"},
      {"model.norm_eps", PLACE(model.norm_eps), above(0), "", 0, "epsilon of the norms"},

      {"data.path", PLACE(data.path), kAny, "", kRequired, "bytes of a text, or .bin token ids"},
      {"data.format",
       PLACE(data.format),
       kAny,
       "auto|text|yoke|nanogpt|llmc",
       0,
       "of data.path; auto = by its header, nanogpt (raw uint16 ids) has none"},
      {"data.seq_len", PLACE(data.seq_len), count_from(1), "", 0, "tokens of a sequence"},
      {"data.order", PLACE(data.order), kAny, "shuffled|sequential", 0, "order of the sequences"},
      {"data.pad_token",
       PLACE(data.pad_token),
       at_least(0),
       "",
       0,
       "token id whose targets do not count in the loss; unset = all count"},
      {"data.holdout",
       PLACE(data.holdout),
       from_below(0, 1),
       "",
       0,
       "part of the stream, at its end, kept for evaluation"},

      {"train.steps",
       PLACE(train.steps),
       count_from(0),
       "",
       0,
       "optimizer updates of the run; 0 = save the initial values and end"},
      {"train.global_batch",
       PLACE(train.global_batch),
       count_from(1),
       "",
       0,
       "sequences per step, whatever the layout"},
      {"train.micro_batch",
       PLACE(train.micro_batch),
       count_from(1),
       "",
       kFree,
       "sequences per data rank and forward; unset = as many as fit max_micro_batch"},
      {"train.max_micro_batch",
       PLACE(train.max_micro_batch),
       count_from(1),
       "",
       kFree,
       "bound of an unset micro_batch"},
      {"train.optimizer", PLACE(train.optimizer), kAny, "adamw|sgd", 0, "update rule"},
      {"train.lr", PLACE(train.lr), above(0), "", 0, "peak learning rate"},
      {"train.warmup",
       PLACE(train.warmup),
       count_from(0),
       "",
       0,
       "steps over which the learning rate rises to its peak"},
      {"train.schedule",
       PLACE(train.lr_schedule),
       kAny,
       "constant|linear|cosine|wsd",
       0,
       "learning rate after the warmup"},
      {"train.min_lr_factor",
       PLACE(train.min_lr_factor),
       Range{0, 1},
       "",
       0,
       "part of the learning rate that is left where the schedule ends"},
      {"train.betas", PLACE(train.betas), from_below(0, 1), "", 0, "of adamw"},
      {"train.eps", PLACE(train.eps), above(0), "", 0, "of adamw"},
      {"train.momentum", PLACE(train.momentum), from_below(0, 1), "", 0, "of sgd"},
      {"train.weight_decay",
       PLACE(train.weight_decay),
       at_least(0),
       "",
       0,
       "decoupled: p -= lr * weight_decay * p"},
      {"train.decay",
       PLACE(train.decay),
       kAny,
       "all|matrices",
       0,
       "parameters that weight decay applies to"},
      {"train.clip",
       PLACE(train.clip),
       at_least(0),
       "",
       0,
       "bound of the global gradient norm; 0 = off"},

      {"eval.every",
       PLACE(eval.every),
       count_from(0),
       "",
       kFree,
       "steps between evaluations on the held-out tail; 0 = never"},
      {"eval.batches",
       PLACE(eval.batches),
       count_from(0),
       "",
       kFree,
       "global batches of an evaluation; 0 = the whole tail"},

      {"precision.param",
       PLACE(precision.param),
       kAny,
       "fp64|fp32|bf16",
       0,
       "dtype of compute: parameters, activations, gradients; bf16 keeps fp32 master copies"},
      {"precision.reduce",
       PLACE(precision.reduce),
       kAny,
       "fp64|fp32|bf16",
       0,
       "dtype in which gradients are accumulated and reduced, at least precision.param; unset = "
       "fp64 for fp64, else fp32"},

      {"checkpoint.every",
       PLACE(checkpoint.every),
       count_from(0),
       "",
       kFree,
       "steps between checkpoints; 0 = never"},
      {"checkpoint.keep", PLACE(checkpoint.keep), count_from(1), "", kFree, "newest ones kept"},
      {"checkpoint.resume",
       PLACE(checkpoint.resume),
       kAny,
       "",
       kFree | kNotEmpty,
       "never | auto (continue an unfinished run) | path of a checkpoint"},

      {"metrics.every", PLACE(metrics.every), count_from(1), "", kFree, "steps between log lines"},
      {"metrics.tensorboard",
       PLACE(metrics.tensorboard),
       kAny,
       "",
       kFree,
       "write event files for TensorBoard into the run folder"},

      {"profile.steps",
       PLACE(profile.steps),
       count_from(1),
       "",
       kFree,
       "first and last step of a trace, one file a rank, for Perfetto or chrome://tracing"},

      {"verify.every",
       PLACE(verify.every),
       count_from(0),
       "",
       kFree,
       "steps between proofs that replicas are equal and the data is split right, also after the "
       "first step; 0 = never"},

      {"record.facts",
       PLACE(record.facts),
       kAny,
       "",
       kFree,
       "write facts.jsonl, from which `yoke compare` judges runs"},
      {"record.states",
       PLACE(record.states),
       count_from(0),
       "",
       kFree,
       "steps whose whole state is saved for `yoke compare`, 0 = the initial one"},

      {"comm.check",
       PLACE(comm.check),
       kAny,
       "off|step|full",
       kFree,
       "how closely ranks compare the collectives that they issue"},
      {"comm.timeout",
       PLACE(comm.timeout),
       Range{0, 1e7, true, false},
       "",
       kFree,
       "seconds after which a collective gives a peer up"},
  };
}

#undef PLACE

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> keys = make_schema();
  return keys;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : schema()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const Key& key : schema()) names.emplace_back(key.name);
  return names;
}

bool is_table(std::string_view name) {
  const std::string prefix = std::string(name) + ".";
  return std::any_of(schema().begin(), schema().end(), [&](const Key& key) {
    return key.name.substr(0, prefix.size()) == prefix;
  });
}

}  // namespace yoke
