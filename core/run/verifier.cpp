#include "core/run/verifier.hpp"

#include <algorithm>
#include <utility>

#include "core/run/checkpointing.hpp"
#include "core/verify/state_hash.hpp"
#include "yoke/backend.hpp"

namespace yoke {
namespace {

bool is_param(const YokePiece& piece) {
  return view(piece.kind) == "param";
}

}  // namespace

Verifier::Verifier(const VerifierOptions& options, const Mesh& mesh, World& world)
    : options_(options), mesh_(mesh), world_(world) {}

bool Verifier::due(int64_t step) const {
  return options_.with_hashes || (options_.every > 0 && (step == 1 || step % options_.every == 0));
}

void Verifier::take(WrappedModel& model, const YokeModelSummary& summary) {
  model_ = &model;
  for (uint64_t i = 0; i < summary.num_params; ++i)
    index_[std::string(view(summary.params[i]->name))] = i;
}

// Which pieces have replicas is asked once: it is what decides how much there is to hash.
void Verifier::find_replicas() {
  std::vector<PieceKey> pieces;
  visit_pieces(*model_, YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
    if (is_param(piece) && options_.replicas_equal)
      pieces.push_back(
          {std::string(view(piece.name)), piece.begin, piece.count, piece.run, piece.stride});
  });
  replicas_ = std::make_unique<ReplicaMap>(world_.gather_texts(to_text(pieces)), world_.rank());
}

void Verifier::hash_state(RankEvidence& evidence) {
  if (!replicas_) find_replicas();
  if (options_.with_hashes) evidence.sums.assign(index_.size(), 0);
  if (replicas_->empty() && !options_.with_hashes) return;
  size_t next = 0;
  visit_pieces(*model_, YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
    if (!is_param(piece)) return;
    const bool shared = options_.replicas_equal && replicas_->slot(next++) >= 0;
    const bool counts = options_.with_hashes && piece.replica == 0;
    if (!shared && !counts) return;
    const uint64_t hash = state_hash(piece);
    if (shared) evidence.shared.push_back(hash);
    if (counts) evidence.sums.at(index_.at(std::string(view(piece.name)))) += hash;
  });
}

Findings Verifier::exchange(RankEvidence mine, const GlobalBatch& batch) {
  hash_state(mine);
  Findings found;
  for (const std::string& text : world_.gather_texts(to_text(mine)))
    found.ranks.push_back(evidence_from_text(text));
  found.hashes.assign(mine.sums.size(), 0);
  for (const RankEvidence& rank : found.ranks) {
    for (size_t i = 0; i < found.hashes.size(); ++i) found.hashes[i] += rank.sums[i];
  }
  found.breach = find_breach(found.ranks, *replicas_, mesh_, batch);
  return found;
}

Findings Verifier::examine() {
  return exchange({}, {});
}

void Verifier::before(const Batch& batch) {
  dealt_ = {};
  dealt_.dealt = batch.samples();
  for (size_t m = 0; m < batch.num_micros(); ++m) {
    const auto prints = fingerprints(batch.inputs(m)).value();
    dealt_.dealt_prints.insert(dealt_.dealt_prints.end(), prints.begin(), prints.end());
  }
  witness_.start();
}

Findings Verifier::after(const Batch& batch) {
  witness_.stop(dealt_);
  return exchange(std::move(dealt_), batch.global());
}

void stop_for(const Breach& breach, int64_t step) {
  throw Error(YOKE_DATA_LOSS,
              "verify.every: step " + std::to_string(step) + ": " + breach.text +
                  (breach.kind == "samples"
                       ? "; every data rank must train on its own samples: the backend passes on "
                         "another batch than it was given"
                       : "; replicas must stay equal bit for bit: a gradient was not reduced over "
                         "all replicas, or a rank computes wrongly") +
                  "; verify.every=0 goes on without the proof",
              breach.rank,
              step);
}

}  // namespace yoke
