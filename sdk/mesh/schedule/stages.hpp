// How the blocks of a model are divided among the ranks of a pipeline. Pure; no LibTorch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::mesh {

// A stage is a run of consecutive blocks that one rank computes. A rank may have several stages.
enum class StagePlacement : uint8_t {
  kLoop,  // stage s lies on rank s mod p; with p stages, every rank has one
  kVee,   // 2 p stages: down the ranks 0 ... p - 1 and back up p - 1 ... 0
};

// The stages of a model, in the order in which its blocks are executed.
struct Stages {
  std::vector<int> rank_of;      // rank along pp that computes the stage
  std::vector<int> first_block;  // first block of each stage, and at the end the number of blocks

  int count() const { return static_cast<int>(rank_of.size()); }
  // Returns the blocks of a rank, as ascending indices into the blocks of the model.
  std::vector<int> blocks_of(int rank) const;
};

// Returns the rank of each of the ranks * chunks stages.
std::vector<int> place_stages(StagePlacement placement, int ranks, int chunks);

// Cuts the blocks into one stage for each entry of rank_of, none of them empty. Minimises the work
// of the rank that has the most, and then the differences between the stages. If ranks have several
// stages, this is a local search, which may miss the best cut. work: cost of each block, in any
// unit; at least as many as there are stages.
Stages cut_by_work(const std::vector<int>& rank_of, const std::vector<double>& work);

// Cuts the blocks into stages of the given numbers of blocks. sizes: as many as there are stages,
// each at least 1; their sum is the number of blocks.
Stages cut_by_sizes(const std::vector<int>& rank_of, const std::vector<int>& sizes);

// Returns how much work the most loaded rank has, compared with the mean of all ranks; 1 = even.
double load_of_worst_rank(const Stages& stages, const std::vector<double>& work);

// Returns, for each parameter, the ranks along pp whose blocks use it.
std::vector<std::set<int>> ranks_of_params(const YokeModelSummary& model, const Stages& stages);
// Returns the parameter that blocks on the most ranks use, and the number of these ranks.
std::pair<int64_t, int> most_shared_parameter(const YokeModelSummary& model, const Stages& stages);

// A stage, as the rank that computes it sees it.
struct OwnStage {
  int index = 0;  // among all stages
  int first = 0;  // its blocks are [first, end), counted among the blocks of this rank
  int end = 0;
  // Ranks along pp: this one, and those that compute the stages before and after it; kNoRank at the
  // ends of the model.
  int rank = 0;
  int from = kNoRank;
  int to = kNoRank;

  static constexpr int kNoRank = -1;

  // Return true if the input comes from another rank, or the output goes to another rank.
  bool receives() const { return from != kNoRank && from != rank; }
  bool sends() const { return to != kNoRank && to != rank; }
};

// Returns the stages of a rank in ascending order.
std::vector<OwnStage> own_stages(const Stages& stages, int rank);
// Returns the position in `own` of the stage with this index; own.size() if the rank has no such
// stage.
size_t position_of(int stage, const std::vector<OwnStage>& own);

}  // namespace yoke::mesh
