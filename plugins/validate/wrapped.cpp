// Some rules need the state at a time at which the host does not ask for it: before and after an
// evaluation, and after a LOAD. The pieces are then visited with SAVE, and only hashed.
#include "plugins/validate/wrapped.hpp"

#include <algorithm>
#include <cmath>

#include "plugins/validate/tensors.hpp"
#include "yoke/optimizer.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

Monitor::Function function_of_checkpoint(int32_t op) {
  return {.name = "checkpoint", .collective = op != YOKE_CHECKPOINT_DESCRIBE};
}

YokeWrapResult blank_result() {
  YokeWrapResult result{};
  result.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  return result;
}

}  // namespace

CheckedModel::CheckedModel(Rank& rank, YokeContext* context, const YokeModel& model)
    : rank_(rank),
      model_(model, rank.host.host(), rank.managed, rank.monitor),
      steps_(rank.plan, rank.table.abi_minor >= 1, rank.ranks, rank.monitor) {
  Guarded<YokeWrapResult> result(blank_result());
  Monitor& monitor = rank_.monitor;
  const auto check_result = [&](int32_t code) {
    check_cleared(monitor, result, code != YOKE_OK);
    const YokeWrapResult& r = result.value();
    if (code != YOKE_OK) return code;
    if (r.model == nullptr)
      monitor.violated(Rule::kByteCountsAreSensible, "", "wrap_model succeeds without a handle");
    for (const int64_t bytes :
         {r.param_bytes, r.grad_bytes, r.optimizer_bytes, r.unsharded_bytes, r.activation_bytes})
      if (bytes < -1)
        monitor.violated(Rule::kByteCountsAreSensible, "", concat("a byte count is ", bytes));
    return code;
  };
  try {
    call_backend(
        monitor,
        {.name = "wrap_model", .collective = true},
        [&](YokeError* err) {
          return check_result(
              rank_.table.wrap_model(context, &model_.model(), &result.value(), err));
        },
        [&] { return Fields().add("bytes", result.value().param_bytes); });
  } catch (const Error&) {
    rank_.table.destroy_model(&result.value().model);
    throw;
  }
  wrapped_ = result.value();
  // The pieces never change, so they are examined before the host does anything with them.
  try {
    walk(YOKE_CHECKPOINT_DESCRIBE, nullptr);
    check_coverage();
  } catch (const Error&) {
    rank_.table.destroy_model(&wrapped_.model);
    throw;
  }
  ++rank_.models;
}

CheckedModel::~CheckedModel() {
  guard(nullptr, [&] {
    call_backend(
        rank_.monitor,
        {.name = "destroy_model"},
        [&](YokeError*) {
          rank_.table.destroy_model(&wrapped_.model);
          return YOKE_OK;
        },
        [] { return Fields(); });
  });
  --rank_.models;
}

// ---- Step ----

YokeStepResult CheckedModel::step(const YokeStepArgs& args) {
  Monitor& monitor = rank_.monitor;
  Stopwatch whole(monitor);
  const std::chrono::nanoseconds own_before = monitor.own_time();
  const bool evaluates = (args.flags & YOKE_STEP_FORWARD_ONLY) != 0;
  steps_.before(args);
  std::vector<uint64_t> before;
  std::chrono::nanoseconds inner{0};
  if (evaluates)
    before = hashes_.empty() ? whole.forward([&] { return walk(YOKE_CHECKPOINT_SAVE, nullptr); })
                             : hashes_;
  if (!evaluates) hashes_.clear();
  rank_.host.take_cancel_checks();
  rank_.host.take_issued();
  model_.begin_step(evaluates);
  YokeStepResult blank{};
  blank.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  Guarded<YokeStepResult> result(blank);
  StepRules::Seen seen{&args, blank, 0, {}, {}};
  whole.forward([&] {
    inner = call_backend(
        monitor,
        {.name = "step", .step = args.step, .collective = true},
        [&](YokeError* err) {
          const int32_t code = rank_.table.step(wrapped_.model, &args, &result.value(), err);
          seen.model = model_.end_step();
          check_cleared(monitor, result, code != YOKE_OK);
          return code;
        },
        [&] {
          return Fields()
              .add("micros", static_cast<int64_t>(args.batch->num_micros))
              .add("flags", int64_t{args.flags})
              .add("loss_sum", result.value().loss_sum)
              .add("grad_norm", result.value().grad_norm);
        });
  });
  seen.result = result.value();
  seen.cancel_checks = rank_.host.take_cancel_checks();
  seen.issued = rank_.host.take_issued();
  monitor.begin({.name = "step", .step = args.step, .collective = true});
  const int32_t code = guard(nullptr, [&] { steps_.after(seen); });
  monitor.end();
  monitor.require_none();
  if (code != YOKE_OK) throw Error(code, "the ranks could not compare their steps");
  if (evaluates) whole.forward([&] { check_evaluation(before); });
  const std::chrono::nanoseconds time = whole.stop();
  monitor.count_step(time, monitor.own_time() - own_before);
  return result.value();
}

void CheckedModel::check_evaluation(const std::vector<uint64_t>& before) {
  hashes_ = walk(YOKE_CHECKPOINT_SAVE, nullptr);
  for (size_t i = 0; i < hashes_.size(); ++i) {
    if (hashes_[i] == before[i]) continue;
    rank_.monitor.violated(
        Rule::kEvaluationChangesNothing, "step", "an evaluation has changed " + pieces_[i].text());
    break;
  }
  rank_.monitor.require_none();
}

// ---- Checkpoint ----

struct CheckedModel::Visit {
  int32_t op;
  const YokeCheckpointArgs* host;
  std::vector<uint64_t> hashes;
  std::vector<PieceKey> seen;
  int64_t step = -1;
};

Expected CheckedModel::expected() const {
  const bool own = (rank_.description.traits & YOKE_OWN_UPDATE) != 0;
  Expected e{model_.model().summary, own ? nullptr : rank_.plan.optimizer, {}, false};
  for (uint64_t i = 0; i < rank_.description.num_state_kinds; ++i)
    e.own_kinds.emplace_back(view(rank_.description.state_kinds[i]->kind));
  e.has_own_kinds = !e.own_kinds.empty();
  return e;
}

int32_t CheckedModel::visit(Visit& now, const YokePiece& piece, YokeError* err) {
  Monitor& monitor = rank_.monitor;
  Stopwatch watch(monitor);
  const std::string fault = piece_fault(piece, expected(), now.op);
  if (!fault.empty()) {
    const std::string what = "piece '" + std::string(view(piece.name)) + "' (" +
                             std::string(view(piece.kind)) + "): " + fault;
    const int32_t code = monitor.violated(Rule::kPiecesAreWellFormed, "visit", what, err);
    if (code != YOKE_OK) return code;
  }
  now.seen.emplace_back(piece);
  const size_t index = now.seen.size() - 1;
  if (knows_pieces_ && (index >= pieces_.size() || pieces_[index] != now.seen.back())) {
    const int32_t code = monitor.violated(
        Rule::kSamePiecesEachTime,
        "visit",
        concat("visit ", index + 1, " shows ") + now.seen.back().text() +
            (index < pieces_.size() ? ", and the first call showed " + pieces_[index].text() : ""),
        err);
    if (code != YOKE_OK) return code;
  }
  int32_t code = YOKE_OK;
  if (now.host != nullptr) {
    code = watch.forward([&] { return now.host->visit(now.host->visit_ctx, &piece, err); });
    const Fields fields = Fields()
                              .add("name", view(piece.name))
                              .add("kind", view(piece.kind))
                              .add("count", piece.count)
                              .add("replica", piece.replica);
    monitor.trace_call("backend", "visit", code, watch, fields);
    const bool own = view(piece.kind) != "param" && view(piece.kind) != "step";
    if (code != YOKE_OK && !(code == YOKE_NOT_FOUND && own))
      monitor.note_failure("the visitor", code);
  }
  const bool has_data = code == YOKE_OK && fault.empty() && piece.view != nullptr;
  now.hashes.push_back(has_data ? hash_of_piece(piece) : 0);
  if (has_data && view(piece.kind) == "step") now.step = *data<const int64_t>(*piece.view);
  return code;
}

std::vector<uint64_t> CheckedModel::walk(int32_t op, const YokeCheckpointArgs* host) {
  Visit now{op, host, {}, {}, -1};
  const std::pair<CheckedModel*, Visit*> ctx{this, &now};
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit_ctx = const_cast<void*>(static_cast<const void*>(&ctx));
  args.visit = [](void* c, const YokePiece* piece, YokeError* err) {
    const auto& [self, visit] = *static_cast<const std::pair<CheckedModel*, Visit*>*>(c);
    int32_t code = YOKE_OK;
    const int32_t thrown =
        guard(err, [&, s = self, v = visit] { code = s->visit(*v, *piece, err); });
    return thrown != YOKE_OK ? thrown : code;
  };
  call_backend(
      rank_.monitor,
      function_of_checkpoint(op),
      [&](YokeError* err) { return rank_.table.checkpoint(wrapped_.model, &args, err); },
      [&] {
        return Fields().add("op", int64_t{op}).add("pieces", static_cast<int64_t>(now.seen.size()));
      });
  if (knows_pieces_ && now.seen.size() < pieces_.size())
    rank_.monitor.violated(
        Rule::kSamePiecesEachTime,
        "checkpoint",
        concat(
            "it shows ", now.seen.size(), " pieces, and the first call showed ", pieces_.size()));
  if (op == YOKE_CHECKPOINT_LOAD && now.step >= 0) steps_.set_last_step(now.step);
  if (op == YOKE_CHECKPOINT_SAVE && now.step >= 0 && now.step != steps_.last_step())
    rank_.monitor.violated(
        Rule::kStepIsThatOfTheRun,
        "checkpoint",
        concat(
            "the piece has the step ", now.step, ", and the last update was ", steps_.last_step()));
  rank_.monitor.require_none();
  if (!knows_pieces_) pieces_ = std::move(now.seen);
  knows_pieces_ = true;
  return std::move(now.hashes);
}

void CheckedModel::check_coverage() {
  std::vector<std::vector<PieceKey>> by_rank;
  for (const std::string& bytes : rank_.ranks.gather(to_bytes(pieces_)))
    by_rank.push_back(pieces_from_bytes(bytes));
  const std::string fault = coverage_fault(by_rank, expected(), &copies_);
  if (!fault.empty()) rank_.monitor.violated(Rule::kPiecesAreComplete, "checkpoint", fault);
  rank_.monitor.require_none();
}

void CheckedModel::check_replicas(const std::vector<uint64_t>& hashes) {
  if ((rank_.description.traits & YOKE_LOCAL_UPDATES) != 0) return;
  const auto bytes = rank_.ranks.gather(
      std::string(reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(uint64_t)));
  const auto sum = [&](const std::vector<Holder>& holders) {
    uint64_t total = 0;
    for (const Holder& holder : holders) {
      uint64_t hash = 0;
      std::memcpy(&hash,
                  bytes[static_cast<size_t>(holder.rank)].data() + holder.index * sizeof hash,
                  sizeof hash);
      total += hash;
    }
    return total;
  };
  for (const Copies& pair : copies_) {
    if (sum(pair.saved) == sum(pair.copies)) continue;
    rank_.monitor.violated(Rule::kReplicasAreEqual,
                           "checkpoint",
                           pair.tensor + concat(": the copy of rank ",
                                                pair.copies[0].rank,
                                                " differs from what is saved, which rank ",
                                                pair.saved[0].rank,
                                                " has"));
    break;
  }
  rank_.monitor.require_none();
}

void CheckedModel::checkpoint(const YokeCheckpointArgs& args) {
  std::vector<uint64_t> hashes = walk(args.op, &args);
  if (args.op == YOKE_CHECKPOINT_DESCRIBE) return;
  const bool load = args.op == YOKE_CHECKPOINT_LOAD;
  if (load) {
    hashes_ = walk(YOKE_CHECKPOINT_SAVE, nullptr);
    for (size_t i = 0; i < hashes_.size(); ++i) {
      if (hashes[i] == 0 || hashes[i] == hashes_[i]) continue;
      rank_.monitor.violated(Rule::kLoadIsKept,
                             "checkpoint",
                             "the state does not have the loaded values of " + pieces_[i].text());
      break;
    }
    rank_.monitor.require_none();
  }
  check_replicas(load ? hashes_ : hashes);
}

}  // namespace yoke::validate
