#include "core/run/checkpointing.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "yoke/torch.hpp"

namespace yoke {

namespace {

// Visitors know host memory alone; a piece on a device passes through it.
void visit_staged(const YokePiece& piece, int32_t op, const PieceVisitor& visit) {
  const bool there = piece.view != nullptr && piece.view->device.type == YOKE_DEVICE_CUDA;
  if (!there || !at::hasCUDA()) return visit(piece);
  const at::Tensor on_device = borrow(*piece.view);
  const at::Tensor here = at::empty(on_device.sizes(), on_device.options().device(at::kCPU));
  if (op == YOKE_CHECKPOINT_SAVE) here.copy_(on_device);  // behind all that is on the stream
  const TensorView view(here);
  YokePiece staged = piece;
  staged.view = view.get();
  visit(staged);
  if (op == YOKE_CHECKPOINT_LOAD) on_device.copy_(here);
}

}  // namespace

void visit_pieces(WrappedModel& model, int32_t op, const PieceVisitor& visit) {
  const PieceVisitor staged = [&](const YokePiece& piece) { visit_staged(piece, op, visit); };
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit_ctx = const_cast<PieceVisitor*>(&staged);
  args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    return guard(err, [&] { (*static_cast<const PieceVisitor*>(ctx))(*piece); });
  };
  model.checkpoint(args);
}

Checkpointing::Checkpointing(const Job& job, const RunPlace& place, World& world, Log& log)
    : job_(job),
      folder_(place.dir + "/checkpoints"),
      resume_(place.resume),
      world_(world),
      log_(log) {}

SaveGroup Checkpointing::group() {
  SaveGroup group;
  group.rank = world_.rank();
  group.world_size = world_.size();
  group.gather = [this](const std::string& mine) {
    std::vector<std::string> texts = world_.gather_texts(mine);
    return world_.rank() == 0 ? std::move(texts) : std::vector<std::string>{};
  };
  group.from_rank0 = [this](const std::string& mine) {
    return world_.gather_texts(world_.rank() == 0 ? mine : "")[0];
  };
  return group;
}

Position Checkpointing::restore(WrappedModel& model, const YokeModelSummary& summary) {
  if (resume_.empty()) {
    const std::string& from = job_.config.run.model.from;
    if (world_.rank() == 0 && !from.empty()) log_.info("initial parameters from " + from);
    return {};
  }
  const CheckpointReader reader(resume_);
  reader.check_model(summary);
  const CheckpointInfo& info = reader.info();
  visit_pieces(model, YOKE_CHECKPOINT_LOAD, [&](const YokePiece& piece) { reader.visit(piece); });
  if (world_.rank() == 0)
    log_.info("resumed from " + resume_ + " at step " + std::to_string(info.step));
  saved_step_ = info.step;
  return {info.step, info.next_sample};
}

void Checkpointing::save(WrappedModel& model, const Position& at) {
  SaveRequest request;
  request.folder = folder_;
  request.info.step = at.step;
  request.info.next_sample = at.next_sample;
  request.info.config_digest = resume_digest(job_.config);
  request.info.finished = at.step == job_.config.run.train.steps;
  request.hf_config_json = job_.model.hf_config_json;
  const std::string path =
      save_checkpoint(request, group(), [&](int32_t op, const PieceVisitor& visit) {
        visit_pieces(model, op, visit);
      });
  saved_step_ = at.step;
  if (world_.rank() != 0) return;
  log_.info("saved " + path);
  try {
    prune_checkpoints(folder_, job_.config.run.checkpoint.keep);
  } catch (const Error& e) {
    log_.warning(std::string("old checkpoints stay: ") + e.what());  // the new one is safe
  }
}

void Checkpointing::save_unless_saved(WrappedModel& model, const Position& at) {
  if (!saved(at)) save(model, at);
}

}  // namespace yoke
