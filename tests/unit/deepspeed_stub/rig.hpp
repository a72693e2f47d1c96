// Trains the mock model, which is not LibTorch, through a backend's table on ranks that are
// threads.
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

// A whole tensor of the state, by "name/kind".
struct Tensor {
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::vector<char> bytes;
  bool operator==(const Tensor&) const = default;
};
using State = std::map<std::string, Tensor>;

struct Job {
  MockRun run{.name = "adamw"};
  int ranks = 1;
  std::map<std::string, std::string> options;  // of the backend
  int first_step = 1, last_step = MockRun::kSteps;
  const State* start = nullptr;  // loaded before the first step
  const ParallelBackend* backend = &plugin();
  bool cuda = false;  // on an EmulatedCuda

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
  Job on(int n) const {
    Job job = *this;
    job.ranks = n;
    return job;
  }
};

struct Outcome {
  MockTrace trace;
  State state;                           // at the end, put together from all ranks
  YokeWrapResult wrapped{};              // of rank 0
  std::map<std::string, int64_t> bytes;  // MockWorld's, of all steps
  std::vector<int64_t> waits;            // of rank 0 for its EmulatedCuda, by step
};
// Fails the test unless the pieces with replica 0 of all ranks tile every tensor, and replicas are
// bit-equal. Throws what the first failing rank threw.
Outcome train(const Job& job);

// Every bucket, threshold and limit so small that a model of a few parameters feels it.
std::map<std::string, std::string> small_buckets();

}  // namespace yoke::deepspeed_stub::testing
