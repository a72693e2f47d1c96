// Pipelines over a chain of equal blocks, for tests of lists.
#pragma once

#include <string>
#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh::testing {

// A pipeline of p ranks, and what every rank knows about its step.
struct Case {
  PipelineKind kind;
  int ranks, chunks, micros;

  std::string text() const {
    return std::string(info_of(kind).name) + " p " + std::to_string(ranks) + " v " +
           std::to_string(chunks) + " m " + std::to_string(micros);
  }
};

inline Stages stages_of(const Case& c, const std::vector<double>& work) {
  return cut_by_work(place_stages(info_of(c.kind).placement, c.ranks, c.chunks), work);
}

// Returns the specs of all ranks for a model in which every block has one unit of its own.
inline std::vector<StepSpec> chain(const Case& c, int blocks_of_stage = 1, int first_trained = 0) {
  const int blocks = c.ranks * c.chunks * blocks_of_stage;
  const Stages stages = stages_of(c, std::vector<double>(blocks, 1));
  std::vector<StepSpec> specs;
  for (int rank = 0; rank < c.ranks; ++rank) {
    StepSpec spec;
    for (const int block : stages.blocks_of(rank)) {
      const bool trainable = block >= first_trained;
      spec.blocks.push_back({static_cast<int>(spec.units.size())});
      spec.units.push_back({trainable, 128, trainable ? 128 : 0});
    }
    spec.micros = c.micros;
    spec.reshard_after_forward = false;
    spec.accumulate = Accumulate::kUnsharded;
    spec.pipeline = pipeline_spec(c.kind, stages, rank, first_trained);
    specs.push_back(std::move(spec));
  }
  return specs;
}

inline std::vector<std::vector<Action>> lists_of(const std::vector<StepSpec>& specs) {
  std::vector<std::vector<Action>> lists;
  for (const StepSpec& spec : specs) {
    for (int i = 0; i < spec.shards * spec.replicas; ++i) lists.push_back(build_schedule(spec));
  }
  return lists;
}

}  // namespace yoke::mesh::testing
