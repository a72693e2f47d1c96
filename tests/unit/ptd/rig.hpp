// Trains the tiny model in two ways: through the plugin's function table, on ranks that are
// threads, and with a plain loop.
#pragma once

#include <deque>
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
  int pp = 1, replicas = 1, shards = 1;
  int64_t global_batch = 8;
  int accumulation = 1;  // micro-batches per data rank
  int64_t first_step = 1, steps = 20;
  double lr = 3e-3;
  int32_t optimizer = YOKE_ADAMW;
  double momentum = 0, clip = 0.05;      // clip is below the gradient norm of every step
  std::optional<at::ScalarType> reduce;  // unset: fp64 for an fp64 model, else fp32
  bool stream = false;                   // true: the host has a stream, as on a device
  bool kernels = false;    // true: the host has the kernels of a device; requires an EmulatedCuda
  double loss_scale = 0;   // factor of the loss; 0 = none
  bool overflows = false;  // true: before each step, the same step is made with an infinite loss
  std::map<std::string, std::string> options{
      {"unit_bytes", "600"}};  // small enough for several units

  std::vector<std::string> given;  // options that count as set by the user

  int data_ranks() const { return replicas * shards; }
  int world() const { return pp * data_ranks(); }
};

// The state as whole tensors. Keys are "kind name".
using State = std::map<std::string, at::Tensor>;

struct Outcome {
  std::vector<double> loss, grad_norm;      // one per step; the loss is the mean
  State state;                              // state after the last step, assembled from all ranks
  YokeWrapResult wrapped{};                 // result that rank 0 reported
  std::map<std::string, CommCount> counts;  // collectives of rank 0 in all steps
  double eval_loss = 0;                     // loss of the next global batch, after training
};

// Return the outcome of training. start: state to load before the first step. train() rethrows the
// exception of the first rank that failed.
Outcome train(const Job& job, const State* start = nullptr);
Outcome train_plain(const Job& job);

class Session;
// Returns the state of a session of one rank.
State state_of(Session& session);

struct Rank {
  World& world;
  const YokeHost& host;
};
// Runs body on one thread per rank, in a world with the shape of `mesh`. Rethrows the exception of
// the first rank that failed.
void on_ranks(const yoke::Mesh& mesh, const std::function<void(const Rank&)>& body);

// Returns a host that also provides the kernels of a device. They run on the EmulatedCuda that must
// exist.
YokeHost with_kernels(YokeHost host);

// The micro-batches of one data rank in the global batch that starts at first_sample.
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

// A value for every option, as the host passes them.
struct OptionValues {
  explicit OptionValues(const std::map<std::string, std::string>& set,
                        const std::vector<std::string>& given = {});
  std::vector<YokeOption> values;

 private:
  std::vector<std::string> texts_;
  std::deque<std::string> contents_;  // contents of files
};

// Calls the plugin's init and wrap_model, and destroys what they made in the right order.
// Throws Error.
class Session {
 public:
  Session(const Job& job, const YokeHost& host, const YokeModel& model);
  Session(const YokePlan& plan,
          const YokeOptimizer& optimizer,
          const std::map<std::string, std::string>& options,
          const YokeHost& host,
          const YokeModel& model,
          const std::vector<std::string>& given = {});
  ~Session();
  Session(const Session&) = delete;

  YokeStepResult step(
      const YokeBatch& batch, int64_t step, double lr, uint32_t flags = 0, double loss_scale = 0);
  void checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit);

  YokeWrapResult wrapped{};

 private:
  OptionValues options_;
  YokeOptimizer optimizer_;
  YokePlan plan_;
  YokeContext* context_ = nullptr;
};

// Calls the plugin's plan function. Returns the texts of all refusals, and "note: ..." for notes.
// extensions: chain of extensions of the arguments; may be NULL.
std::vector<std::string> ask_plan(const Job& job,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given = {});
std::vector<std::string> ask_plan(const YokeModelSummary& model,
                                  const std::map<std::string, std::string>& options,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given = {},
                                  const YokeHeader* extensions = nullptr);

YokeOptimizer optimizer_of(const Job& job);
YokePlan plan_of(const Job& job, const YokeOptimizer& optimizer);

}  // namespace yoke::ptd::testing
