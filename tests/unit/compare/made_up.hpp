// Made-up results of runs, for tests.
#pragma once

#include <cmath>
#include <string>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Returns a run of n steps whose losses fall from 7, all of them multiplied by `factor`.
inline RunFacts made_up_run(int64_t n, double factor = 1, const std::string& dtype = "fp32") {
  RunFacts run;
  run.dir = "/nowhere";
  run.backend = "ox";
  run.version = "1";
  run.dtype = dtype;
  run.degrees = {{"dp_degree", 2}, {"dp_shards", 1}};
  run.data_ranks = 2;
  run.blocks = 4;
  run.parameters = 1000;
  run.params = {"a", "b"};
  run.start.hashes = {1, 2};
  for (int64_t step = 1; step <= n; ++step) {
    StepFacts s;
    s.step = step;
    s.loss = factor * 7 / std::sqrt(static_cast<double>(step));
    s.grad_norm = factor * 2;
    s.seconds = 0.01;
    s.tokens = NAN;
    s.memory = 1 << 20;
    s.hashes = {static_cast<uint64_t>(step), factor == 1 ? 3u : 4u};
    s.traffic = {{"dp_replicate", "all_reduce", "fp32", 1, 4000, 0.001}};
    run.steps.push_back(s);
  }
  return run;
}

inline CaseResult made_up_case(const std::string& name,
                               std::vector<double> step_ms,
                               int64_t steps = 5) {
  CaseResult c;
  c.spec.name = name;
  for (size_t i = 0; i < step_ms.size(); ++i) c.runs.push_back(made_up_run(steps));
  c.step_ms = std::move(step_ms);
  c.agreement.level = Level::kL1;
  return c;
}

inline Comparison five_cases(int64_t steps) {
  Comparison c;
  c.plan.config = "run <1>.toml";
  c.plan.steps = steps;
  c.plan.tokens_per_step = 512;
  c.reference = made_up_case("reference", {10}, steps);
  for (const char* name : {"a", "b", "c", "d", "e"})
    c.cases.push_back(made_up_case(name, {10, 11, 12}, steps));
  return c;
}

// Returns how often `part` occurs in `text`.
inline size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

inline Comparison two_cases(std::vector<double> first, std::vector<double> second) {
  Comparison c;
  c.plan.repeats = static_cast<int64_t>(first.size());
  c.cases = {made_up_case("ox", std::move(first)), made_up_case("mule", std::move(second))};
  return c;
}

}  // namespace yoke::compare
