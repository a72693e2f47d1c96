// The configuration of a run as typed fields. schema.cpp maps each key of a run file to its field
// and documents it; the comments here only add what the type does not say.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/value.hpp"
#include "yoke/plan.h"

namespace yoke {

// The parallel degrees. A degree that the user does not set is left unset here; the backend's plan
// chooses it later.
struct Degrees {
  std::optional<int> pp, dp_replicate, dp_shard, cp, tp;

  // The axes and their keys, slowest axis first, in the order of YOKE_PP ... YOKE_TP.
  static constexpr std::array<std::string_view, YOKE_NUM_AXES> kAxes YOKE_AXIS_NAMES;
  static constexpr std::array<std::string_view, YOKE_NUM_AXES> kKeys YOKE_DEGREE_KEYS;

  // Returns the degree of the axis with this index in kAxes.
  std::optional<int>& operator[](size_t axis) {
    const std::array<std::optional<int>*, 5> all{&pp, &dp_replicate, &dp_shard, &cp, &tp};
    return *all.at(axis);
  }
  const std::optional<int>& operator[](size_t axis) const {
    return const_cast<Degrees&>(*this)[axis];
  }

  // Returns the product of the given degrees: the number of ranks that they need. A product
  // above the largest int32_t is returned as that number.
  int32_t product() const {
    std::array<int32_t, YOKE_NUM_AXES> given{};
    for (size_t axis = 0; axis < kAxes.size(); ++axis) given[axis] = (*this)[axis].value_or(0);
    return static_cast<int32_t>(std::min<int64_t>(yoke_degree_product(given.data()), INT32_MAX));
  }
};

// Low-rank adapters (LoRA) of the model; see core/model/adapters.hpp.
struct LoraConfig {
  int64_t rank = 0;             // 0 = no adapters
  std::optional<double> alpha;  // unset = rank
  std::vector<std::string> targets{"q_proj", "v_proj"};
  std::string from;  // folder with adapters of PEFT; "" = new ones
};

struct ModelConfig {
  // auto = that of `from` or `config`, else llama; a family of Yoke, or one that the user's own
  // worker registers.
  std::string family = "auto";
  std::string preset;  // "" = use the dimensions below
  std::string from;    // folder with the weights and config.json; "" = random weights
  std::string config;  // config.json, or its folder, of a model with random weights; "" = none
  // 0 = take the dimension from the preset or the folder.
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab = 0;
  std::optional<bool> tied;
  std::optional<double> rope_theta, norm_eps;
  std::string blocks = "layer";       // layer | half
  std::vector<std::string> freeze{};  // patterns of parameters that are not trained
  LoraConfig lora{};                  // the section [lora]
};

struct DataConfig {
  // Files, folders and patterns; empty = the model family provides its own data.
  std::vector<std::string> path;
  // One weight for each entry of `path`, which is then a source of its own; empty = all entries are
  // one stream.
  std::vector<double> weights;
  std::string format = "auto";  // auto | text | yoke | nanogpt | llmc | npy | megatron | datatrove
  int64_t seq_len = 256;
  std::string order = "shuffled";    // shuffled | sequential | megatron | nanotron
  std::optional<int64_t> pad_token;  // token id whose targets do not count in the loss
  std::string mask = "auto";         // auto | none | required
  std::string documents = "joined";  // joined | separate
  // Token id that ends a document; unset = that of the descriptions of the files.
  std::optional<int64_t> document_end;
  double holdout = 0.05;  // fraction of a stream, at its end, kept for evaluation
  // Only for the order "megatron", instead of `holdout`: shares of training, evaluation and test.
  std::vector<double> split;
};

// The key of lr_schedule is train.schedule.
struct TrainConfig {
  int64_t steps = 100;
  int64_t global_batch = 16;           // sequences per optimizer step
  std::optional<int64_t> micro_batch;  // sequences per data rank and forward pass
  int64_t max_micro_batch = 64;        // upper bound for a micro_batch that is not set
  std::string optimizer = "adamw";     // adamw | adam | lion | muon | sgd
  bool bias_correction = true;         // only for adamw and adam
  double lr = 3e-4;
  int64_t warmup = 0;                    // steps
  std::string lr_schedule = "constant";  // one of lr_schedules()
  double min_lr_factor = 0;              // final learning rate as a fraction of lr
  std::array<double, 2> betas{0.9, 0.95};
  double eps = 1e-8;
  double momentum = 0.0;  // momentum of SGD, decay rate of Muon's moment
  double weight_decay = 0.1;
  std::string decay = "all";   // all | matrices
  double clip = 1.0;           // 0 = off
  bool deterministic = false;  // use only deterministic kernels on a device
  bool tune_products = false;  // measure which algorithm is the fastest for each product
  // Steps in a row that may be skipped because gradients are not finite; unset = 100 with a loss
  // scale, 0 without one.
  std::optional<int64_t> max_skipped;
};

// Details of the learning-rate schedule; see core/run/learning_rate.hpp. Each schedule reads only
// some of them.
struct LrScheduleConfig {
  int64_t first_step = 1;                // number of the first step in the warmup: 0 or 1
  double start_factor = 0;               // factor at the start of the warmup or of the cycle
  std::string warmup_shape = "linear";   // linear | log
  std::optional<int64_t> total_steps{};  // end of the schedule; unset = train.steps
  std::optional<double> cycles{};
  double power = 1;
  std::optional<int64_t> timescale{};    // steps
  std::optional<int64_t> decay_steps{};  // unset = a fifth of the steps
  std::string decay_shape = "linear";    // linear | cosine | sqrt | exponential
  int64_t rise_steps = 2000;
  std::optional<int64_t> fall_steps{};  // unset = rise_steps
  int64_t rise_stairs = 0;
  std::optional<int64_t> fall_stairs{};  // unset = rise_stairs
  int64_t tail_steps = 0;                // 0 = the rate stays at the end of the cycle
  double tail_rate = 0;
  int64_t range_steps = 2000;
  double range_rate = 1;
  bool staircase = false;
};

struct EvalConfig {
  int64_t every = 0;    // steps; 0 = never
  int64_t batches = 0;  // global batches per evaluation; 0 = all of the evaluation data
  // Files, folders and patterns, as in data.path; empty = the held-out tail of the training data.
  std::vector<std::string> path;
};

struct PrecisionConfig {
  std::string param = "fp32";         // fp64 | fp32 | bf16 | fp16
  std::optional<std::string> reduce;  // at least as precise as param; unset = the backend chooses
  std::string product = "param";      // param | fp8
  std::optional<std::string> fp8_recipe;         // tensorwise | rowwise | rowwise_gw_hp
  std::vector<std::string> fp8_skip{"lm_head"};  // matrices that keep plain products
};

// The factor of the loss in fp16 runs; see core/run/loss_scaler.hpp.
struct LossScaleConfig {
  double fixed = 0;                // key loss_scale.static; 0 = dynamic
  std::string rule = "deepspeed";  // deepspeed | fp16_optimizer | grad_scaler
  int64_t initial_power = 16;
  int64_t window = 1000;  // steps
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min = 1;  // 0 = none
};

struct CheckpointConfig {
  int64_t every = 0;             // steps; 0 = never
  int64_t keep = 2;              // number of newest checkpoints to keep
  bool best = false;             // whether to keep the one with the lowest evaluation loss, too
  std::string resume = "never";  // never | auto | path of a checkpoint
};

struct MetricsConfig {
  int64_t every = 10;  // steps
  std::string line = "torchtitan";
  bool tensorboard = true;
};

struct ProfileConfig {
  std::optional<std::array<int64_t, 2>> steps;  // first and last step to trace
};

struct VerifyConfig {
  int64_t every = 100;  // interval in steps; the first step is included; 0 = never
};

// What a run records for `yoke compare`.
struct RecordConfig {
  bool facts = false;           // write facts.jsonl
  std::vector<int64_t> states;  // steps after which the complete state is saved
};

struct CommConfig {
  std::string check = "step";      // off | step | full
  double timeout = 60;             // seconds
  std::string transport = "auto";  // auto | gloo | shm
  // Only for ranks on GPUs.
  std::string nccl_cta_policy = "default";  // default | efficiency | zero
  int64_t nccl_nvls_ctas = 0;               // 0 = NCCL decides
  bool nccl_register = false;
  bool nccl_split = false;
};

struct LaunchConfig {
  double join_timeout = 600;    // seconds
  double elastic_wait = 10;     // seconds
  double lost_after = 2;        // seconds; 0 = never
  bool end_with_parent = true;  // a rank ends with the launcher that started it
};

// A value below [NAME], where NAME is a backend, or "model" for a family that the user registered.
// options.hpp checks it against the options that the backend or the family declares.
struct BackendOption {
  std::string backend, key;
  Value value;         // a boolean, an integer, a float or a string
  std::string origin;  // "configs/novels.toml:12", "command line", "YOKE_MINE_UNIT_BYTES"
  // The text as given on the command line or in a variable; empty for a value of the run file. In
  // such a text, 12 may also mean the string "12".
  std::optional<std::string> raw_text;
  std::string folder{};  // folder of the run file, if the value comes from there; see locate()
};

struct RunConfig {
  std::string parallel_backend;  // name, or absolute path of a .so; default: that of the build
  std::vector<std::string> backend_path;
  Degrees degrees;
  std::string device = "auto";  // cpu | cuda | auto
  uint64_t seed = 1;
  std::string worker;
  std::string other_config = "fill";  // fill | check
  std::string run_dir = "runs/run";
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  LrScheduleConfig lr_schedule;
  EvalConfig eval;
  PrecisionConfig precision;
  LossScaleConfig loss_scale;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  ProfileConfig profile;
  VerifyConfig verify;
  RecordConfig record;
  CommConfig comm;
  LaunchConfig launch;
  std::vector<BackendOption> backend_options;
};

}  // namespace yoke
