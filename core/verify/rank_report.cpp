#include "core/verify/rank_report.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "yoke/nearest.hpp"

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

// "4, 5, 6, 7" or "4, 5, 6, 7 and 12 more"
std::string list(const std::vector<int64_t>& samples) {
  constexpr size_t kShown = 8;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(samples.size(), kShown); ++i)
    words.push_back(std::to_string(samples[i]));
  const size_t more = samples.size() - words.size();
  return join(words) + (more == 0 ? "" : " and " + std::to_string(more) + " more");
}

// The sequences that the ranks along cp were fed, whole ones or slices whose fingerprints add up.
Prints fed_together(const std::vector<const RankReport*>& along_cp) {
  const Prints dealt = set_of(along_cp.front()->dealt_prints);
  const Prints first = set_of(along_cp.front()->fed);
  if (along_cp.size() == 1 || first == dealt) return first;
  std::vector<uint64_t> sums = along_cp.front()->fed;
  for (size_t c = 1; c < along_cp.size(); ++c) {
    const std::vector<uint64_t>& part = along_cp[c]->fed;
    for (size_t i = 0; i < std::min(sums.size(), part.size()); ++i) sums[i] += part[i];
  }
  return set_of(sums);
}

// The data rank that was dealt a sample with this fingerprint, or -1.
int32_t dealt_to(uint64_t print, const std::vector<RankReport>& all, const Mesh& mesh) {
  for (size_t r = 0; r < all.size(); ++r) {
    const auto& prints = all[r].dealt_prints;
    if (std::find(prints.begin(), prints.end(), print) != prints.end())
      return mesh.data_rank(static_cast<int32_t>(r));
  }
  return -1;
}

std::optional<Violation> wrong_deal(const std::vector<RankReport>& all,
                                 const Mesh& mesh,
                                 const GlobalBatch& batch) {
  std::map<int64_t, int32_t> owner;
  for (int32_t r = 0; r < mesh.size(); ++r) {
    for (const int64_t sample : all[r].dealt) {
      const int32_t data_rank = mesh.data_rank(r);
      const auto [at, fresh] = owner.insert({sample, data_rank});
      if (at->second == data_rank) continue;
      return Violation{"samples",
                    r,
                    "",
                    "sample " + std::to_string(sample) + " was dealt to data ranks " +
                        std::to_string(at->second) + " and " + std::to_string(data_rank)};
    }
  }
  for (int64_t sample = batch.first; sample < batch.first + batch.count; ++sample) {
    if (owner.count(sample) != 0) continue;
    return Violation{
        "samples", -1, "", "sample " + std::to_string(sample) + " was dealt to no data rank"};
  }
  return std::nullopt;
}

std::optional<Violation> wrong_data(const std::vector<RankReport>& all,
                                 const Mesh& mesh,
                                 int32_t rank) {
  std::vector<const RankReport*> along_cp;
  for (const int32_t peer : mesh.peers(rank, YOKE_AXIS_BIT(YOKE_CP)))
    along_cp.push_back(&all[peer]);
  if (std::any_of(along_cp.begin(), along_cp.end(), [](auto* e) { return e->blind; })) return {};
  const RankReport& mine = all[rank];
  const Prints fed = fed_together(along_cp), dealt = set_of(mine.dealt_prints);
  if (fed == dealt) return std::nullopt;

  std::vector<int64_t> missing;
  for (size_t i = 0; i < mine.dealt.size(); ++i) {
    if (fed.count(mine.dealt_prints[i]) == 0) missing.push_back(mine.dealt[i]);
  }
  std::string text =
      "rank " + std::to_string(rank) + " (data rank " + std::to_string(mesh.data_rank(rank)) + ") ";
  text += missing.empty() ? "trained on more than its samples"
                          : "did not train on its samples " + list(missing);
  for (const uint64_t print : fed) {
    if (dealt.count(print) != 0) continue;
    const int32_t other = dealt_to(print, all, mesh);
    text += other < 0 ? ", but on data that nobody was dealt"
                      : ", but on samples of data rank " + std::to_string(other);
    break;
  }
  return Violation{"samples", rank, "", text};
}

// The ranks that hold other bits than most, or than the first one if there is no majority.
std::vector<int32_t> dissenters(const ReplicaMap::Group& group,
                                const std::vector<RankReport>& all) {
  std::map<uint64_t, int> votes;
  const auto hash = [&](const ReplicaMap::Holder& h) { return all[h.rank].shared[h.slot]; };
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

std::optional<Violation> parted_replicas(const std::vector<RankReport>& all,
                                      const ReplicaMap& replicas) {
  std::optional<Violation> first;
  std::set<std::string> tensors;
  for (const ReplicaMap::Group& group : replicas.groups()) {
    const std::vector<int32_t> ranks = dissenters(group, all);
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
             "'" + group.tensor + "' has other bits on rank " + std::to_string(ranks.front()) +
                 " than its replica on rank " + std::to_string(agreeing)};
  }
  if (tensors.size() > 1)
    first->text += "; " + std::to_string(tensors.size()) + " tensors differ in all";
  return first;
}

}  // namespace

std::string to_text(const RankReport& e) {
  Json losses = Json::array();
  for (const ObservedLoss& l : e.losses) losses.push_back({l.sum, l.weight, l.scale});
  return Json{{"dealt", e.dealt},
              {"dealt_prints", e.dealt_prints},
              {"fed", e.fed},
              {"blind", e.blind},
              {"losses", losses},
              {"shared", e.shared},
              {"sums", e.sums}}
      .dump();
}

RankReport rank_report_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  RankReport e;
  e.dealt = json.at("dealt").get<std::vector<int64_t>>();
  e.dealt_prints = json.at("dealt_prints").get<std::vector<uint64_t>>();
  e.fed = json.at("fed").get<std::vector<uint64_t>>();
  e.blind = json.at("blind");
  for (const Json& l : json.at("losses"))
    e.losses.push_back({number(l[0]), number(l[1]), number(l[2])});
  e.shared = json.at("shared").get<std::vector<uint64_t>>();
  e.sums = json.at("sums").get<std::vector<uint64_t>>();
  return e;
}

std::string to_text(const std::vector<PieceKey>& pieces) {
  Json json = Json::array();
  for (const PieceKey& p : pieces) json.push_back({p.tensor, p.begin, p.count, p.run, p.stride});
  return json.dump();
}

ReplicaMap::ReplicaMap(const std::vector<std::string>& texts, int32_t rank) {
  std::map<std::string, size_t> known;  // index of the group, by the piece as text
  std::vector<Group> all;
  std::vector<std::vector<size_t>> group_of_piece(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    for (const Json& p : Json::parse(texts[r])) {
      const auto [at, fresh] = known.insert({p.dump(), all.size()});
      if (fresh) all.push_back({p[0], {}});
      all[at->second].holders.push_back({static_cast<int32_t>(r), -1});
      group_of_piece[r].push_back(at->second);
    }
  }
  // Slots count the shared pieces of a rank in the order of its pieces.
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
  if (auto violation = wrong_deal(all, mesh, batch)) return violation;
  for (int32_t r = 0; r < mesh.size(); ++r) {
    const bool first_stage = mesh.coordinate(r, YOKE_PP) == 0;
    const bool first_of_cp = mesh.coordinate(r, YOKE_CP) == 0;
    if (!first_stage || !first_of_cp) continue;
    if (auto violation = wrong_data(all, mesh, r)) return violation;
  }
  return parted_replicas(all, replicas);
}

}  // namespace yoke
