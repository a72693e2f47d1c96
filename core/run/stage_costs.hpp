// The costs of each stage of a pipeline, combined from the reports of its ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/comm/world.hpp"

namespace yoke {

// What one rank reports.
struct RankCosts {
  YokeWrapResult wrap{};
  int64_t saved_elements = 0;   // elements of parameters that are saved from this rank
  std::vector<int64_t> params;  // indices of the parameters of which this rank has a part
};
// Returns the report as text, to be sent to other ranks. rank_costs_from_text() is the inverse.
std::string to_text(const RankCosts& costs);
RankCosts rank_costs_from_text(const std::string& text);

// The costs of one coordinate along pp, combined over its ranks. Without a pipeline these are all
// ranks of the run.
struct StageCosts {
  YokeWrapResult worst{};  // report of the rank with the highest memory
  int64_t parameters = 0;  // number of elements; tied ones count for the stage that saves them
  int64_t blocks = 0;      // number of blocks
};

// Returns the costs by coordinate along pp. `ranks` has the reports of all ranks, in rank order.
// The coordinate of a block is not reported, so a block is assigned to the first coordinate that
// holds all of its parameters.
std::vector<StageCosts> costs_of_stages(const std::vector<RankCosts>& ranks,
                                        const Mesh& mesh,
                                        const YokeModelSummary& model);
// The same, from the reports that the ranks exchange. Collective. Without a pipeline, all ranks
// have the same parts, so nothing is exchanged: the only stage has what this rank reports.
std::vector<StageCosts> costs_of_stages(WrappedModel& model,
                                        const YokeModelSummary& summary,
                                        const Mesh& mesh,
                                        World& world);

// Returns the sum of the known byte counts of memory; unknown ones (-1) count as 0.
int64_t total_bytes(const YokeWrapResult& costs);

}  // namespace yoke
