// How a step is verified: each rank fingerprints its batch before the step, the probe in the model
// fingerprints the inputs that the model receives, and after the step each rank hashes those pieces
// of parameters that other ranks have as well. The ranks then exchange their reports once, and
// every rank checks all of them.
//
// Pieces are hashed where they are. On a device a kernel reads each piece once, and the host waits
// once, for all hashes together; nothing else is copied from the device.
//
// The cost is the hashing and one small exchange, on a few steps only, so verification is on by
// default. Verifying every step was rejected: a verified step takes about 5 % longer on the CPU
// (bench/verify_cost.py).
#include "core/run/verifier.hpp"

#include <algorithm>
#include <utility>

#include "core/run/checkpointing.hpp"
#include "core/run/piece_hashes.hpp"
#include "yoke/backend.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

bool is_param(const YokePiece& piece) {
  return view(piece.kind) == "param";
}

}  // namespace

Verifier::Verifier(const VerifierOptions& options, const Mesh& mesh, World& world)
    : options_(options), mesh_(mesh), world_(world) {}

bool Verifier::due(int64_t step) const {
  // Step 1 is always verified, because most mistakes show there.
  return options_.with_hashes || (options_.every > 0 && (step == 1 || step % options_.every == 0));
}

void Verifier::set_model(WrappedModel& model, const YokeModelSummary& summary) {
  model_ = &model;
  for (uint64_t i = 0; i < summary.num_params; ++i)
    index_[std::string(view(summary.params[i]->name))] = i;
}

// Finds the pieces that several ranks have. Only these are hashed. Which pieces a rank has never
// changes, so the ranks exchange their lists of pieces once.
void Verifier::find_replicas() {
  std::vector<PieceKey> pieces;
  visit_pieces(*model_, YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
    if (is_param(piece) && options_.replicas_equal)
      pieces.push_back(
          {std::string(view(piece.name)), piece.begin, piece.count, piece.run, piece.stride});
  });
  replicas_ = std::make_unique<ReplicaMap>(world_.gather_texts(to_text(pieces)), world_.rank());
}

void Verifier::hash_state(RankReport& report) {
  if (!replicas_) find_replicas();
  if (options_.with_hashes) report.param_hashes.assign(index_.size(), 0);
  if (replicas_->empty() && !options_.with_hashes) return;
  // What the hash of a piece is for. total: the hash of a whole parameter to which it is added, or
  // NULL.
  struct Use {
    bool shared;
    uint64_t* total;
  };
  PieceHashes hashes;
  std::vector<Use> uses;
  size_t next = 0;  // the backend visits its pieces in the same order as in find_replicas
  visit_pieces(*model_, YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
    if (!is_param(piece)) return;
    const bool shared = options_.replicas_equal && replicas_->slot(next++) >= 0;
    // In the hash of a whole parameter each element counts once, through its first replica.
    const bool counts = options_.with_hashes && piece.replica == 0;
    if (!shared && !counts) return;
    hashes.add(piece);
    const auto total = [&] {
      return &report.param_hashes.at(index_.at(std::string(view(piece.name))));
    };
    uses.push_back({shared, counts ? total() : nullptr});
  });
  const std::vector<uint64_t> values = hashes.values();
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].shared) report.replica_hashes.push_back(values[i]);
    if (uses[i].total != nullptr) *uses[i].total += values[i];
  }
}

StepReport Verifier::exchange(RankReport mine, const GlobalBatch& batch) {
  hash_state(mine);
  StepReport report;
  for (const std::string& text : world_.gather_texts(to_text(mine)))
    report.ranks.push_back(rank_report_from_text(text));
  report.param_hashes.assign(mine.param_hashes.size(), 0);
  for (const RankReport& rank : report.ranks) {
    for (size_t i = 0; i < report.param_hashes.size(); ++i)
      report.param_hashes[i] += rank.param_hashes[i];
  }
  report.violation = find_violation(report.ranks, *replicas_, mesh_, batch);
  return report;
}

StepReport Verifier::examine() {
  return exchange({}, {});
}

void Verifier::before(const Batch& batch) {
  current_ = {};
  current_.assigned = batch.samples();
  for (size_t m = 0; m < batch.num_micros(); ++m) {
    const auto prints = fingerprints(batch.inputs(m)).value();
    current_.assigned_prints.insert(current_.assigned_prints.end(), prints.begin(), prints.end());
  }
  probe_.start();
}

StepReport Verifier::after(const Batch& batch) {
  probe_.stop(current_);
  return exchange(std::move(current_), batch.global());
}

void stop_for(const Violation& violation, int64_t step) {
  const char* rule =
      violation.kind == "samples"
          ? "; every data rank must train on its own samples: the backend passes another batch to "
            "the model than it was given"
          : "; replicas must be equal bit for bit: a gradient was not reduced over all replicas, "
            "or "
            "a rank computes wrong results";
  throw Error(YOKE_DATA_LOSS,
              concat("verify.every: step ", step, ": ", violation.text, rule) +
                  "; verify.every=0 turns this check off",
              violation.rank,
              step);
}

}  // namespace yoke
