// Connects the backend, which owns the layout of the state, with core/checkpoint, which owns the
// files. The backend calls a visitor for every piece of state on this rank, and the visitor writes
// the piece to its position in the checkpoint, or fills it from there. Therefore no rank ever needs
// the whole model in memory, and a run may resume in a different layout.
#include "core/run/checkpointing.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/checkpoint/retention.hpp"
#include "core/cuda/device_runtime.hpp"
#include "core/model/adapters.hpp"
#include "core/run/job_facts.hpp"
#include "yoke/muon.h"
#include "yoke/state_kind.hpp"
#include "yoke/text.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

// A piece on a device is copied to the host before a visitor saves it, and back after a visitor has
// filled it.
void visit_staged(const YokePiece& piece, int32_t op, const PieceVisitor& visit) {
  if (piece.view == nullptr || !runs_on(piece.view->device)) return visit(piece);
  const at::Tensor device = borrow(*piece.view);
  const at::Tensor host = at::empty(device.sizes(), device.options().device(at::kCPU));
  if (op == YOKE_CHECKPOINT_SAVE) host.copy_(device);  // waits for everything on the stream
  const TensorView view(host);
  YokePiece staged = piece;
  staged.view = view.get();
  visit(staged);
  if (op == YOKE_CHECKPOINT_LOAD) device.copy_(host);
}

// Returns a visitor that calls `visit` with each piece under the shape that it has in files. Its
// elements and their order are the same.
PieceVisitor in_stored_shapes(const Shapes& stored, const PieceVisitor& visit) {
  return [&stored, visit](const YokePiece& piece) {
    const auto shape = stored.find(std::string(view(piece.name)));
    if (shape == stored.end()) return visit(piece);
    YokePiece there = piece;
    there.shape = shape->second.data();
    there.ndim = static_cast<int32_t>(shape->second.size());
    visit(there);
  };
}

}  // namespace

void visit_pieces(WrappedModel& model, int32_t op, const PieceVisitor& visit) {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit_ctx = const_cast<PieceVisitor*>(&visit);
  args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    return guard(err, [&] { (*static_cast<const PieceVisitor*>(ctx))(*piece); });
  };
  model.checkpoint(args);
}

void visit_on_host(WrappedModel& model, int32_t op, const PieceVisitor& visit) {
  visit_pieces(model, op, [&](const YokePiece& piece) {
    if (op == YOKE_CHECKPOINT_SAVE && piece.replica != 0) return;
    visit_staged(piece, op, visit);
  });
}

Shapes shapes_in_files(const Job& job, const YokeModelSummary& summary) {
  Shapes shapes = job.stored_shapes;
  shapes.merge(shapes_of(summary));  // keeps the shapes that are there
  return shapes;
}

StateContents contents_of(const Job& job, const YokeModelSummary& summary) {
  StateContents contents;
  contents.params = shapes_in_files(job, summary);
  const bool own = (traits_of(job.backend, *job.inner) & YOKE_OWN_UPDATE) != 0;
  for (uint64_t i = 0; i < summary.num_params; ++i) {
    const char* kinds[2];
    const auto index = static_cast<int64_t>(i);
    const int moments = yoke_moments_of(job.plan->plan().optimizer, &summary, index, kinds);
    for (int m = 0; m < moments && !own; ++m)
      contents.moments[kinds[m]].emplace(view(summary.params[i]->name));
  }
  // A backend that declares no kind of its own may be older than the field for them.
  const std::vector<StateKind> kinds = state_kinds_of(job.backend, *job.inner);
  if (!kinds.empty()) contents.own_kinds.emplace();
  for (const StateKind& kind : kinds) contents.own_kinds->insert(kind.name);
  return contents;
}

Checkpointing::Checkpointing(
    const Job& job, const RunPlace& place, SkippedSteps& skipped, World& world, Log& log)
    : job_(job),
      folder_(place.dir + "/checkpoints"),
      resume_(place.resume),
      skipped_(skipped),
      world_(world),
      log_(log) {
  // The files are read at once, because the folder may be gone when a checkpoint is saved.
  if (world_.rank() != 0) return;
  data_ = data_contents(job_);
  const std::string& from = job_.config.run.model.from;
  if (!from.empty()) texts_ = read_companions(from);
  if (!job_.model.hf_config_json.empty()) texts_["config.json"] = job_.model.hf_config_json;
  // Companions of model.from may describe adapters that this run does not have.
  texts_.erase(kAdapterConfig);
  const ModelConfig& model = job_.config.run.model;
  if (model.lora.rank > 0)
    texts_[kAdapterConfig] = adapter_config_text(adapter_config(model), from);
}

// Between two exchanges the ranks read and write files, which takes one rank minutes longer than
// another if its disk is slow. So comm.timeout limits the exchange, but not the wait for it.
std::vector<std::string> Checkpointing::exchange(const std::string& mine) {
  world_.await_all("all ranks to read or write their part of a checkpoint");
  return world_.gather_texts(mine);
}

SaveGroup Checkpointing::group() {
  // `gather` needs the texts on rank 0 only, and `from_rank0` needs only rank 0's text. Both use an
  // all-gather, because the texts are short.
  SaveGroup group;
  group.rank = world_.rank();
  group.world_size = world_.size();
  group.gather = [this](const std::string& mine) {
    std::vector<std::string> texts = exchange(mine);
    return world_.rank() == 0 ? std::move(texts) : std::vector<std::string>{};
  };
  group.from_rank0 = [this](const std::string& mine) {
    return exchange(world_.rank() == 0 ? mine : "")[0];
  };
  return group;
}

// While a backend loads, its ranks may communicate, and comm.timeout limits their waits. So each
// rank first reads what it will load. That verifies the bytes, too, before any state is changed,
// and leaves them in the page cache. If they do not fit there, the load reads them from the disk
// again, within comm.timeout. `read` gets pieces without a view, whatever the backend shows, so
// that it changes no state.
void Checkpointing::read_ahead(WrappedModel& model, const PieceVisitor& read) {
  if (world_.size() == 1) return;
  const PieceVisitor read_if_stored = [&](const YokePiece& piece) {
    YokePiece hidden = piece;
    hidden.view = nullptr;
    try {
      read(hidden);
    } catch (const Error& e) {
      if (e.code() != YOKE_NOT_FOUND) throw;  // LOAD reports it, if it is an error
    }
  };
  visit_pieces(
      model, YOKE_CHECKPOINT_DESCRIBE, in_stored_shapes(job_.stored_shapes, read_if_stored));
  world_.await_all("all ranks to read the checkpoint");
}

// State that belongs to the ranks fits only as many ranks as have saved it. To the backend it is
// then missing, and it starts that state anew.
void Checkpointing::load(WrappedModel& model, const CheckpointReader& reader) {
  std::set<std::string> restarted;
  const std::vector<StateKind> kinds = state_kinds_of(job_.backend, *job_.inner);
  const auto per_rank = [&](const std::string& kind) {
    return std::any_of(kinds.begin(), kinds.end(), [&](const StateKind& declared) {
      return declared.per_rank && declares_kind(declared.name, kind);
    });
  };
  const PieceVisitor read = [&](const YokePiece& piece) {
    const std::string name(view(piece.name)), kind(view(piece.kind));
    const auto stored = per_rank(kind) ? reader.shape(name, kind) : std::nullopt;
    if (stored && piece.ndim > 0 && !stored->empty() && stored->front() != piece.shape[0]) {
      restarted.insert(concat("'", kind, "' (of ", stored->front(), " ranks)"));
      throw Error(YOKE_NOT_FOUND,
                  concat("'", kind, "' of '", name, "' is that of ", stored->front(), " ranks"));
    }
    reader.visit(piece);
  };
  read_ahead(model, read);
  visit_on_host(model, YOKE_CHECKPOINT_LOAD, in_stored_shapes(job_.stored_shapes, read));
  if (world_.rank() != 0) return;
  for (const std::string& kind : restarted)
    log_.warning(concat("this run has ", world_.size(), " rank(s), so the state ", kind) +
                 " of the checkpoint is left out and starts anew");
}

// All ranks must agree on whether an evaluation is the best one, so rank 0 reads the folder.
void Checkpointing::find_best() {
  std::string text;
  if (world_.rank() == 0) {
    if (const auto best = best_checkpoint(folder_))
      text = string_printf("%.17g", best->eval_loss.value());
  }
  text = group().from_rank0(text);
  if (!text.empty()) best_loss_ = std::stod(text);
}

bool Checkpointing::evaluated(const Position& position, double loss) {
  if (!std::isfinite(loss)) return false;
  evaluated_step_ = position.step;
  eval_loss_ = loss;
  return job_.config.run.checkpoint.best && loss < best_loss_;
}

Position Checkpointing::restore(WrappedModel& model, const YokeModelSummary& summary) {
  contents_ = contents_of(job_, summary);
  if (job_.config.run.checkpoint.best) find_best();
  check_state(group(), contents_, [&](int32_t op, const PieceVisitor& visit) {
    visit_pieces(model, op, in_stored_shapes(job_.stored_shapes, visit));
  });
  if (resume_.empty()) {
    const std::string& from = job_.config.run.model.from;
    if (world_.rank() == 0 && !from.empty()) log_.info("initial parameters are from " + from);
    return {};
  }
  const CheckpointReader reader(resume_);
  reader.check_model(shapes_in_files(job_, summary));
  const CheckpointInfo& info = reader.info();
  load(model, reader);
  world_.await_all("all ranks to load the checkpoint");
  skipped_.restore(info);
  if (world_.rank() == 0) log_.info(concat("resumed from ", resume_, " at step ", info.step));
  // A checkpoint of another run is not where this run is looked for when it is continued.
  if (resume_ == folder_ + "/" + step_name(info.step)) saved_step_ = info.step;
  return {info.step, info.next_sample};
}

void Checkpointing::save(WrappedModel& model, const Position& position) {
  finish_removal();
  log_.progress(concat("saving the checkpoint of step ", position.step));
  SaveRequest request;
  request.folder = folder_;
  request.info.step = position.step;
  request.info.next_sample = position.next_sample;
  request.info.config_digest = resume_digest(job_.config);
  request.info.fixed_digest = fixed_digest(job_.config);
  request.info.data = data_;
  request.info.finished = position.step == job_.config.run.train.steps;
  skipped_.save(request.info);
  const bool evaluated = evaluated_step_ == position.step;
  const bool best = evaluated && eval_loss_ < best_loss_;
  if (evaluated) request.info.eval_loss = eval_loss_;
  request.contents = contents_;
  request.texts = texts_;
  const std::string path =
      save_checkpoint(request, group(), [&](int32_t op, const PieceVisitor& visit) {
        visit_on_host(model, op, in_stored_shapes(job_.stored_shapes, visit));
      });
  saved_step_ = position.step;
  if (best) best_loss_ = eval_loss_;
  if (world_.rank() != 0) return;
  const CheckpointConfig& config = job_.config.run.checkpoint;
  log_.info("saved " + path + (best && config.best ? ", the best so far" : ""));
  start_removal();
}

// Before a checkpoint is removed, a newer one is read back, which takes minutes if it is large. If
// rank 0 waited for that, the others would wait in their next collective, longer than comm.timeout
// allows. If the run fails, nobody waits for the thread; a removal may be interrupted at any point.
void Checkpointing::start_removal() {
  const CheckpointConfig& config = job_.config.run.checkpoint;
  const auto task = std::make_shared<std::packaged_task<void()>>(
      [folder = folder_, kept = Kept{config.keep, config.best}] {
        prune_checkpoints(folder, kept);
      });
  removal_ = task->get_future();
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {  // this process may have no more threads
    (*task)();
  }
}

// The folder is locked while checkpoints are removed, so a save must wait for that.
void Checkpointing::finish_removal() {
  if (!removal_.valid()) return;
  if (removal_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    log_.progress("removing old checkpoints");
  try {
    removal_.get();
  } catch (const std::exception& e) {
    // The new checkpoint is complete, so the run continues.
    log_.warning(concat("old checkpoints were not removed: ", e.what()));
  }
}

void Checkpointing::save_unless_saved(WrappedModel& model, const Position& position) {
  if (!saved(position)) save(model, position);
}

}  // namespace yoke
