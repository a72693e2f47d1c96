#include "sdk/compat/part.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sdk/compat/block_pass.hpp"

namespace yoke::compat {
namespace {

// The whole model, which runs through the callbacks of the contract.
class WholeModel final : public Part {
 public:
  WholeModel(const YokeModel& model,
             const Division& division,
             const YokePlan& plan,
             const YokeHost& host)
      : model_(model),
        plan_(plan),
        host_(host),
        units_(recomputed_units(*model.summary,
                                division.recompute,
                                division.recompute_layers,
                                {0, model.summary->num_blocks})) {}

  const YokeModel& model() const override { return model_; }
  std::unique_ptr<BatchPass> pass(PassHooks hooks) override {
    return std::make_unique<BlockPass>(model_, host_, units_, std::move(hooks));
  }
  bool counts(int64_t) const override { return true; }
  bool is_shared(int64_t) const override { return false; }
  void complete(const FlatLayout&, const at::Tensor&, const std::vector<Range>&) const override {}
  void checkpoint(const YokeCheckpointArgs& args,
                  const mesh::Copies&,
                  const std::function<void(const YokeCheckpointArgs&)>& visit) const override {
    visit(args);
  }
  int64_t activation_bytes() override {
    return compat::activation_bytes(*model_.summary, units_, plan_.micro_batch);
  }
  int64_t message_bytes() override { return 0; }

 private:
  const YokeModel& model_;
  const YokePlan& plan_;
  const YokeHost& host_;
  const std::vector<RecomputedUnit> units_;
};

// Translates between the losses of a batch and those of a StagePass.
class DividedPass final : public BatchPass {
 public:
  DividedPass(const mesh::RankModel& model,
              const mesh::StagePlan& plan,
              const mesh::ModelComms& comms,
              const YokeHost& host,
              PassHooks hooks)
      : pass_(model, plan, comms, host, std::move(hooks)) {}

  RankTotals train(const YokeBatch& batch, Loss loss, int data_ranks) override {
    require_micros(batch);
    std::vector<double> grads;
    for (uint64_t m = 0; m < batch.num_micros; ++m)
      grads.push_back(loss_grad(loss, batch, *batch.micros[m]));
    const auto result = pass_.train(batch, grads);
    RankTotals totals = sum(result);
    if (!pass_.counts_targets()) return totals;
    for (size_t m = 0; m < result.targets.size(); ++m)
      totals.uneven +=
          is_uneven(loss, batch, *batch.micros[m], result.targets[m], data_ranks) ? 1 : 0;
    return totals;
  }
  RankTotals evaluate(const YokeBatch& batch) override {
    require_micros(batch);
    return sum(pass_.evaluate(batch));
  }

 private:
  static RankTotals sum(const mesh::StagePass::Result& result) {
    const auto& targets = result.targets;
    return {result.loss, std::accumulate(targets.begin(), targets.end(), 0.0), 0};
  }

  mesh::StagePass pass_;
};

// The part of a rank of a model that pp, cp or tp divide.
class DividedModel final : public Part {
 public:
  DividedModel(const YokeModel& model,
               const Division& division,
               const mesh::ModelComms& comms,
               const YokePlan& plan,
               const YokeHost& host)
      : comms_(comms),
        host_(host),
        stages_(stage_plan(*model.summary, division, plan.degree[YOKE_PP])),
        part_(model, division.pipeline.stages, division.mesh, comms, host) {
    const int rank = comms.pp_rank();
    const mesh::TensorCuts cuts{division.mesh.sequence_parallel, division.mesh.loss_parallel};
    mesh::StepSpec spec = mesh::compute_steps(stages_, plan.degree[YOKE_PP])[rank];
    spec.micros = static_cast<int>(std::max<int64_t>(1, mesh::micros_of(plan)));
    const auto list = mesh::build_schedule(spec);
    const auto costs = mesh::block_costs(*model.summary, part_.blocks(), spec.pipeline, plan, cuts);
    costs_ = mesh::ActionCosts(spec, list, costs).totals();
  }

  const YokeModel& model() const override { return part_.part(); }
  std::unique_ptr<BatchPass> pass(PassHooks hooks) override {
    return std::make_unique<DividedPass>(part_, stages_, comms_, host_, std::move(hooks));
  }
  bool counts(int64_t param) const override { return part_.counts(param); }
  bool is_shared(int64_t param) const override {
    return part_.partner(param) != mesh::OwnStage::kNoRank;
  }
  void complete(const FlatLayout& layout,
                const at::Tensor& gradients,
                const std::vector<Range>& owned) const override {
    sum_partial(layout, gradients);
    std::vector<Piece> shared;
    for (const Range& range : owned) {
      for (const Piece& piece : layout.pieces(range)) {
        if (is_shared(piece.param)) shared.push_back(piece);
      }
    }
    // Buffers of two ranks may have different orders, so both take the order of the parameters.
    std::stable_sort(shared.begin(), shared.end(), [](const Piece& a, const Piece& b) {
      return std::pair(a.param, a.begin) < std::pair(b.param, b.begin);
    });
    for (const Piece& piece : shared)
      comms_.tied.add_from(gradients.narrow(0, piece.offset, piece.count),
                           part_.partner(piece.param));
  }
  void checkpoint(const YokeCheckpointArgs& args,
                  const mesh::Copies& copies,
                  const std::function<void(const YokeCheckpointArgs&)>& visit) const override {
    part_.checkpoint(args, copies, visit);
  }
  int64_t activation_bytes() override { return costs_.activation_bytes; }
  int64_t message_bytes() override {
    // The costs of the list do not include the gradients of shared parameters.
    for (int64_t p = 0; p < static_cast<int64_t>(part_.summary().num_params); ++p) {
      if (is_shared(p) && part_.summary().params[p]->trainable != 0) return 0;
    }
    return std::max<int64_t>(costs_.pp_bytes, 0);
  }

 private:
  static mesh::StagePlan stage_plan(const YokeModelSummary& model,
                                    const Division& division,
                                    int ranks) {
    mesh::StagePlan plan{division.pipeline, {}};
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<mesh::RecomputedBlocks>& units = plan.recomputed.emplace_back();
      const mesh::Stages& stages = division.pipeline.stages;
      int begin = 0;  // first block of the stage among those of the rank
      for (int s = 0; s < stages.count(); ++s) {
        if (stages.rank_of[s] != rank) continue;
        const int first = stages.first_block[s], end = stages.first_block[s + 1];
        for (const RecomputedUnit& unit :
             recomputed_units(model,
                              division.recompute,
                              division.recompute_layers,
                              {static_cast<uint64_t>(first), static_cast<uint64_t>(end)}))
          units.push_back({begin + static_cast<int>(unit.first) - first,
                           begin + static_cast<int>(unit.last) - first + 1});
        begin += end - first;
      }
    }
    return plan;
  }

  // Sums the gradients that are partial over tp, with one collective for all of them. Like Megatron
  // it includes what this rank does not own, so that all data ranks issue equal collectives.
  void sum_partial(const FlatLayout& layout, const at::Tensor& gradients) const {
    std::vector<at::Tensor> parts;
    for (const Slot& slot : layout.slots()) {
      for (const int64_t p : slot.params) {
        if (part_.is_partial(p))
          parts.push_back(gradients.narrow(0, layout.offset(p), elements(part_.summary(), p)));
      }
    }
    if (parts.empty()) return;
    const at::Tensor all = at::cat(parts);
    comms_.reduce_partial_grads.all_reduce_sum(all).wait();
    int64_t begin = 0;
    for (const at::Tensor& part : parts) {
      part.copy_(all.narrow(0, begin, part.numel()));
      begin += part.numel();
    }
  }

  const mesh::ModelComms& comms_;
  const YokeHost& host_;
  const mesh::StagePlan stages_;
  const mesh::RankModel part_;
  mesh::StepCosts costs_;
};

}  // namespace

std::unique_ptr<Part> make_part(const YokeModel& model,
                                const Division& division,
                                const mesh::ModelComms& comms,
                                const YokePlan& plan,
                                const YokeHost& host) {
  if (plan.degree[YOKE_PP] * plan.degree[YOKE_CP] * plan.degree[YOKE_TP] == 1)
    return std::make_unique<WholeModel>(model, division, plan, host);
  return std::make_unique<DividedModel>(model, division, comms, plan, host);
}

}  // namespace yoke::compat
