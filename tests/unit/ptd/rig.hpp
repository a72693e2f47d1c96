// Trains the tiny model through the plugin's table on ranks that are threads, and with a plain loop.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
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
  double momentum = 0, clip = 1.0;
  std::map<std::string, std::string> options{{"unit_bytes", "600"}};  // several units

  int world() const { return replicas * shards; }
};

// A whole tensor of the state, by "kind name".
using State = std::map<std::string, at::Tensor>;

struct Outcome {
  std::vector<double> loss, grad_norm;  // per step; loss is the mean
  State state;                          // after the last step, put together from all ranks
  YokeWrapResult wrapped{};             // of rank 0
  std::map<std::string, CommCount> counts;  // of rank 0, all steps
  double eval_loss = 0;                 // of the next global batch, before state was taken
};

// start: state to load before the first step. Throws what the first failing rank threw.
Outcome train(const Job& job, const State* start = nullptr);
Outcome train_plain(const Job& job);

// Runs body on one thread per rank, in a world of that mesh; rethrows the first rank's exception.
struct Rank {
  CommWorld& world;
  const YokeHost& host;
};
void on_ranks(int replicas, int shards, const std::function<void(const Rank&)>& body);

// plan of the plugin for this job; the texts of all refusals, "note: ..." for notes.
std::vector<std::string> ask_plan(const Job& job, YokePlan& plan, const std::vector<std::string>& given = {});

// A value in each option, as the host passes them.
struct OptionValues {
  explicit OptionValues(const std::map<std::string, std::string>& set, const std::vector<std::string>& given = {});
  std::vector<YokeOption> values;

 private:
  std::vector<std::string> texts_;
};

YokeOptimizer optimizer_of(const Job& job);
YokePlan plan_of(const Job& job, const YokeOptimizer& optimizer);

}  // namespace yoke::ptd::testing
