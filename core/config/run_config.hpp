// The run, typed: what a run file, YOKE_* variables and the command line together say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/value.hpp"

namespace yoke {

// Degrees stay unset unless somebody gives them; the backend's plan fills them.
struct Degrees {
  std::optional<int> pp, dp_replicate, dp_shard, cp, tp;

  // Slowest axis first, in the order of YOKE_PP ... YOKE_TP.
  static constexpr std::array<std::string_view, 5> kAxes{
      "pp", "dp_replicate", "dp_shard", "cp", "tp"};
  static constexpr std::array<std::string_view, 5> kKeys{
      "pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"};

  // By index of kAxes.
  std::optional<int>& operator[](size_t axis) {
    const std::array<std::optional<int>*, 5> all{&pp, &dp_replicate, &dp_shard, &cp, &tp};
    return *all.at(axis);
  }
  const std::optional<int>& operator[](size_t axis) const {
    return const_cast<Degrees&>(*this)[axis];
  }
};

struct ModelConfig {
  std::string family = "llama";  // or one that a worker of the user's own registers
  std::string preset;            // "" = the dimensions below
  std::string from;              // folder of weights and their config.json; "" = from the seed
  // 0 = from the preset or the folder
  int64_t dim = 0, layers = 0, heads = 0, kv_heads = 0, ffn_dim = 0, vocab = 0;
  std::optional<bool> tied;
  std::optional<double> rope_theta, norm_eps;
};

struct DataConfig {
  std::string path;             // "" = the family has data of its own
  std::string format = "auto";  // | text | yoke | nanogpt | llmc
  int64_t seq_len = 256;
  std::string order = "shuffled";    // | sequential
  std::optional<int64_t> pad_token;  // id whose targets do not count
  double holdout = 0.05;             // tail of the stream kept for evaluation
};

struct TrainConfig {
  int64_t steps = 100;
  int64_t global_batch = 16;           // sequences per optimizer step
  std::optional<int64_t> micro_batch;  // sequences per data rank and forward
  int64_t max_micro_batch = 64;        // bound of an unset micro_batch
  std::string optimizer = "adamw";     // | sgd
  double lr = 3e-4;
  int64_t warmup = 0;                    // steps
  std::string lr_schedule = "constant";  // train.schedule: | linear | cosine | wsd
  double min_lr_factor = 0;              // of lr, where the schedule ends
  std::array<double, 2> betas{0.9, 0.95};
  double eps = 1e-8;
  double momentum = 0.0;  // of sgd
  double weight_decay = 0.1;
  std::string decay = "all";  // | matrices
  double clip = 1.0;          // 0 = off
};

struct EvalConfig {
  int64_t every = 0;    // 0 = never
  int64_t batches = 0;  // global batches of the held-out tail; 0 = all
};

struct PrecisionConfig {
  std::string param = "fp32";         // fp64 | fp32 | bf16
  std::optional<std::string> reduce;  // at least param; unset = the backend chooses
};

struct CheckpointConfig {
  int64_t every = 0;
  int64_t keep = 2;
  std::string resume = "never";  // auto | a path
};

struct MetricsConfig {
  int64_t every = 10;
  bool tensorboard = true;
};

struct ProfileConfig {
  std::optional<std::array<int64_t, 2>> steps;  // the first and the last
};

struct VerifyConfig {
  int64_t every = 100;  // also after the first step; 0 = never
};

// What `yoke compare` asks of a run.
struct RecordConfig {
  bool facts = false;
  std::vector<int64_t> states;  // steps after which the whole state is saved
};

struct CommConfig {
  std::string check = "step";  // off | step | full
  double timeout = 60;         // seconds
};

// A value below [NAME], where NAME is a backend, or "model" for a family that the user registered.
// options.hpp checks it against the options that the backend or the family declares.
struct BackendOption {
  std::string backend, key;
  Value value;         // a boolean, an integer, a float or a string
  std::string origin;  // "configs/novels.toml:12", "command line", "YOKE_MINE_UNIT_BYTES"
  // Set if the value comes from the command line or a variable: the text as it was given. There,
  // 12 may also mean the string "12".
  std::optional<std::string> raw_text;
};

struct RunConfig {
  std::string parallel_backend;  // a name, or an absolute path to a .so; has no default
  std::vector<std::string> backend_path;
  Degrees degrees;
  std::string device = "auto";  // cpu | cuda | auto
  uint64_t seed = 1;
  std::string worker;
  std::string run_dir = "runs/run";
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  PrecisionConfig precision;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  ProfileConfig profile;
  VerifyConfig verify;
  RecordConfig record;
  CommConfig comm;
  std::vector<BackendOption> backend_options;
};

}  // namespace yoke
