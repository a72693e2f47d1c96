// Trains the tiny model through the plugin's table on ranks that are threads, and with a plain
// loop.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/world.hpp"
#include "tests/unit/ptd/tiny_model.hpp"
#include "yoke/error.hpp"

namespace yoke::ptd::testing {

struct Job {
  TinyModel model;
  int replicas = 1, shards = 1;
  int64_t global_batch = 8;
  int accumulation = 1;  // micro-batches per data rank
  int64_t first_step = 1, steps = 20;
  double lr = 3e-3;
  int32_t optimizer = YOKE_ADAMW;
  double momentum = 0, clip = 0.05;      // which every step of the tiny model exceeds
  std::optional<at::ScalarType> reduce;  // unset: fp32, or fp64 for fp64
  bool stream = false;                   // the host has one, as on a device
  std::map<std::string, std::string> options{{"unit_bytes", "600"}};  // several units

  int world() const { return replicas * shards; }
};

// A whole tensor of the state, by "kind name".
using State = std::map<std::string, at::Tensor>;

struct Outcome {
  std::vector<double> loss, grad_norm;      // per step; loss is the mean
  State state;                              // after the last step, put together from all ranks
  YokeWrapResult wrapped{};                 // of rank 0
  std::map<std::string, CommCount> counts;  // of rank 0, all steps
  double eval_loss = 0;                     // of the next global batch, before state was taken
};

// start: state to load before the first step. Throws what the first failing rank threw.
Outcome train(const Job& job, const State* start = nullptr);
Outcome train_plain(const Job& job);

// Runs body on one thread per rank, in a world of that mesh; rethrows the first rank's exception.
struct Rank {
  World& world;
  const YokeHost& host;
};
void on_ranks(const yoke::Mesh& mesh, const std::function<void(const Rank&)>& body);

// One data rank's micro-batches of the global batch that starts at a sample.
class TinyBatch {
 public:
  TinyBatch(const Job& job, int64_t first_sample, int data_rank);
  TinyBatch(const TinyBatch&) = delete;
  const YokeBatch& get() const { return batch_; }
  std::vector<TinySamples>& micros() { return micros_; }

 private:
  std::vector<TinySamples> micros_;
  std::vector<std::vector<TensorView>> views_;
  std::vector<std::vector<YokeInput>> inputs_;
  std::vector<YokeMicroBatch> contract_;
  std::vector<const YokeMicroBatch*> pointers_;
  YokeBatch batch_{};
};

// A value in each option, as the host passes them.
struct OptionValues {
  explicit OptionValues(const std::map<std::string, std::string>& set,
                        const std::vector<std::string>& given = {});
  std::vector<YokeOption> values;

 private:
  std::vector<std::string> texts_;
};

// init and wrap_model through the plugin's table; destroyed in order. Throws Error.
class Session {
 public:
  Session(const Job& job, const YokeHost& host, const YokeModel& model);
  Session(const YokePlan& plan,
          const YokeOptimizer& optimizer,
          const std::map<std::string, std::string>& options,
          const YokeHost& host,
          const YokeModel& model);
  ~Session();
  Session(const Session&) = delete;

  YokeStepResult step(const YokeBatch& batch, int64_t step, double lr, uint32_t flags = 0);
  void checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit);

  YokeWrapResult wrapped{};

 private:
  OptionValues options_;
  YokeOptimizer optimizer_;
  YokePlan plan_;
  YokeContext* context_ = nullptr;
};

// plan of the plugin for this job; the texts of all refusals, "note: ..." for notes.
std::vector<std::string> ask_plan(const Job& job,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given = {});
std::vector<std::string> ask_plan(const YokeModelSummary& model,
                                  const std::map<std::string, std::string>& options,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given = {});

YokeOptimizer optimizer_of(const Job& job);
YokePlan plan_of(const Job& job, const YokeOptimizer& optimizer);

}  // namespace yoke::ptd::testing
