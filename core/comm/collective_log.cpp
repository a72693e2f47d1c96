// The check of a step costs one small all_gather: every rank hashes what it has issued, and all
// ranks compare the hashes. Only when they differ are the histories themselves sent to rank 0,
// which finds the first difference.
//
// A hash of collectives covers several communicators of a rank, so the check assumes that every
// rank issues the same list on its own communicators of each purpose. The ranks of different
// pipeline stages do not: on communicators within a stage, only the ranks of that stage are
// compared.
//
// The messages from one rank to another have a history on both. Each rank adds the hashes of the
// histories of what it has sent and subtracts those of what it has received, so the sum over all
// ranks is zero if all of them agree.
#include "core/comm/collective_log.hpp"

#include <algorithm>
#include <utility>

#include "core/comm/divergence.hpp"
#include "yoke/error.hpp"

namespace yoke {

std::shared_ptr<Traffic> CollectiveLog::traffic(const std::string& axes) {
  auto& traffic = traffic_[axes];
  if (!traffic) traffic = std::make_shared<Traffic>();
  return traffic;
}

void CollectiveLog::add(const std::string& name,
                        uint32_t axes,
                        std::shared_ptr<const History> history) {
  add_link(name, axes, {}, std::move(history));
}

void CollectiveLog::add_link(const std::string& name,
                             uint32_t axes,
                             const Link& link,
                             std::shared_ptr<const History> history) {
  const std::lock_guard lock(mutex_);
  records_.push_back(
      {link.from < 0 ? name : link_name(name, link), axes, std::move(history), link});
}

std::map<std::string, std::vector<std::string>> CollectiveLog::latest() const {
  constexpr size_t kListed = 100;
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<std::string>> latest;
  for (const Record& record : records_) {
    const std::vector<Signature> all = record.history->latest();
    for (size_t i = all.size() - std::min(all.size(), kListed); i < all.size(); ++i)
      latest[record.name].push_back(describe(all[i]));
  }
  return latest;
}

std::map<std::string, CommCount> CollectiveLog::totals() const {
  std::map<std::string, CommCount> totals;
  for (const auto& [name, traffic] : traffic_) {
    CommCount& sum = totals[name];
    for (const auto& [operation, count] : traffic->counts()) {
      sum.calls += count.calls;
      sum.bytes += count.bytes;
      sum.seconds += count.seconds;
    }
  }
  return totals;
}

std::map<std::string, CommCount> CollectiveLog::counts() const {
  std::map<std::string, CommCount> counts = totals();
  for (const auto& [name, before] : at_reset_) {
    CommCount& count = counts[name];
    count.calls -= before.calls;
    count.bytes -= before.bytes;
    count.seconds -= before.seconds;
  }
  return counts;
}

void CollectiveLog::reset_counts() {
  at_reset_ = totals();
}

std::vector<OperationCount> CollectiveLog::counts_by_operation() const {
  std::vector<OperationCount> all;
  for (const auto& [name, traffic] : traffic_) {
    for (const auto& [operation, count] : traffic->counts()) {
      all.push_back({name, name_of(operation.first), dtype_text(operation.second), count});
    }
  }
  return all;
}

uint64_t CollectiveLog::running_hash(bool across_stages) const {
  uint64_t hash = 0;
  for (const Record& record : records_) {
    if (record.link.from >= 0) continue;
    if (((record.axes & YOKE_AXIS_BIT(YOKE_PP)) != 0) == across_stages)
      hash = mix_hash(hash, record.history->hash());
  }
  return hash;
}

// Links differ in their names, so equal messages on two links cannot replace each other.
uint64_t CollectiveLog::message_balance(int32_t rank) const {
  uint64_t balance = 0;
  for (const Record& record : records_) {
    if (record.link.from < 0) continue;
    uint64_t hash = record.history->hash();
    for (const char c : record.name) hash = mix_hash(hash, static_cast<unsigned char>(c));
    balance += record.link.from == rank ? hash : -hash;
  }
  return balance;
}

std::optional<std::string> CollectiveLog::compare_histories(const Mesh& mesh) {
  std::vector<NamedHistory> histories;
  for (const Record& r : records_) histories.push_back({r.name, r.axes, *r.history, r.link});
  return control_.compare_on_rank0(
      "history", pack_histories(histories), [&](const std::vector<std::string>& all) {
        return differing_history(all, mesh);
      });
}

std::vector<std::vector<int64_t>> CollectiveLog::check(const Mesh& mesh,
                                                       int32_t rank,
                                                       const std::vector<int64_t>& numbers) {
  enum { kAcrossStages, kWithinStage, kBalance, kNumbers };
  std::vector<int64_t> mine = {static_cast<int64_t>(running_hash(true)),
                               static_cast<int64_t>(running_hash(false)),
                               static_cast<int64_t>(message_balance(rank))};
  mine.insert(mine.end(), numbers.begin(), numbers.end());
  const auto all = control_.gather_numbers(mine, "comparison of the collectives issued so far");
  std::vector<std::vector<int64_t>> numbers_of_ranks;
  uint64_t balance = 0;
  bool equal = true;
  std::map<int32_t, int64_t> of_stage;
  for (int32_t r = 0; r < mesh.size(); ++r) {
    const int64_t* theirs = &all[static_cast<size_t>(r) * mine.size()];
    const auto first = of_stage.emplace(mesh.coordinate(r, YOKE_PP), theirs[kWithinStage]).first;
    equal = equal && theirs[kAcrossStages] == all[kAcrossStages] &&
            theirs[kWithinStage] == first->second;
    balance += static_cast<uint64_t>(theirs[kBalance]);
    numbers_of_ranks.emplace_back(theirs + kNumbers, theirs + mine.size());
  }
  // All ranks get the same numbers, so all take the same branch.
  if (check_ == CommCheck::kOff || (equal && balance == 0)) return numbers_of_ranks;
  const auto difference = compare_histories(mesh);
  throw Error(
      YOKE_FAILED_PRECONDITION,
      difference.value_or("the ranks have issued different collectives on communicators that they "
                          "do not share; comm.check=off allows that"));
}

}  // namespace yoke
