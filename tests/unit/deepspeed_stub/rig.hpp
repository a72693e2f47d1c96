// Trains the mock model through a backend's table of functions, with one thread per rank. The mock
// model does not need LibTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/mock_host.hpp"
#include "tests/support/mock_loop.hpp"

namespace yoke::deepspeed_stub::testing {

using yoke::testing::MockRun;
using yoke::testing::MockTrace;

const ParallelBackend& plugin();

// A whole tensor of the state.
struct Tensor {
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::vector<char> bytes;
  bool operator==(const Tensor&) const = default;
};
using State = std::map<std::string, Tensor>;  // key: "name/kind"

struct Job {
  MockRun run{.name = "adamw"};
  int32_t reduce = 0;  // dtype of the reduction; 0 = fp32 or fp64
  int ranks = 1;
  std::map<std::string, std::string> options;  // options of the backend
  int first_step = 1, last_step = MockRun::kSteps;
  const State* start = nullptr;  // state to load before the first step
  const ParallelBackend* backend = &plugin();
  bool cuda = false;  // whether to run on an EmulatedCuda

  Job at_stage(int stage) const {
    Job job = *this;
    job.options["zero_stage"] = std::to_string(stage);
    return job;
  }
  Job on_cuda() const {
    Job job = *this;
    job.cuda = true;
    return job;
  }
  bool offloads() const {
    return options.count("offload_optimizer_device") + options.count("offload_param_device") > 0;
  }
  Job on(int n) const {
    Job job = *this;
    job.ranks = n;
    return job;
  }
};

struct Outcome {
  MockTrace trace;
  State state;                           // final state, assembled from all ranks
  YokeWrapResult wrapped{};              // result of wrap_model on rank 0
  std::vector<std::string> log;          // lines that the ranks logged, in the order of the ranks
  std::map<std::string, int64_t> bytes;  // MockWorld::bytes after all steps
  std::vector<int64_t> waits;  // waits of rank 0 for its EmulatedCuda, one number per step
};
// Trains and returns the result. Fails the test unless the pieces with replica 0 cover every tensor
// exactly once over all ranks, and other replicas are bit-equal to them. Throws the exception of
// the first rank that fails.
Outcome train(const Job& job);

// Returns options with buckets, thresholds and limits that are small enough to matter for the tiny
// model.
std::map<std::string, std::string> small_buckets();

}  // namespace yoke::deepspeed_stub::testing
