// An engine with flat buffers knows only sizes and names of parameters, so it can train a part of a
// model without knowing that it is one. What crosses the border of the part is translated here:
// initial values and pieces of checkpoints into runs of elements of whole parameters, and memory
// into the storage of a parameter's local tensor. Teaching each engine about cuts and stages
// instead would repeat this in every one of them.
#include "sdk/mesh/part/rank_model.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "sdk/mesh/executor/flat_buffer.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

const TorchModel& require_torch(const YokeModel& model) {
  const TorchModel* torch = torch_model(model);
  if (torch != nullptr) return *torch;
  throw Error(YOKE_FAILED_PRECONDITION,
              concat("tp, cp and pp need the model as LibTorch objects, which a host attaches only "
                     "if it was built with the same LibTorch (",
                     kTorchTag,
                     "); this host attached none"));
}

}  // namespace

RankModel::RankModel(const YokeModel& model,
                     const Stages& stages,
                     const MeshOptions& options,
                     const ModelComms& comms,
                     const YokeHost& host)
    : model_(model),
      torch_(require_torch(model)),
      comms_(comms),
      host_(host),
      sequence_parallel_(options.sequence_parallel),
      cuts_(param_cuts(*model.summary, comms.tp.rank(), comms.tp.size())),
      blocks_(stages.blocks_of(comms.pp_rank())),
      on_mesh_(ModelOnMesh::make(*model.summary, *torch_.params, options, comms, host)) {
  add_params(stages);
  add_blocks();
  summary_.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  summary_.params = param_pointers_.data();
  summary_.num_params = param_pointers_.size();
  summary_.blocks = block_pointers_.data();
  summary_.num_blocks = block_pointers_.size();
  summary_.seq_len = model.summary->seq_len;
  part_.header = YOKE_HEADER(YokeModel, YOKE_ID_MODEL);
  part_.summary = &summary_;
  part_.ctx = this;
  part_.init_param =
      [](void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
        return guard(err, [&] { static_cast<RankModel*>(ctx)->fill(param, begin, count, dst); });
      };
  part_.bind_param = [](void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
    return guard(err, [&] {
      char* const data =
          view == nullptr ? nullptr : static_cast<char*>(view->data) + view->byte_offset;
      bind_storage(memory_of(static_cast<RankModel*>(ctx)->leaf(param)), data);
    });
  };
}

// Adds the parameters that blocks of this rank use, in the order of the whole model.
void RankModel::add_params(const Stages& stages) {
  const YokeModelSummary& whole = *model_.summary;
  const int rank = comms_.pp_rank();
  const std::vector<std::set<int>> ranks = ranks_of_params(whole, stages);
  for (uint64_t p = 0; p < whole.num_params; ++p) {
    if (ranks[p].count(rank) == 0) continue;
    const YokeParameter& param = *whole.params[p];
    by_name_.emplace(view(param.name), static_cast<int64_t>(params_.size()));
    shapes_.emplace_back(param.shape, param.shape + param.ndim);
    if (cuts_[p].run > 0) shapes_.back()[param.tp_cut - 1] /= comms_.tp.size();
    params_.push_back(copied(param));
    whole_.push_back(static_cast<int64_t>(p));
    partners_.push_back(OwnStage::kNoRank);
    for (const int other : ranks[p]) {
      if (other != rank) partners_.back() = other;
    }
  }
  for (size_t p = 0; p < params_.size(); ++p) {
    params_[p].shape = shapes_[p].data();
    param_pointers_.push_back(&params_[p]);
  }
}

void RankModel::add_blocks() {
  const YokeModelSummary& whole = *model_.summary;
  std::vector<int64_t> own(whole.num_params, -1);  // index of each parameter in the part
  for (size_t p = 0; p < whole_.size(); ++p) own[whole_[p]] = static_cast<int64_t>(p);
  for (const int b : blocks_) {
    const YokeBlock& block = *whole.blocks[b];
    std::vector<int64_t>& of_block = block_params_.emplace_back();
    for (uint64_t i = 0; i < block.num_params; ++i) of_block.push_back(own[block.params[i]]);
    own_blocks_.push_back(copied(block));
  }
  for (size_t b = 0; b < own_blocks_.size(); ++b) {
    own_blocks_[b].params = block_params_[b].data();
    block_pointers_.push_back(&own_blocks_[b]);
  }
}

// Writes the initial values of a range of this rank's part of a parameter.
void RankModel::fill(int64_t param, int64_t begin, int64_t count, float* dst) const {
  for (const ParamSpan& span : cuts_[whole_[param]].spans(begin, count)) {
    for (int64_t done = 0; done < span.count; done += span.run) {
      const int64_t first = span.begin + done / span.run * span.stride;
      const int64_t n = std::min(span.run, span.count - done);
      float* const to = dst + span.local - begin + done;
      call([&](YokeError* err) {
        return model_.init_param(model_.ctx, whole_[param], first, n, to, err);
      });
    }
  }
}

bool RankModel::counts(int64_t param) const {
  const bool cut = cuts_[whole_[param]].run > 0;
  const int rank = comms_.pp_rank(), other = partners_[param];
  return (cut || comms_.tp.rank() == 0) && (other == OwnStage::kNoRank || rank < other);
}

bool RankModel::is_partial(int64_t param) const {
  return comms_.tp.size() > 1 && sequence_parallel_ && cuts_[whole_[param]].run == 0;
}

void RankModel::checkpoint(const YokeCheckpointArgs& args,
                           const Copies& copies,
                           const std::function<void(const YokeCheckpointArgs&)>& visit) const {
  struct Relay {
    const RankModel& model;
    const YokeCheckpointArgs& args;
    const Copies& copies;
  } context{*this, args, copies};
  YokeCheckpointArgs of_part = args;
  of_part.visit_ctx = &context;
  of_part.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    const Relay& r = *static_cast<const Relay*>(ctx);
    return r.model.relay(r.args, r.copies, *piece, err);
  };
  visit(of_part);
}

// A piece of the part is a contiguous range of a parameter's local tensor, which is up to two
// pieces of the whole parameter. Ranks of tp and of pp may have copies of one parameter; those of a
// later stage have the higher numbers. The step, which is no parameter, belongs to rank 0.
int32_t RankModel::relay(const YokeCheckpointArgs& args,
                         const Copies& copies,
                         const YokePiece& piece,
                         YokeError* err) const {
  YokePiece shown = piece;
  const auto known = by_name_.find(view(piece.name));
  if (known == by_name_.end()) {
    shown.replica = host_.rank;
    return args.visit(args.visit_ctx, &shown, err);
  }
  const int64_t param = known->second;
  const YokeParameter& whole = *model_.summary->params[whole_[param]];
  const ParamCut& cut = cuts_[whole_[param]];
  const int64_t over_tp = cut.run > 0 ? 1 : comms_.tp.size();
  shown.shape = whole.shape;
  shown.replica = piece.replica * over_tp + (cut.run > 0 ? 0 : comms_.tp.rank());
  if (partners_[param] != OwnStage::kNoRank && partners_[param] < comms_.pp_rank())
    shown.replica += (whole.trainable != 0 ? copies.trainable : copies.frozen) * over_tp;
  for (const ParamSpan& span : cut.spans(piece.begin, piece.count)) {
    shown.begin = span.begin;
    shown.count = span.count;
    shown.run = span.run;
    shown.stride = span.stride;
    int32_t code = YOKE_OK;
    if (piece.view == nullptr) {
      code = args.visit(args.visit_ctx, &shown, err);
    } else {
      const TensorView values(borrow(*piece.view).narrow(0, span.local - piece.begin, span.count));
      shown.view = values.get();
      code = args.visit(args.visit_ctx, &shown, err);
    }
    if (code != YOKE_OK) return code;
  }
  return YOKE_OK;
}

}  // namespace yoke::mesh
