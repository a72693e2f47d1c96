#include "core/run/stage_costs.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/run/checkpointing.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// The numbers of a report that are sent to other ranks, in this order.
constexpr int64_t YokeWrapResult::*kSent[] = {&YokeWrapResult::param_bytes,
                                              &YokeWrapResult::grad_bytes,
                                              &YokeWrapResult::optimizer_bytes,
                                              &YokeWrapResult::unsharded_bytes,
                                              &YokeWrapResult::activation_bytes};

RankCosts costs_of_rank(WrappedModel& model, const YokeModelSummary& summary) {
  std::map<std::string, int64_t> index;
  for (uint64_t i = 0; i < summary.num_params; ++i)
    index[std::string(view(summary.params[i]->name))] = static_cast<int64_t>(i);
  RankCosts costs;
  costs.wrap = model.wrap_result();
  std::set<int64_t> params;
  visit_pieces(model, YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
    if (view(piece.kind) != "param") return;
    const auto known = index.find(std::string(view(piece.name)));
    if (known == index.end())
      throw Error(YOKE_INTERNAL,
                  concat("the backend describes a parameter '",
                         view(piece.name),
                         "', which the model does not have"));
    params.insert(known->second);
    if (piece.replica == 0) costs.saved_elements += piece.count;
  });
  costs.params.assign(params.begin(), params.end());
  return costs;
}

}  // namespace

std::string to_text(const RankCosts& costs) {
  std::string text;
  for (const auto member : kSent) text += concat(costs.wrap.*member, " ");
  for (const int64_t bytes : costs.wrap.axis_bytes) text += concat(bytes, " ");
  text += concat(costs.saved_elements);
  for (const int64_t param : costs.params) text += concat(" ", param);
  return text;
}

RankCosts rank_costs_from_text(const std::string& text) {
  std::istringstream in(text);
  RankCosts costs;
  for (const auto member : kSent) in >> costs.wrap.*member;
  for (int64_t& bytes : costs.wrap.axis_bytes) in >> bytes;
  in >> costs.saved_elements;
  for (int64_t param = 0; in >> param;) costs.params.push_back(param);
  return costs;
}

int64_t total_bytes(const YokeWrapResult& costs) {
  int64_t sum = 0;
  for (const auto member : kSent) sum += std::max<int64_t>(costs.*member, 0);
  return sum;
}

std::vector<StageCosts> costs_of_stages(const std::vector<RankCosts>& ranks,
                                        const Mesh& mesh,
                                        const YokeModelSummary& model) {
  std::vector<StageCosts> stages(mesh.degree(YOKE_PP));
  std::vector<std::set<int64_t>> params(stages.size());
  std::vector<bool> seen(stages.size(), false);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int at = mesh.coordinate(static_cast<int32_t>(rank), YOKE_PP);
    StageCosts& stage = stages[at];
    if (!seen[at] || total_bytes(ranks[rank].wrap) > total_bytes(stage.worst))
      stage.worst = ranks[rank].wrap;
    seen[at] = true;
    stage.parameters += ranks[rank].saved_elements;
    params[at].insert(ranks[rank].params.begin(), ranks[rank].params.end());
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    const auto owner = std::find_if(params.begin(), params.end(), [&](const auto& theirs) {
      return std::all_of(block.params, block.params + block.num_params, [&](int64_t p) {
        return theirs.count(p) > 0;
      });
    });
    if (owner != params.end()) ++stages[owner - params.begin()].blocks;
  }
  return stages;
}

std::vector<StageCosts> costs_of_stages(WrappedModel& model,
                                        const YokeModelSummary& summary,
                                        const Mesh& mesh,
                                        World& world) {
  if (mesh.degree(YOKE_PP) == 1) return {{.worst = model.wrap_result()}};
  std::vector<RankCosts> ranks;
  for (const std::string& text : world.gather_texts(to_text(costs_of_rank(model, summary))))
    ranks.push_back(rank_costs_from_text(text));
  return costs_of_stages(ranks, mesh, summary);
}

}  // namespace yoke
