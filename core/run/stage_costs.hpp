// What the stages of a pipeline cost, put together from what the backend reports on each rank.
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

// What the ranks with the same coordinate along pp have together. Without a pipeline these are all
// ranks of the run.
struct StageCosts {
  YokeWrapResult worst{};  // what the rank that needs the most memory reports
  int64_t parameters = 0;  // elements; tied ones count for the stage that saves them
  int64_t blocks = 0;
};

// Returns the costs by coordinate along pp. `ranks` has the reports of all ranks, in rank order. A
// block belongs to the first coordinate that has all of its parameters: what else the backend does
// with a block is not reported.
std::vector<StageCosts> costs_of_stages(const std::vector<RankCosts>& ranks,
                                        const Mesh& mesh,
                                        const YokeModelSummary& model);
// The same, from the reports that the ranks exchange. Collective. Without a pipeline, all ranks
// have the same parts, so nothing is exchanged: the only stage has what this rank reports.
std::vector<StageCosts> costs_of_stages(WrappedModel& model,
                                        const YokeModelSummary& summary,
                                        const Mesh& mesh,
                                        World& world);

// Returns the bytes that the rank expects to use, without what it does not know.
int64_t total_bytes(const YokeWrapResult& costs);

}  // namespace yoke
