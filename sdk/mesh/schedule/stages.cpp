// The step of a pipeline takes as long as its most loaded rank, so blocks are cut by their cost and
// not by their number: an output layer over a large vocabulary costs as much as several
// transformer layers. With one stage on each rank, dynamic programming over the cut positions finds
// the best cut. If a rank has several stages, its load is a sum over cuts that are far apart; then
// single cuts are moved by one block for as long as that makes the result better.
#include "sdk/mesh/schedule/stages.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace yoke::mesh {
namespace {

// What a cut is judged by, the most important first: the load of the most loaded rank, and the sum
// of the squares of the stages' costs, which is least if all are equal.
using Score = std::pair<double, double>;

class Cutter {
 public:
  Cutter(const std::vector<int>& rank_of, const std::vector<double>& work)
      : rank_of_(rank_of),
        ranks_(*std::max_element(rank_of.begin(), rank_of.end()) + 1),
        sums_(work.size() + 1, 0) {
    std::partial_sum(work.begin(), work.end(), sums_.begin() + 1);
  }

  std::vector<int> best() const {
    std::vector<int> cuts = most_even_stages();
    Score now = score(cuts);
    for (bool better = true; better;) {
      better = false;
      for (size_t c = 1; c + 1 < cuts.size(); ++c) {
        for (const int by : {-1, 1}) {
          std::vector<int> moved = cuts;
          moved[c] += by;
          if (moved[c] == moved[c - 1] || moved[c] == moved[c + 1]) continue;
          if (const Score s = score(moved); s < now) {
            cuts = std::move(moved);
            now = s;
            better = true;
          }
        }
      }
    }
    return cuts;
  }

  Score score(const std::vector<int>& cuts) const {
    std::vector<double> load(ranks_, 0);
    double squares = 0;
    for (size_t s = 0; s < rank_of_.size(); ++s) {
      const double work = sums_[cuts[s + 1]] - sums_[cuts[s]];
      load[rank_of_[s]] += work;
      squares += work * work;
    }
    return {*std::max_element(load.begin(), load.end()), squares};
  }

 private:
  // Returns the cut whose most expensive stage is as cheap as possible. best[s][b] is the cost of
  // the most expensive of the first s stages if they have the first b blocks.
  std::vector<int> most_even_stages() const {
    const size_t stages = rank_of_.size(), blocks = sums_.size() - 1;
    std::vector<std::vector<Score>> best(stages + 1,
                                         std::vector<Score>(blocks + 1, {sums_.back() + 1, 0}));
    std::vector<std::vector<int>> from(stages + 1, std::vector<int>(blocks + 1, 0));
    best[0][0] = {0, 0};
    for (size_t s = 1; s <= stages; ++s) {
      for (size_t b = s; b + (stages - s) <= blocks; ++b) {
        best[s][b] = {sums_.back() + 1, 0};
        for (size_t a = s - 1; a < b; ++a) {
          const double work = sums_[b] - sums_[a];
          const Score here{std::max(best[s - 1][a].first, work),
                           best[s - 1][a].second + work * work};
          if (here < best[s][b]) {
            best[s][b] = here;
            from[s][b] = static_cast<int>(a);
          }
        }
      }
    }
    std::vector<int> cuts(stages + 1, static_cast<int>(blocks));
    for (size_t s = stages; s > 0; --s) cuts[s - 1] = from[s][cuts[s]];
    return cuts;
  }

  const std::vector<int>& rank_of_;
  int ranks_;
  std::vector<double> sums_;  // sums_[b]: work of the first b blocks
};

}  // namespace

std::vector<int> Stages::blocks_of(int rank) const {
  std::vector<int> blocks;
  for (int s = 0; s < count(); ++s) {
    if (rank_of[s] != rank) continue;
    for (int b = first_block[s]; b < first_block[s + 1]; ++b) blocks.push_back(b);
  }
  return blocks;
}

std::vector<int> place_stages(StagePlacement placement, int ranks, int chunks) {
  std::vector<int> rank_of;
  for (int s = 0; s < ranks * chunks; ++s) {
    const bool down = placement == StagePlacement::kLoop || s < ranks;
    rank_of.push_back(down ? s % ranks : 2 * ranks - 1 - s);
  }
  return rank_of;
}

Stages cut_by_work(const std::vector<int>& rank_of, const std::vector<double>& work) {
  return {rank_of, Cutter(rank_of, work).best()};
}

Stages cut_by_sizes(const std::vector<int>& rank_of, const std::vector<int>& sizes) {
  std::vector<int> first(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), first.begin() + 1);
  return {rank_of, first};
}

double load_of_worst_rank(const Stages& stages, const std::vector<double>& work) {
  const double total = std::accumulate(work.begin(), work.end(), 0.0);
  const int ranks = *std::max_element(stages.rank_of.begin(), stages.rank_of.end()) + 1;
  if (total == 0) return 1;
  return Cutter(stages.rank_of, work).score(stages.first_block).first * ranks / total;
}

std::vector<std::set<int>> ranks_of_params(const YokeModelSummary& model, const Stages& stages) {
  std::vector<std::set<int>> ranks(model.num_params);
  for (int s = 0; s < stages.count(); ++s) {
    for (int b = stages.first_block[s]; b < stages.first_block[s + 1]; ++b) {
      const YokeBlock& block = *model.blocks[b];
      for (uint64_t i = 0; i < block.num_params; ++i)
        ranks[block.params[i]].insert(stages.rank_of[s]);
    }
  }
  return ranks;
}

std::pair<int64_t, int> most_shared_parameter(const YokeModelSummary& model, const Stages& stages) {
  const std::vector<std::set<int>> ranks = ranks_of_params(model, stages);
  std::pair<int64_t, int> most{0, 0};
  for (size_t p = 0; p < ranks.size(); ++p) {
    if (static_cast<int>(ranks[p].size()) > most.second)
      most = {static_cast<int64_t>(p), static_cast<int>(ranks[p].size())};
  }
  return most;
}

std::vector<OwnStage> own_stages(const Stages& stages, int rank) {
  std::vector<OwnStage> own;
  int blocks = 0;
  for (int s = 0; s < stages.count(); ++s) {
    if (stages.rank_of[s] != rank) continue;
    const int size = stages.first_block[s + 1] - stages.first_block[s];
    own.push_back({s,
                   blocks,
                   blocks + size,
                   rank,
                   s == 0 ? OwnStage::kNoRank : stages.rank_of[s - 1],
                   s + 1 == stages.count() ? OwnStage::kNoRank : stages.rank_of[s + 1]});
    blocks += size;
  }
  return own;
}

size_t position_of(int stage, const std::vector<OwnStage>& own) {
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const OwnStage& s) { return s.index == stage; });
  return static_cast<size_t>(found - own.begin());
}

}  // namespace yoke::mesh
