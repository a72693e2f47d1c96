// Checks the reports of all ranks. Every rank has all reports and runs the same code on them, so
// all ranks find the same violation and no rank has to announce it.
//
// The check does not rely on what the backend reports about itself. Samples are compared by
// fingerprints of the inputs that the first block receives, and replicas by hashes of the pieces of
// state. Comparing losses or gradient norms with expected values was
// rejected: a rank that trains on another rank's samples still produces a plausible loss.
#include "core/verify/rank_report.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;
using Prints = std::set<uint64_t>;

double number(const Json& json) {
  return json.is_null() ? std::nan("") : json.get<double>();
}

Prints set_of(const std::vector<uint64_t>& prints) {
  return {prints.begin(), prints.end()};
}

// Returns "4, 5, 6, 7", or "4, 5, 6, 7, 8, 9, 10, 11 and 12 more".
std::string list(const std::vector<int64_t>& samples) {
  constexpr size_t kShown = 8;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(samples.size(), kShown); ++i)
    words.push_back(std::to_string(samples[i]));
  const size_t more = samples.size() - words.size();
  return join(words) + (more == 0 ? "" : concat(" and ", more, " more"));
}

// ---- Samples ----

// Returns the fingerprints of the sequences that the ranks along cp received together. Each rank
// received either whole sequences or one part of every sequence. The fingerprints of the parts add
// up to that of the sequence, so the sum over the ranks is compared.
Prints received_along_cp(const std::vector<const RankReport*>& along_cp) {
  const Prints assigned = set_of(along_cp.front()->assigned_prints);
  const Prints first = set_of(along_cp.front()->received);
  if (along_cp.size() == 1 || first == assigned) return first;
  std::vector<uint64_t> sums = along_cp.front()->received;
  for (size_t c = 1; c < along_cp.size(); ++c) {
    const std::vector<uint64_t>& part = along_cp[c]->received;
    for (size_t i = 0; i < std::min(sums.size(), part.size()); ++i) sums[i] += part[i];
  }
  return set_of(sums);
}

// Returns the data rank to which a sample with this fingerprint is assigned, or -1.
int32_t owner_of(uint64_t print, const std::vector<RankReport>& all, const Mesh& mesh) {
  for (size_t r = 0; r < all.size(); ++r) {
    const auto& prints = all[r].assigned_prints;
    if (std::find(prints.begin(), prints.end(), print) != prints.end())
      return mesh.data_rank(static_cast<int32_t>(r));
  }
  return -1;
}

// Checks the host itself: every sample of the batch must be assigned to exactly one data rank.
std::optional<Violation> wrong_assignment(const std::vector<RankReport>& all,
                                          const Mesh& mesh,
                                          const GlobalBatch& batch) {
  std::map<int64_t, int32_t> owners;
  for (int32_t r = 0; r < mesh.size(); ++r) {
    for (const int64_t sample : all[r].assigned) {
      const int32_t data_rank = mesh.data_rank(r);
      const auto [owner, inserted] = owners.insert({sample, data_rank});
      if (owner->second == data_rank) continue;
      return Violation{"samples",
                       r,
                       "",
                       concat("sample ", sample, " is assigned to data ranks ", owner->second) +
                           concat(" and ", data_rank)};
    }
  }
  for (int64_t sample = batch.first; sample < batch.first + batch.count; ++sample) {
    if (owners.count(sample) != 0) continue;
    return Violation{"samples", -1, "", concat("sample ", sample, " is assigned to no data rank")};
  }
  return std::nullopt;
}

// Checks that the model on `rank`, and on its peers along cp, received the samples of its data
// rank.
std::optional<Violation> wrong_samples(const std::vector<RankReport>& all,
                                       const Mesh& mesh,
                                       int32_t rank) {
  std::vector<const RankReport*> along_cp;
  for (const int32_t peer : mesh.peers(rank, YOKE_AXIS_BIT(YOKE_CP)))
    along_cp.push_back(&all[peer]);
  if (std::any_of(along_cp.begin(), along_cp.end(), [](auto* r) { return r->unreadable; }))
    return std::nullopt;
  const RankReport& mine = all[rank];
  const Prints received = received_along_cp(along_cp), assigned = set_of(mine.assigned_prints);
  if (received == assigned) return std::nullopt;

  std::vector<int64_t> missing;
  for (size_t i = 0; i < mine.assigned.size(); ++i) {
    if (received.count(mine.assigned_prints[i]) == 0) missing.push_back(mine.assigned[i]);
  }
  std::string text = concat("rank ", rank, " (data rank ", mesh.data_rank(rank), ") ");
  text += missing.empty() ? "trained on more than its samples"
                          : "did not train on its samples " + list(missing);
  for (const uint64_t print : received) {
    if (assigned.count(print) != 0) continue;
    const int32_t other = owner_of(print, all, mesh);
    text += other < 0 ? ", but on data that is assigned to no rank"
                      : concat(", but on samples of data rank ", other);
    break;
  }
  return Violation{"samples", rank, "", text};
}

// ---- Replicas ----

// Returns the ranks whose hash differs from that of the majority, or from the first rank's hash if
// there is no majority.
std::vector<int32_t> minority(const ReplicaMap::Group& group, const std::vector<RankReport>& all) {
  std::map<uint64_t, int> votes;
  const auto hash = [&](const ReplicaMap::Holder& h) { return all[h.rank].replica_hashes[h.slot]; };
  for (const auto& holder : group.holders) ++votes[hash(holder)];
  uint64_t most = hash(group.holders.front());
  for (const auto& [value, count] : votes) {
    if (count > votes[most]) most = value;
  }
  std::vector<int32_t> ranks;
  for (const auto& holder : group.holders) {
    if (hash(holder) != most) ranks.push_back(holder.rank);
  }
  return ranks;
}

std::optional<Violation> different_replicas(const std::vector<RankReport>& all,
                                            const ReplicaMap& replicas) {
  std::optional<Violation> first;
  std::set<std::string> tensors;
  for (const ReplicaMap::Group& group : replicas.groups()) {
    const std::vector<int32_t> ranks = minority(group, all);
    if (ranks.empty()) continue;
    tensors.insert(group.tensor);
    if (first) continue;
    int32_t agreeing = -1;
    for (const auto& holder : group.holders) {
      if (std::find(ranks.begin(), ranks.end(), holder.rank) == ranks.end()) agreeing = holder.rank;
    }
    first = {"replicas",
             ranks.front(),
             group.tensor,
             concat("'", group.tensor, "' on rank ", ranks.front()) +
                 concat(" differs from its replica on rank ", agreeing)};
  }
  if (tensors.size() > 1) first->text += concat("; ", tensors.size(), " tensors differ in total");
  return first;
}

}  // namespace

std::string to_text(const RankReport& report) {
  Json losses = Json::array();
  for (const ObservedLoss& l : report.losses) losses.push_back({l.sum, l.weight, l.scale});
  return Json{{"assigned", report.assigned},
              {"assigned_prints", report.assigned_prints},
              {"received", report.received},
              {"unreadable", report.unreadable},
              {"losses", losses},
              {"replica_hashes", report.replica_hashes},
              {"param_hashes", report.param_hashes}}
      .dump();
}

RankReport rank_report_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  RankReport report;
  report.assigned = json.at("assigned").get<std::vector<int64_t>>();
  report.assigned_prints = json.at("assigned_prints").get<std::vector<uint64_t>>();
  report.received = json.at("received").get<std::vector<uint64_t>>();
  report.unreadable = json.at("unreadable");
  for (const Json& l : json.at("losses"))
    report.losses.push_back({number(l[0]), number(l[1]), number(l[2])});
  report.replica_hashes = json.at("replica_hashes").get<std::vector<uint64_t>>();
  report.param_hashes = json.at("param_hashes").get<std::vector<uint64_t>>();
  return report;
}

std::string to_text(const std::vector<PieceKey>& pieces) {
  Json json = Json::array();
  for (const PieceKey& p : pieces) json.push_back({p.tensor, p.begin, p.count, p.run, p.stride});
  return json.dump();
}

ReplicaMap::ReplicaMap(const std::vector<std::string>& texts, int32_t rank) {
  std::map<std::string, size_t> known;  // index in `all`, by the piece as text
  std::vector<Group> all;               // every piece of any rank, shared or not
  std::vector<std::vector<size_t>> group_of_piece(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    for (const Json& p : Json::parse(texts[r])) {
      const auto [entry, inserted] = known.insert({p.dump(), all.size()});
      if (inserted) all.push_back({p[0], {}});
      all[entry->second].holders.push_back({static_cast<int32_t>(r), -1});
      group_of_piece[r].push_back(entry->second);
    }
  }
  // A slot is the index of a shared piece among the shared pieces of a rank, in the order in which
  // the rank visits and hashes its pieces.
  for (size_t r = 0; r < texts.size(); ++r) {
    int64_t next = 0;
    for (const size_t g : group_of_piece[r]) {
      const bool shared = all[g].holders.size() > 1;
      if (static_cast<int32_t>(r) == rank) slots_.push_back(shared ? next : -1);
      if (!shared) continue;
      for (Holder& holder : all[g].holders) {
        if (holder.rank == static_cast<int32_t>(r)) holder.slot = next;
      }
      ++next;
    }
  }
  for (Group& group : all) {
    if (group.holders.size() > 1) groups_.push_back(std::move(group));
  }
}

std::optional<Violation> find_violation(const std::vector<RankReport>& all,
                                        const ReplicaMap& replicas,
                                        const Mesh& mesh,
                                        const GlobalBatch& batch) {
  if (auto violation = wrong_assignment(all, mesh, batch)) return violation;
  for (int32_t r = 0; r < mesh.size(); ++r) {
    const bool first_stage = mesh.coordinate(r, YOKE_PP) == 0;
    const bool first_of_cp = mesh.coordinate(r, YOKE_CP) == 0;
    // Samples enter at the first pipeline stage; the ranks along cp are checked together.
    if (!first_stage || !first_of_cp) continue;
    if (auto violation = wrong_samples(all, mesh, r)) return violation;
  }
  return different_replicas(all, replicas);
}

}  // namespace yoke
